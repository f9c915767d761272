"""The one door through which files are written, synced, renamed, locked and deleted.

Everything a store writes goes through a ``Disk``, so a test that injects faults has one place to
stand. There is no writable map: bytes are written by position from private buffers, and a full
disk is an error, not a signal.

Writes are durable after ``sync``: it syncs every file written since the last one, then every
directory whose entries changed. Every failure raises StoreIOError naming action and path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from store.errors import RootInUseError, StoreIOError

OPEN_FILES_MAX = 256
_SYNC_THREADS = 8
_TEMPORARY = ".tmp"
_IN_USE = (
    "{path} is locked: a broker or another dispatcher owns this root; stop it, or choose another "
    "OUTPUT"
)
_LOCKED: set[Path] = set()  # a POSIX lock does not keep its own process out

Bytes = bytes | bytearray | memoryview


class Disk:
    """Writes files of one root. Not safe to share between threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._written: set[Path] = set()
        self._directories: set[Path] = set()

    def create(self, path: Path, size: int) -> None:
        """Create a zero-filled (sparse) file of ``size`` bytes, with the directories it needs."""
        with _told("create", path):
            self._make_directories(path.parent)
            fd = self._descriptor(path, os.O_CREAT | os.O_EXCL)
            os.ftruncate(fd, size)
        self._written.add(path)
        self._directories.add(path.parent)

    def write(self, path: Path, offset: int, data: Bytes) -> None:
        """Write all of ``data`` at ``offset`` of an existing file."""
        view = memoryview(data).cast("B")
        with _told("write", path):
            fd = self._descriptor(path)
            while view:
                done = self._pwrite(fd, view, offset)
                view, offset = view[done:], offset + done
        self._written.add(path)

    def sync(self) -> None:
        """Make everything written so far durable."""
        files, directories = sorted(self._written), sorted(self._directories)
        for paths in (files, directories):
            self._sync_each(paths)
        self._written.clear()
        self._directories.clear()

    def replace(self, path: Path, data: Bytes) -> None:
        """Replace a small file atomically and durably: temporary, sync, rename, sync."""
        temporary = path.with_name(path.name + _TEMPORARY)
        with _told("replace", path):
            self._make_directories(path.parent)
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                view, offset = memoryview(data).cast("B"), 0
                while view:
                    done = self._pwrite(fd, view, offset)
                    view, offset = view[done:], offset + done
                self._fsync(fd)
            finally:
                os.close(fd)
            self._rename(temporary, path)
        self._directories.add(path.parent)
        self._sync_each(sorted(self._directories))
        self._directories.clear()

    def remove(self, path: Path) -> None:
        """Delete a file if it is there; durable after ``sync``."""
        self._close(path)
        self._written.discard(path)
        with _told("delete", path):
            path.unlink(missing_ok=True)
        self._directories.add(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory and all below it."""
        with _told("delete", path):
            shutil.rmtree(path)
        self._directories.add(path.parent)

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents if they are missing."""
        with _told("create", path):
            self._make_directories(path)

    def lock(self, path: Path, content: bytes) -> IO[bytes]:
        """Take a broker's lock: range [0, 1) of the file, which is made with ``content``.

        Closing *any* descriptor of the file drops a POSIX lock: nothing else in this process may
        open it. Raises RootInUseError if another process holds it.
        """
        key = path.resolve()
        if key in _LOCKED:
            raise RootInUseError(_IN_USE.format(path=path))
        with _told("create", path):
            self._make_directories(path.parent)
            handle = path.open("r+b") if path.exists() else path.open("w+b")
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if not handle.read(1):
                handle.write(content)
                handle.flush()
        except (BlockingIOError, PermissionError) as e:
            handle.close()
            raise RootInUseError(_IN_USE.format(path=path)) from e
        _LOCKED.add(key)
        return handle

    def unlock(self, handle: IO[bytes]) -> None:
        """Give a lock back."""
        _LOCKED.discard(Path(handle.name).resolve())
        handle.close()

    def close(self) -> None:
        """Close what is open; nothing is synced."""
        for path in list(self._open):
            self._close(path)

    # The primitive operations; a test's disk overrides them. ------------------------------------

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        os.fsync(fd)

    def _rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    # ---------------------------------------------------------------------------------------------

    def _descriptor(self, path: Path, flags: int = 0) -> int:
        fd = self._open.get(path)
        if fd is not None and not flags:
            self._open.move_to_end(path)
            return fd
        fd = os.open(path, os.O_RDWR | flags, 0o644)
        self._open[path] = fd
        if len(self._open) > OPEN_FILES_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return fd

    def _close(self, path: Path) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _make_directories(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self._directories.add(directory.parent)

    def _sync_each(self, paths: list[Path]) -> None:
        def sync(path: Path) -> None:
            with _told("sync", path):
                fd = os.open(path, os.O_RDONLY)
                try:
                    self._fsync(fd)
                finally:
                    os.close(fd)

        _for_each(sync, paths)


def _for_each(do: Callable[[Path], None], paths: list[Path]) -> None:
    """Call for each path, several at a time when there are many."""
    if len(paths) <= _SYNC_THREADS:
        for path in paths:
            do(path)
        return
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        for _ in pool.map(do, paths):
            pass


@contextmanager
def _told(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StoreIOError(action, path, e) from e
