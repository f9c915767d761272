"""The only module that writes, syncs, renames, locks and deletes files.

Everything that a store writes goes through a ``Disk``, so tests inject every fault at one point.
There is no writable map: bytes are written by position, so a full disk is an error, not a signal.

**Symbolic links.** OUTPUT itself, and the path to it, may contain links. Below OUTPUT, writing,
creating, renaming or locking a file that is a link, or is reached through one, raises StoreIOError
naming the link; deleting or replacing a link leaves its target unchanged. OUTPUT is the
directory of the lock, or is given if another process has locked it. A directory is checked at its
first use.

Writes are durable after ``sync``: it syncs every file written since the last sync, then every
directory whose entries changed. Every failure raises StoreIOError naming action and path.

Each change is one system call of ``DiskPrimitives``; a test's disk counts, fails or undoes it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import IO, ClassVar, Concatenate, ParamSpec, TypeVar

from store.io import lock_file
from store.io.disk_primitives import DiskPrimitives
from store.io.file_system import begin_write_back, data_extents, for_each
from store.io.links import RealDirectories, io_errors, open_existing, prefix_of
from store.io.lock_file import serialized

OPEN_FILES_MAX = 256
_ZEROS = bytes(1 << 20)
_WRITE_BACK_BYTES = 256 * 1024
_TEMPORARY = ".tmp"

Bytes = bytes | bytearray | memoryview
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _exclusive(
    method: Callable[Concatenate[Disk, _P], _T],
) -> Callable[Concatenate[Disk, _P], _T]:
    """Run one operation of a disk at a time, so that none closes a descriptor in use by another."""

    @wraps(method)
    def operation(self: Disk, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._guard:
            return method(self, *args, **kwargs)

    return operation


class Disk(DiskPrimitives):
    """Writes the files of one directory, ``top``.

    Threads may share it: its operations run one at a time. ``sync`` makes durable what all of them
    have written; threads that write in parallel need a ``Disk`` each.
    """

    sync_threads: ClassVar[int] = 8  # with 1, all primitives run in the caller's thread

    def __init__(self, top: Path | None = None) -> None:
        self._guard = threading.RLock()
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._written: set[Path] = set()
        self._directories: set[Path] = set()
        self._unsynced: str | None = None  # the prefix of the paths that are not synced
        self._locked_directory: Path | None = None
        self._real = RealDirectories(top)
        self._ensured: set[Path] = set()  # directories whose own entry is durable after sync

    @_exclusive
    def create(self, path: Path, size: int) -> None:
        """Create a zero-filled (sparse) file of ``size`` bytes and its missing directories."""
        directory = path.parent
        with io_errors("create", path):
            self._ensure_directory(directory)
            fd = self._create(path)
            self._keep_open(path, fd)
            self._directories.add(directory)
            self._written.add(path)
            self._ftruncate(fd, size)

    @_exclusive
    def write(self, path: Path, offset: int, data: Bytes) -> None:
        """Write all of ``data`` to an existing file at ``offset``."""
        with io_errors("write", path):
            fd = self._descriptor(path)
            self._written.add(path)
            self._write_all(fd, memoryview(data).cast("B"), offset)
            if len(data) >= _WRITE_BACK_BYTES and not self._is_synced(path):
                begin_write_back(fd, offset, len(data))

    @_exclusive
    def put(self, path: Path, pieces: Iterable[Bytes]) -> None:
        """Write a file whole or not at all, replacing any file of that name; not synced."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
        with io_errors("write", path):
            self._ensure_directory(path.parent)
            fd = self._create_temporary(temporary)
            try:
                at = 0
                for piece in pieces:
                    self._write_all(fd, memoryview(piece).cast("B"), at)
                    at += len(piece)
            finally:
                os.close(fd)
            self._rename(temporary, path)

    @_exclusive
    def zero(self, path: Path, begin: int) -> None:
        """Zero an existing file from ``begin`` to its end.

        Holes stay holes, and zeros are not rewritten. After ``sync`` the whole file is durable,
        its name included: the process that created it may have been killed before its sync.
        """
        with io_errors("write", path):
            self._ensure_directory(path.parent)
            self._directories.add(path.parent)
            fd = self._descriptor(path)
            self._written.add(path)
            for at, end in data_extents(fd, begin, os.fstat(fd).st_size):
                for piece in range(at, end, len(_ZEROS)):
                    data = os.pread(fd, min(len(_ZEROS), end - piece), piece)
                    zeros = _ZEROS[: len(data)]
                    if data != zeros:
                        self._write_all(fd, memoryview(zeros), piece)

    @_exclusive
    def sync(self) -> None:
        """Make everything written so far durable."""
        self._sync_each(self._written, self._fsync)
        self._sync_each(self._directories, self._fsync_directory)

    @_exclusive
    def defer_sync(self, directory: Path | None) -> None:
        """Exclude a directory from syncs until ``sync_all``; None ends it."""
        self._unsynced = prefix_of(directory) if directory is not None else None

    @_exclusive
    def sync_all(self, directory: Path) -> None:
        """Sync the file system of a directory, whichever process of this machine wrote to it."""
        with io_errors("sync", directory):
            fd = os.open(directory, os.O_RDONLY)
            try:
                self._syncfs(fd)
            finally:
                os.close(fd)

    @_exclusive
    def replace(self, path: Path, data: Bytes) -> None:
        """Replace a small file atomically and durably: temporary, sync, rename, sync."""
        temporary = path.with_name(path.name + _TEMPORARY)
        with io_errors("replace", path):
            self._ensure_directory(path.parent)
            fd = self._create_temporary(temporary)
            try:
                self._write_all(fd, memoryview(data).cast("B"), 0)
                if self._is_synced(temporary):
                    self._fsync(fd)
            finally:
                os.close(fd)
            self._close(path)
            self._rename(temporary, path)
        self._directories.add(path.parent)
        self._sync_each(self._directories, self._fsync_directory)

    @_exclusive
    def include_in_sync(self, directory: Path) -> None:
        """Make ``sync`` cover the changes of an earlier process in a directory, if it exists.

        A file that a killed process deleted is no longer listed, but a power loss may restore it.
        """
        if directory.is_dir():
            self._directories.add(directory)

    @_exclusive
    def move(self, source: Path, target: Path) -> None:
        """Rename a file or directory to an unused name; durable after ``sync``.

        Everything written below it must already be synced.
        """
        with io_errors("rename", source):
            self._real.check(source)
            self._ensure_directory(target.parent)
            self._forget_below(source)
            self._rename(source, target)
        self._directories |= {source.parent, target.parent}

    @_exclusive
    def remove(self, path: Path) -> None:
        """Delete a file if it exists; durable after ``sync``.

        Durable even if it does not exist: the process that deleted it may not have synced.
        """
        self._close(path)
        self._written.discard(path)
        with io_errors("delete", path):
            self._real.check(path.parent)
            try:
                self._unlink(path)
            except FileNotFoundError:
                if not path.parent.is_dir():
                    return
        self._directories.add(path.parent)

    @_exclusive
    def remove_directory(self, path: Path) -> None:
        """Delete a directory if it exists and is empty; durable after ``sync``."""
        with io_errors("delete", path):
            self._real.check(path.parent)
            try:
                self._rmdir(path)
            except FileNotFoundError:
                if not path.parent.is_dir():
                    return
            except OSError as e:
                if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return
                raise
        for paths in (self._directories, self._ensured, self._real.known):
            paths.discard(path)
        self._directories.add(path.parent)

    @_exclusive
    def remove_tree(self, path: Path) -> None:
        """Delete a directory with its content, or a link alone; durable after ``sync``."""
        with io_errors("delete", path):
            self._real.check(path.parent)
            if path.is_symlink():
                self._unlink(path)
            else:
                self._remove_entries(path)
                self._rmdir(path)
        self._forget_below(path)
        self._directories.add(path.parent)

    @_exclusive
    def make_directory(self, path: Path) -> None:
        """Create a directory and its parents if they are missing."""
        with io_errors("create", path):
            self._ensure_directory(path)

    @serialized
    @_exclusive
    def lock(self, path: Path, content: bytes) -> IO[bytes]:
        """Take a broker's lock: range [0, 1) of the file, which is created with ``content``.

        Closing *any* descriptor of the file releases a POSIX lock: nothing else in this process
        may open it. Raises OutputInUseError if another process holds the lock.
        """
        lock_file.check_unlocked(path)
        self._locked_directory = path.parent
        self._real = RealDirectories(path.parent)
        with io_errors("create", path):
            self._ensure_directory(path.parent)
            fd = open_existing(path) if os.path.lexists(path) else self._create(path)
        handle = open(path, "r+b", buffering=0, opener=lambda *_: fd)  # noqa: SIM115 - kept
        try:
            self._take_lock(handle, path, content)
        except BaseException:
            handle.close()
            raise
        lock_file.register(handle, is_locked=True)
        return handle

    @serialized
    def unlock(self, handle: IO[bytes]) -> None:
        """Release a lock; one that has been released stays so."""
        if handle.closed:
            return
        lock_file.register(handle, is_locked=False)
        handle.close()

    @_exclusive
    def close(self) -> None:
        """Close all open files without syncing."""
        for path in list(self._open):
            self._close(path)

    # The parts of the operations above ------------------------------------------------------------

    def _create_temporary(self, temporary: Path) -> int:
        try:
            return self._create(temporary)
        except FileExistsError:
            self._unlink(temporary)  # the remains of an interrupted process
            return self._create(temporary)

    def _write_all(self, fd: int, data: memoryview, offset: int) -> None:
        while data:
            try:
                done = self._pwrite(fd, data, offset)
            except InterruptedError:
                continue
            if not done:
                raise OSError(errno.ENOSPC, "nothing more can be written")
            data, offset = data[done:], offset + done

    def _remove_entries(self, directory: Path) -> None:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            path = directory / entry.name
            if entry.is_dir(follow_symlinks=False):
                self._remove_entries(path)
                self._rmdir(path)
            else:
                self._unlink(path)

    def _take_lock(self, handle: IO[bytes], path: Path, content: bytes) -> None:
        lock_file.take(handle, path)
        with io_errors("write", path):
            if not handle.read(1):
                self._write_all(handle.fileno(), memoryview(content), 0)
            # Always synced: ``checkpoints.ownership`` compares the file's times, and the
            # process that wrote it may have been killed before its sync.
            self._fsync(handle.fileno())
        self._directories.add(path.parent)

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        self._real.check(path.parent)
        fd = open_existing(path)
        self._keep_open(path, fd)
        return fd

    def _keep_open(self, path: Path, fd: int) -> None:
        self._open[path] = fd
        if len(self._open) > OPEN_FILES_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)

    def _close(self, path: Path) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _forget_below(self, path: Path) -> None:
        """Drop all state kept for a deleted or renamed directory and its content."""
        below = prefix_of(path)
        for known in [p for p in self._open if str(p).startswith(below)]:
            self._close(known)
        for paths in (self._written, self._directories, self._ensured, self._real.known):
            paths.difference_update([p for p in paths if str(p).startswith(below)])
            paths.discard(path)

    def _ensure_directory(self, path: Path) -> None:
        """Create a directory if it is missing; ``sync`` makes it durable in any case.

        The process that created an existing one may have been killed before its sync: so every
        directory from the parent of the locked one down to it is synced, once.
        """
        if path in self._ensured:
            return
        self._real.check(path)
        if not path.is_dir():
            self._ensure_directory(path.parent)
            with suppress(FileExistsError):  # another process has just created it
                self._mkdir(path)
            self._directories.add(path.parent)
        elif self._locked_directory is not None and path.is_relative_to(self._locked_directory):
            if path != self._locked_directory:
                self._ensure_directory(path.parent)
                self._directories.add(path.parent)
            elif os.access(path.parent, os.W_OK | os.R_OK):  # else its entry is not this user's
                self._directories.add(path.parent)
        else:
            return
        self._ensured.add(path)

    def _is_synced(self, path: Path) -> bool:
        return self._unsynced is None or not str(path).startswith(self._unsynced)

    def _sync_each(self, paths: set[Path], fsync: Callable[[int], None]) -> None:
        """Sync files or directories, and clear the set."""

        def sync(path: Path) -> None:
            with io_errors("sync", path):
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe, put there, cannot block
                try:
                    fsync(fd)
                finally:
                    os.close(fd)

        for_each(sync, sorted(filter(self._is_synced, paths)), self.sync_threads)
        paths.clear()
