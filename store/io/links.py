"""Symbolic links in a root: none is followed to change anything (see ``store.io.disk``)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import StoreIOError

_NOT_FOLLOWED = "links inside OUTPUT are not followed: link OUTPUT itself, or mount the directory"


class RealDirectories:
    """The directories below a root that are reached by no link; without a root none is looked at.

    ``known`` are those found real: each is looked at once, by one system call.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self.known: set[Path] = set()

    def check(self, directory: Path) -> None:
        """Raise OSError if a directory below the root is, or is reached by, a link."""
        root = self._root
        if root is None or directory in self.known or directory == root:
            return
        if not directory.is_relative_to(root):
            return
        self.check(directory.parent)
        if directory.is_symlink():
            raise OSError(errno.ELOOP, f"{directory} is a symbolic link")
        self.known.add(directory)


def refuse_link(path: Path) -> None:
    """Raise StoreIOError if a path is a link."""
    with io_errors("rename", path):
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a symbolic link")


def open_existing(path: Path) -> int:
    """Open a regular file to read and write, but not through a link; return its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


@contextmanager
def io_errors(action: str, path: Path) -> Iterator[None]:
    """Raise an OSError as a StoreIOError that names action and path, and a link by what it is."""
    try:
        yield
    except OSError as e:
        cause = e
        if e.errno == errno.ELOOP:
            what = e.strerror if e.filename is None else "it is a symbolic link"
            cause = OSError(e.errno, f"{what}; {_NOT_FOLLOWED}")
        raise StoreIOError(action, path, cause) from e
