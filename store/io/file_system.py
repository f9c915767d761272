"""File system operations beyond ``os``: safe reads of small files, holes, syncs, links."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store.errors import StoreIOError

LINK_REFUSED = (
    "it is a symbolic link, which is not followed; move its target here, or mount it here"
)
_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


SMALL_FILE_BYTES_MAX = 64 * 1024 * 1024
_PIECE_BYTES = 1 << 16


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. Raises OSError.

    Used for every file of a store that is opened by its path. A pipe or a device is refused without
    being read; to open one neither blocks nor waits for a writer.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
    except OSError:
        os.close(fd)
        raise
    return fd


def read_small_file(
    path: Path | str, bytes_max: int = SMALL_FILE_BYTES_MAX, *, follows_links: bool = True
) -> bytes:
    """Return the content of a regular file of at most ``bytes_max`` bytes. Raises OSError.

    Used for every file that is read whole.
    """
    fd = open_regular(path, os.O_RDONLY | (0 if follows_links else os.O_NOFOLLOW))
    try:
        status = os.fstat(fd)
        pieces, size = [], 0
        while True:
            pieces.append(os.read(fd, _PIECE_BYTES))
            size += len(pieces[-1])
            if max(size, status.st_size) > bytes_max:
                raise OSError(errno.EFBIG, f"it is larger than {bytes_max} bytes")
            if len(pieces[-1]) < _PIECE_BYTES:  # the end of a regular file
                break
    finally:
        os.close(fd)
    return b"".join(pieces)


def data_extents(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the extents between ``begin`` and ``end`` that hold data. Raises OSError."""
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


def link_below(top: Path, directory: Path) -> StoreIOError | None:
    """Return the error of the first link on the path from ``top`` to a directory below it.

    The directory itself is checked, ``top`` is not. None if there is no link.
    """
    at = top
    for part in directory.relative_to(top).parts:
        at /= part
        if os.path.islink(at):
            return StoreIOError("list", at, OSError(errno.ELOOP, LINK_REFUSED))
    return None


def sync_file_system(fd: int) -> None:
    """Sync the file system of a descriptor, or all file systems without ``syncfs``."""
    syncfs = getattr(_libc, "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(fd):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def begin_write_back(fd: int, begin: int, size: int) -> None:
    """Start the write-back of a byte range without waiting, so that a later sync is short.

    Does nothing where the system or the file system does not support it.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, begin, size, _SYNC_FILE_RANGE_WRITE)


def for_each(do: Callable[[Path], None], paths: list[Path], threads: int) -> None:
    """Call ``do`` for each path, in parallel if there are more paths than ``threads``."""
    if threads == 1 or len(paths) <= threads:
        for path in paths:
            do(path)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(do, paths):
            pass
