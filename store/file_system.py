"""What a file system is asked beyond Python's ``os``: holes of files, and one sync for all."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def data_extents(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches between ``begin`` and ``end`` that are no holes. Raises OSError."""
    while begin < end:
        try:
            begin = os.lseek(fd, begin, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        stop = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        if begin >= stop:
            return
        yield begin, stop
        begin = stop


def sync_file_system(fd: int) -> None:
    """Sync the file system of a descriptor; where the C library cannot, all of them."""
    syncfs = getattr(_libc, "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(fd):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def begin_write_back(fd: int, begin: int, size: int) -> None:
    """Let the system begin to write a stretch of a file, and go on; a later sync has less to do.

    Does nothing where the system or the file system cannot.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, begin, size, _SYNC_FILE_RANGE_WRITE)


def for_each(do: Callable[[Path], None], paths: list[Path], threads: int) -> None:
    """Call for each path, several at a time when there are many."""
    if threads == 1 or len(paths) <= threads:
        for path in paths:
            do(path)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(do, paths):
            pass
