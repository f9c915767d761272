"""The one door through which files are written, synced, renamed, locked and deleted.

Everything a store writes goes through a ``Disk``, so a test that injects faults has one place to
stand. There is no writable map: bytes are written by position from private buffers, and a full
disk is an error, not a signal.

**Symbolic links.** OUTPUT itself, and what leads to it, may be links. Below it none is followed to
change anything: to write, create, rename or lock a file that is a link, or that is reached through
one, raises StoreIOError naming the link; to delete or replace a link leaves its target as it is.
The root is that of the lock, or given to a ``Disk`` that works on a root which another process has
locked. A directory is checked when it is first used, not at every write.

Writes are durable after ``sync``: it syncs every file written since the last one, then every
directory whose entries changed. Every failure raises StoreIOError naming action and path.

What changes the disk is one system call each, in the primitive methods at the end of ``Disk``: a
test's disk overrides them, to count, fail or undo any of them.
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
from store.io.file_system import begin_write_back, data_extents, for_each, sync_file_system
from store.io.links import RealDirectories, io_errors, open_existing
from store.io.lock_file import one_at_a_time

OPEN_FILES_MAX = 256
_ZEROS = bytes(1 << 20)
_WRITE_BACK_BYTES = 256 * 1024
_TEMPORARY = ".tmp"

Bytes = bytes | bytearray | memoryview
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _alone(
    method: Callable[Concatenate[Disk, _P], _T],
) -> Callable[Concatenate[Disk, _P], _T]:
    """Run one operation of a disk at a time: a descriptor in use is never closed by another."""

    @wraps(method)
    def operation(self: Disk, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._guard:
            return method(self, *args, **kwargs)

    return operation


class Disk:
    """Writes files of one root.

    Threads may share it: its operations run one at a time. ``sync`` makes durable what all of them
    have written; threads that write in parallel need a ``Disk`` each.
    """

    sync_threads: ClassVar[int] = 8  # one: primitives are called from the caller's thread alone

    def __init__(self, root: Path | None = None) -> None:
        self._guard = threading.RLock()
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._written: set[Path] = set()
        self._directories: set[Path] = set()
        self._unsynced: str | None = None  # how the paths begin that are not synced
        self._locked_root: Path | None = None  # the directory that is locked
        self._real = RealDirectories(root)
        self._entered: set[Path] = set()  # directories whose own entry is durable after sync

    @_alone
    def create(self, path: Path, size: int) -> None:
        """Create a zero-filled (sparse) file of ``size`` bytes, with the directories it needs."""
        with io_errors("create", path):
            self._enter(path.parent)
            fd = self._create(path)
            self._keep_open(path, fd)
            self._directories.add(path.parent)
            self._written.add(path)
            self._ftruncate(fd, size)

    @_alone
    def write(self, path: Path, offset: int, data: Bytes) -> None:
        """Write all of ``data`` at ``offset`` of an existing file."""
        with io_errors("write", path):
            fd = self._descriptor(path)
            self._written.add(path)
            self._write_all(fd, memoryview(data).cast("B"), offset)
            if len(data) >= _WRITE_BACK_BYTES and not self._is_synced(path):
                begin_write_back(fd, offset, len(data))

    @_alone
    def put(self, path: Path, pieces: Iterable[Bytes]) -> None:
        """Write a file whole or not at all, replacing what has its name; not synced."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}{_TEMPORARY}")
        with io_errors("write", path):
            self._enter(path.parent)
            fd = self._create_anew(temporary)
            try:
                at = 0
                for piece in pieces:
                    self._write_all(fd, memoryview(piece).cast("B"), at)
                    at += len(piece)
            finally:
                os.close(fd)
            self._rename(temporary, path)

    @_alone
    def zero(self, path: Path, begin: int) -> None:
        """Make every byte of an existing file from ``begin`` to its end zero.

        Holes stay holes, and what is zero is not written. All of it is durable after ``sync``, the
        file's name included, for the process that wrote it may not have come to that.
        """
        with io_errors("write", path):
            self._enter(path.parent)
            self._directories.add(path.parent)
            fd = self._descriptor(path)
            self._written.add(path)
            for at, end in data_extents(fd, begin, os.fstat(fd).st_size):
                for piece in range(at, end, len(_ZEROS)):
                    data = os.pread(fd, min(len(_ZEROS), end - piece), piece)
                    zeros = _ZEROS[: len(data)]
                    if data != zeros:
                        self._write_all(fd, memoryview(zeros), piece)

    @_alone
    def sync(self) -> None:
        """Make everything written so far durable."""
        self._sync_each(self._written, self._fsync)
        self._sync_each(self._directories, self._fsync_directory)

    @_alone
    def defer_sync(self, directory: Path | None) -> None:
        """Sync nothing below a directory from now on; None: sync all again.

        ``sync_all`` makes it durable at once.
        """
        self._unsynced = f"{directory}/" if directory is not None else None

    @_alone
    def sync_all(self, directory: Path) -> None:
        """Make durable whatever was written, by any process of this machine, on a file system."""
        with io_errors("sync", directory):
            fd = os.open(directory, os.O_RDONLY)
            try:
                self._syncfs(fd)
            finally:
                os.close(fd)

    @_alone
    def replace(self, path: Path, data: Bytes) -> None:
        """Replace a small file atomically and durably: temporary, sync, rename, sync."""
        temporary = path.with_name(path.name + _TEMPORARY)
        with io_errors("replace", path):
            self._enter(path.parent)
            fd = self._create_anew(temporary)
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

    @_alone
    def include_in_sync(self, directory: Path) -> None:
        """Let ``sync`` make durable what an earlier process changed in a directory, if it is there.

        A file that a killed process deleted is not seen any more, and may come back all the same.
        """
        if directory.is_dir():
            self._directories.add(directory)

    @_alone
    def move(self, source: Path, target: Path) -> None:
        """Rename a file or directory to a name not taken; durable after ``sync``.

        What was written below it must be synced already.
        """
        with io_errors("rename", source):
            self._real.check(source)
            self._enter(target.parent)
            self._forget_below(source)
            self._rename(source, target)
        self._directories |= {source.parent, target.parent}

    @_alone
    def remove(self, path: Path) -> None:
        """Delete a file if it is there; durable after ``sync``.

        Durable also if it is not there: the process that deleted it may not have come to sync.
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

    @_alone
    def remove_directory(self, path: Path) -> None:
        """Delete a directory if it is there and empty; durable after ``sync``."""
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
        for paths in (self._directories, self._entered, self._real.known):
            paths.discard(path)
        self._directories.add(path.parent)

    @_alone
    def remove_tree(self, path: Path) -> None:
        """Delete a directory and all below it, of a link the link; durable after ``sync``."""
        with io_errors("delete", path):
            self._real.check(path.parent)
            if path.is_symlink():
                self._unlink(path)
            else:
                self._remove_entries(path)
                self._rmdir(path)
        self._forget_below(path)
        self._directories.add(path.parent)

    @_alone
    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents if they are missing."""
        with io_errors("create", path):
            self._enter(path)

    @one_at_a_time
    @_alone
    def lock(self, path: Path, content: bytes) -> IO[bytes]:
        """Take a broker's lock: range [0, 1) of the file, which is made with ``content``.

        Closing *any* descriptor of the file drops a POSIX lock: nothing else in this process may
        open it. Raises RootInUseError if another process holds it.
        """
        lock_file.check_unlocked(path)
        self._locked_root = path.parent
        self._real = RealDirectories(path.parent)
        with io_errors("create", path):
            self._enter(path.parent)
            fd = open_existing(path) if os.path.lexists(path) else self._create(path)
        handle = open(path, "r+b", buffering=0, opener=lambda *_: fd)  # noqa: SIM115 - kept
        try:
            self._take_lock(handle, path, content)
        except BaseException:
            handle.close()
            raise
        lock_file.note(path, is_locked=True)
        return handle

    @one_at_a_time
    def unlock(self, handle: IO[bytes]) -> None:
        """Give a lock back."""
        lock_file.note(Path(handle.name), is_locked=False)
        handle.close()

    @_alone
    def close(self) -> None:
        """Close what is open; nothing is synced."""
        for path in list(self._open):
            self._close(path)

    # What the operations above are made of --------------------------------------------------------

    def _create_anew(self, temporary: Path) -> int:
        try:
            return self._create(temporary)
        except FileExistsError:
            self._unlink(temporary)  # a process ended before it could rename it
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
            # Always: its time is known by (``checkpoints.foreign_writer``), and who wrote it may have been
            # killed before it came to that.
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
        """Drop what is known of a directory that is gone, and of all that was in it."""
        for known in [p for p in self._open if p.is_relative_to(path)]:
            self._close(known)
        for paths in (self._written, self._directories, self._entered, self._real.known):
            paths.difference_update([p for p in paths if p.is_relative_to(path)])

    def _enter(self, path: Path) -> None:
        """Make a directory if it is missing; ``sync`` makes it durable in any case.

        One that is there may not be durable: the process that made it may have been killed before
        it came to sync. So all that leads from the root's parent to it is synced, once.
        """
        if path in self._entered:
            return
        self._real.check(path)
        if not path.is_dir():
            self._enter(path.parent)
            with suppress(FileExistsError):  # another process made it a moment ago
                self._mkdir(path)
            self._directories.add(path.parent)
        elif self._locked_root is not None and path.is_relative_to(self._locked_root):
            if path != self._locked_root:
                self._enter(path.parent)
                self._directories.add(path.parent)
            elif os.access(path.parent, os.W_OK | os.R_OK):  # else it is not ours to make
                self._directories.add(path.parent)
        else:
            return
        self._entered.add(path)

    def _is_synced(self, path: Path) -> bool:
        return self._unsynced is None or not str(path).startswith(self._unsynced)

    def _sync_each(self, paths: set[Path], fsync: Callable[[int], None]) -> None:
        """Sync files or directories, and forget them."""

        def sync(path: Path) -> None:
            with io_errors("sync", path):
                fd = os.open(path, os.O_RDONLY)
                try:
                    fsync(fd)
                finally:
                    os.close(fd)

        for_each(sync, sorted(filter(self._is_synced, paths)), self.sync_threads)
        paths.clear()

    # The primitives: all that changes the disk. Python continues what a signal interrupts. -------

    def _create(self, path: Path) -> int:
        """Create an empty file that is not there yet; return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def _ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write some of ``data``; return how many bytes."""
        return os.pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        os.fsync(fd)

    def _fsync_directory(self, fd: int) -> None:
        os.fsync(fd)

    def _syncfs(self, fd: int) -> None:
        sync_file_system(fd)

    def _rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def _unlink(self, path: Path) -> None:
        path.unlink()

    def _mkdir(self, path: Path) -> None:
        path.mkdir()

    def _rmdir(self, path: Path) -> None:
        path.rmdir()
