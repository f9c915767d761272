"""Symbolic links below OUTPUT: no write follows one (see ``store.io.disk``)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import StoreIOError
from store.io.file_system import open_regular

_NOT_FOLLOWED = "links inside OUTPUT are not followed: link OUTPUT itself, or mount the directory"


class RealDirectories:
    """Checks that directories below ``top`` are not reached through a link; no ``top``, no checks.

    ``known`` holds the directories that passed: each is checked once, by one system call.
    """

    def __init__(self, top: Path | None) -> None:
        self._top = top
        self._below = prefix_of(top) if top is not None else ""
        self.known: set[Path] = set()

    def check(self, directory: Path) -> None:
        """Raise OSError if a directory below ``top`` is a link, or is reached through one."""
        top = self._top
        if top is None or directory in self.known or directory == top:
            return
        if not str(directory).startswith(self._below):
            return
        self.check(directory.parent)
        if directory.is_symlink():
            raise OSError(errno.ELOOP, f"{directory} is a symbolic link")
        self.known.add(directory)


def prefix_of(directory: Path) -> str:
    """Return the prefix of all paths below a directory, far cheaper than ``is_relative_to``."""
    return f"{str(directory).rstrip('/')}/"


def refuse_link(path: Path) -> None:
    """Raise StoreIOError if a path is a link."""
    with io_errors("rename", path):
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a symbolic link")


def open_existing(path: Path) -> int:
    """Open a regular file, not a link, for reading and writing; return its descriptor."""
    return open_regular(path, os.O_RDWR | os.O_NOFOLLOW)


@contextmanager
def io_errors(action: str, path: Path) -> Iterator[None]:
    """Convert an OSError into a StoreIOError that names action and path; explain a link."""
    try:
        yield
    except OSError as e:
        cause = e
        if e.errno == errno.ELOOP:
            what = e.strerror if e.filename is None else "it is a symbolic link"
            cause = OSError(e.errno, f"{what}; {_NOT_FOLLOWED}")
        raise StoreIOError(action, path, cause) from e
