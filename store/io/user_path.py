"""Paths given by users."""

from __future__ import annotations

import os
from pathlib import Path

from store.errors import ConfigError, shown


def given_path(value: str | Path) -> Path:
    """Return a path given by a user. Raises ConfigError for an empty one.

    To Python an empty path is the current directory, but most often it is an unset variable.
    """
    if not str(value) or (isinstance(value, str) and "\0" in value):
        raise ConfigError(
            f"the path {shown(str(value))} is empty or contains NUL; the current directory is '.'"
        )
    return Path(value)


def given_output(value: str | Path) -> Path:
    """Return the OUTPUT path given by a user. Raises ConfigError, as ``check_output_path``."""
    path = given_path(value)
    check_output_path(path)
    return path


def check_output_path(path: Path) -> None:
    """Raise ConfigError with the reason if a path is not and cannot become a directory."""
    for at in (path, *path.parents):
        if os.path.isdir(at):
            return
        if os.path.lexists(at):
            inside = "" if at == path else f": {at} is not one"
            raise ConfigError(f"OUTPUT {path} is not a directory{inside}{_link_fault(at)}")


def _link_fault(path: Path) -> str:
    """Return why a link does not lead to a directory, "" if the path is not a link."""
    if not path.is_symlink():
        return ""
    try:
        path.stat()
    except FileNotFoundError:
        return f": it is a symbolic link whose target does not exist: {os.readlink(path)}"
    except OSError as e:
        return f": {e.strerror}"
    return ""
