"""Paths as users give them."""

from __future__ import annotations

import os
from pathlib import Path

from store.errors import ConfigError, shown


def given_path(value: str | Path) -> Path:
    """Return a path that a user gave. Raises ConfigError for an empty one.

    Python takes an empty path for the current directory, but most are variables that are not set.
    """
    if not str(value) or (isinstance(value, str) and "\0" in value):
        raise ConfigError(
            f"the path {shown(str(value))} is empty or contains NUL; the current directory is '.'"
        )
    return Path(value)


def given_output(value: str | Path) -> Path:
    """Return the path of OUTPUT that a user gave. Raises ConfigError, as ``check_output_path``."""
    path = given_path(value)
    check_output_path(path)
    return path


def check_output_path(path: Path) -> None:
    """Raise ConfigError if a path is no directory and none can be made there, naming the reason."""
    for at in (path, *path.parents):
        if os.path.isdir(at):
            return
        if os.path.lexists(at):
            inside = "" if at == path else f": {at} is none"
            raise ConfigError(f"OUTPUT {path} is not a directory{inside}{_link_fault(at)}")


def _link_fault(path: Path) -> str:
    """Return what is wrong with a link that leads to no directory, "" for what is no link."""
    if not path.is_symlink():
        return ""
    try:
        path.stat()
    except FileNotFoundError:
        return f": it is a symbolic link whose target does not exist: {os.readlink(path)}"
    except OSError as e:
        return f": {e.strerror}"
    return ""
