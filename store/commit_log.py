"""The CommitLog, read-only: the broker's calls on it, by physical offset (format notes §2.8).

The log is a chain of records through files of one size. Its end is nowhere written down: it is
found by walking the chain through the last file that holds anything.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.config import StoreConfig
from store.errors import DamageError, StoreIOError
from store.kernels import record as rk
from store.kernels.log_walk import walk
from store.layout import BLANK_SIZE
from store.mapped_file import MappedFile, MappedFileQueue
from store.scan import scan_rules

_NO_CUTS = (np.empty(0, np.int64), 1 << 62)


class CommitLog:
    """The files of a commit log, for one thread at a time.

    Refreshing sees what a broker has added or deleted.
    """

    def __init__(self, paths: Iterable[Path], config: StoreConfig) -> None:
        self.config = config
        self.file_size = config.mapped_file_size_commit_log
        self._queue = MappedFileQueue(paths, self.file_size, follows_links=True)
        self._rules = scan_rules(config)._replace(check_crc=False)
        self._end: tuple[MappedFile | None, int] = (None, 0)  # last file, walked up to where

    @property
    def directories(self) -> tuple[Path, ...]:
        """Where the files lie."""
        return self._queue.directories

    @property
    def files(self) -> list[MappedFile]:
        """The files in offset order, as of the last refresh."""
        return self._queue.files

    def refresh(self) -> None:
        """See files added or deleted since."""
        self._queue.refresh()

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``, or None."""
        return self._queue.find(offset)

    def path_of(self, offset: int) -> Path:
        """Return the file that holds an offset, else the log's (first) directory."""
        file = self.find(offset)
        return file.path if file is not None else self.directories[0]

    def next_base(self, offset: int) -> int | None:
        """Return where the first file after ``offset`` begins, or None."""
        return self._queue.next_base(offset)

    def min_offset(self) -> int:
        """Return the base of the first file, -1 without files."""
        return self.files[0].base if self.files else -1

    def max_offset(self) -> int:
        """Return the end of the last record there (after a blank: the next file's base).

        0 without files. Half-written records at the live end do not count.
        """
        last = self.last_file()
        if last is None:
            return 0
        if self._end[0] is not last:
            self._end = (last, 0)
        span = (last.base, self._end[1], last.length)
        end = walk(last.view(), span, self._rules, True, _NO_CUTS)
        if end.last >= 0:
            self._end = (last, end.last)  # the last one is looked at again: it may be cut off
        return self.roll_next_file(last.base) if end.reason == rk.BLANK else last.base + end.at

    def last_file(self) -> MappedFile | None:
        """Return the last file that holds anything, else the first file; None without files.

        A file of another size counts: no broker makes one, so it is not a look-ahead file.
        """
        for file in reversed(self.files):
            if file.length != self.file_size or holds_something(file):
                return file
        return self.files[0] if self.files else None

    def roll_next_file(self, offset: int) -> int:
        """Return where the file after the one of ``offset`` begins."""
        return offset + self.file_size - offset % self.file_size

    def get_data(
        self, offset: int, *, return_first_on_not_found: bool = False
    ) -> NDArray[np.uint8] | None:
        """Return the bytes from ``offset`` to the end of what its file holds.

        Where no file holds the offset: the first file's bytes from the offset's place in a file
        if ``return_first_on_not_found`` (the broker asks for that with offset 0), else None.
        """
        file = self.find(offset)
        if file is None and return_first_on_not_found and self.files:
            file = self.files[0]
        if file is None:
            return None
        at, end = offset % self.file_size, self._read_end(file)
        return file.view()[at:end] if at < end else None

    def get_message(self, offset: int, size: int) -> NDArray[np.uint8] | None:
        """Return ``size`` bytes from ``offset`` on, None if they are not all in one file."""
        data = self.get_data(offset, return_first_on_not_found=offset == 0)
        return data[:size] if data is not None and 0 < size <= len(data) else None

    def check_file(self, file: MappedFile) -> None:
        """Raise DamageError if the file has another size than the log's files have."""
        if file.length != self.file_size:
            raise DamageError(file.path, file.base, *wrong_size(file, self.file_size))

    def _read_end(self, file: MappedFile) -> int:
        last = self.last_file()
        if last is None or file.base > last.base:
            return 0
        if file.base < last.base:
            return file.length
        return min(self.max_offset() - file.base, file.length)


def holds_something(file: MappedFile) -> bool:
    """Tell whether a file begins with something other than zeros.

    One that was deleted since it was listed holds nothing: a broker deletes the file made ahead.
    """
    try:
        return bool(file.view()[:BLANK_SIZE].any())
    except StoreIOError as e:
        if e.errno == errno.ENOENT:
            return False
        raise


def wrong_size(file: MappedFile, file_size: int) -> tuple[str, str]:
    """Say what is wrong with a file of another size, and what to do."""
    return (
        f"the file has {file.length} bytes, the log's files have {file_size}",
        "restore the file, or pass the broker.conf this log was written with (--broker-conf)",
    )
