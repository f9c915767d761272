"""Mapped files: a stream cut into files of one size, each named by the offset it begins at.

Here they are only read. A file is mapped at first use; the map is dropped with the object.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.errors import DamageError, StoreIOError
from store.layout import MAPPED_FILE_NAME_DIGITS

_EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)


def file_name(base: int) -> str:
    """Return the name of the file that begins at ``base`` (``UtilAll.offset2FileName``)."""
    return f"{base:0{MAPPED_FILE_NAME_DIGITS}d}"


@dataclass(slots=True)
class MappedFile:
    """One file of a stream: where it lies, the offset it begins at, its length when listed."""

    path: Path
    base: int
    length: int
    inode: int = 0
    _view: NDArray[np.uint8] | None = field(default=None, repr=False)

    def view(self) -> NDArray[np.uint8]:
        """Return the file's bytes as a read-only map."""
        if self._view is None:
            self._view = map_file(self.path)
        return self._view


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file read-only. Raises StoreIOError."""
    try:
        with path.open("rb") as f:
            size = path.stat().st_size
            if size == 0:
                return _EMPTY
            return np.frombuffer(mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    except OSError as e:
        raise StoreIOError("map", path, e) from e


def written_prefix(sizes: NDArray[Any]) -> int:
    """Count the leading positive sizes of a file's units: unwritten space is zero."""
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        if sizes[middle] > 0:
            low = middle + 1
        else:
            high = middle
    return low


class MappedFileQueue:
    """The files of one stream, perhaps spread over several directories, in offset order."""

    def __init__(self, directories: Iterable[Path], file_size: int) -> None:
        self.directories = tuple(directories)
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self._bases: list[int] = []
        self.refresh()

    def refresh(self) -> None:
        """List the directories again; maps of files still there are kept.

        Raises DamageError for a file that is not named as a mapped file or begins at no
        multiple of the file size, StoreIOError if a directory cannot be read.
        """
        known = {f.path: f for f in self.files}
        found = []
        for directory in self.directories:
            for path, status in _list_files(directory):
                old, length, inode = known.get(path), status.st_size, status.st_ino
                if old is not None and (old.length, old.inode) == (length, inode):
                    found.append(old)
                else:  # new, grown, or another file renamed to this name
                    found.append(MappedFile(path, self._base_of(path), length, inode))
        found.sort(key=lambda f: f.base)
        while found and found[-1].length == 0:  # being created (a broker skips it too)
            found.pop()
        self.files = found
        self._bases = [f.base for f in found]

    def find(self, offset: int) -> MappedFile | None:
        """Return the file whose span holds ``offset``, or None."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0 or offset >= self._bases[at] + self.file_size:
            return None
        return self.files[at]

    def next_base(self, offset: int) -> int | None:
        """Return the base of the first file that begins after ``offset``, or None."""
        at = bisect_right(self._bases, offset)
        return self._bases[at] if at < len(self._bases) else None

    def _base_of(self, path: Path) -> int:
        if len(path.name) != MAPPED_FILE_NAME_DIGITS or not path.name.isascii():
            raise DamageError(path, 0, "not named as a mapped file (20 digits)")
        if not path.name.isdigit():
            raise DamageError(path, 0, "not named as a mapped file (20 digits)")
        base = int(path.name)
        if base % self.file_size:
            raise DamageError(
                path,
                base,
                f"begins at no multiple of the file size {self.file_size}",
                "pass the broker.conf that this store was written with (--broker-conf)",
            )
        return base


def _list_files(directory: Path) -> list[tuple[Path, os.stat_result]]:
    """List the regular files of a directory with their status; a missing one is empty.

    Hidden files are no mapped files: what copies a log names its unfinished files so.
    """
    found = []
    try:
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                status = path.stat()
                if stat.S_ISREG(status.st_mode) and not path.name.startswith("."):
                    found.append((path, status))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreIOError("list", directory, e) from e
    return found
