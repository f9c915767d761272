"""Mapped files: a stream divided into files of one size, each named by its first offset.

They are opened read-only. A file is mapped at first use; the map is dropped with the object, or
after many other files have been mapped, because a map holds a descriptor.

Bytes of a map may vanish: if its file is truncated in place, or in holes, for which no page can be
allocated on a full file system in memory (tmpfs). Zeros may be read in their place, until the block
of ``intact`` raises. Holes are valid, so do not read them through a map: ``data_end`` returns where
the last one begins.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import wraps
from io import FileIO
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from store.errors import RESTORE, DamageError, StoreIOError, VanishedError
from store.io.file_system import data_extents, open_regular
from store.io.guarded_map import GuardedMap, fault_count, fork_safe_lock, last_fault
from store.io.listing import DirectoryWatch, list_files
from store.layout import MAPPED_FILE_NAME_DIGITS

_P = ParamSpec("_P")
_T = TypeVar("_T")
_EMPTY: NDArray[np.uint8] = np.empty(0, np.uint8)
_MAPS_MAX = 400
_PIECE_MAX = 1 << 20
_VANISHED_HINT = f"the file was truncated, or its file system is full; {RESTORE}"


def file_name(base: int) -> str:
    """Return the name of the file that begins at ``base`` (``UtilAll.offset2FileName``)."""
    return f"{base:0{MAPPED_FILE_NAME_DIGITS}d}"


@dataclass(slots=True, weakref_slot=True, eq=False)
class MappedFile:
    """One file of a stream: its path, its first offset, and its length when listed."""

    path: Path
    base: int
    length: int
    inode: int = 0
    is_sparse: bool = False  # without read-ahead, see ``MappedFileQueue``
    is_emptied: bool = False  # it had bytes when it was listed before
    problem: StoreIOError | None = None  # of an entry that is no readable regular file
    checked_at: int = field(default=-1, repr=False)  # the refresh that last checked the length
    _map: GuardedMap | None = field(default=None, repr=False)
    _view: NDArray[np.uint8] | None = field(default=None, repr=False)

    def view(self) -> NDArray[np.uint8]:
        """Return the file's bytes as a read-only map."""
        view = self._view  # read once: another thread may drop it, see ``_keep_mapped``
        if view is None:
            view = _EMPTY if self.length == 0 else np.frombuffer(self.map(), np.uint8)
            if len(view) == self.length:
                self._view = view
        return view

    def map(self) -> GuardedMap:
        """Return the map of a non-empty file. Slices of it are copies."""
        opened = self._map  # read once, like the view
        if opened is None:
            self._check_readable()
            opened = _open_map(self.path, self.inode)
            if self.is_sparse:
                opened.madvise(mmap.MADV_RANDOM)
            if len(opened) == self.length:  # else it was truncated, and may become whole again
                self._map = opened
                _keep_mapped(self)
        return opened

    def pinned(self) -> MappedFile:
        """Return a copy that keeps its map, also when many others have been mapped since."""
        return replace(self, _map=self.map(), _view=self.view())

    def data_end(self) -> int:
        """Return where the file's trailing hole begins, else its end. Raises StoreIOError."""
        with self._opened() as fd:
            return max((end for _, end in data_extents(fd, 0, self.length)), default=0)

    def first_hole(self) -> int:
        """Return where the file's first hole begins, else its end. Raises StoreIOError."""
        with self._opened() as fd:
            begin, end = next(data_extents(fd, 0, self.length), (0, 0))
        return end if begin == 0 else 0

    def data_ranges(self, at: int) -> list[tuple[int, int]]:
        """Return the ranges at or after a position that are not holes. Raises StoreIOError."""
        with self._opened() as fd:
            return list(data_extents(fd, at, self.length))

    def read_at(self, at: int, size: int) -> bytes:
        """Return bytes that may be in a hole. Raises StoreIOError."""
        with self._opened() as fd:
            data = os.pread(fd, size, at)
            if len(data) < size:
                raise OSError(f"the file ends before byte {at + size}")
        return data

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file without its map; convert an OSError of the block into a StoreIOError."""
        self._check_readable()
        try:
            with _open_same(self.path, self.inode) as f:
                yield f.fileno()
        except OSError as e:
            raise StoreIOError("read", self.path, e) from e

    def read_ahead(self, end: int) -> None:
        """Enable read-ahead below ``end``; an ``is_sparse`` file has it disabled."""
        if end > 0:
            self.map().madvise(mmap.MADV_NORMAL, 0, end)

    def drop(self) -> None:
        """Drop the map; it is unmapped once its last user has released it."""
        self._map = self._view = None

    def drop_unless_intact(self) -> None:
        """Drop the map if zeros stand in for bytes of it that vanished."""
        opened = self._map
        if opened is not None and not opened.is_intact():
            self.drop()
            self.checked_at = -1

    def _check_readable(self) -> None:
        """Raise StoreIOError if the entry is no readable regular file."""
        if self.problem is not None:
            raise copy(self.problem)  # each raise adds a traceback, and threads share the file

    def check_length(self) -> None:
        """Raise DamageError if the file was truncated or grew since it was listed."""
        if not self.length:
            return
        opened = self.map()
        length = opened.size() if len(opened) == self.length else len(opened)
        if length != self.length:
            reason = f"the file has {length} bytes, but had {self.length} when it was listed"
            raise DamageError(self.path, self.base, reason)


_MAPPED: deque[ReferenceType[MappedFile]] = deque()
_MAPPED_GUARD = fork_safe_lock()


def _keep_mapped(file: MappedFile) -> None:
    """Register a mapped file; drop the oldest maps of this process beyond ``_MAPS_MAX``.

    Another thread may be using the oldest file: that thread holds a reference to the map.
    """
    with _MAPPED_GUARD:
        _MAPPED.append(ref(file))
        while len(_MAPPED) > _MAPS_MAX:
            oldest = _MAPPED.popleft()()
            if oldest is not None:
                oldest.drop()


class intact:  # noqa: N801 - reads like a function
    """Read maps within this block, or this decorated function; accept what was read after it.

    Raises VanishedError if bytes of a map vanished meanwhile, whatever else was raised, and drops
    the maps concerned. The count of such reads is the process's, so the map may be one of another
    thread.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = fault_count()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if fault_count() != self._before and (error is None or isinstance(error, Exception)):
            raise vanished() from error

    def __call__(self, read: Callable[_P, _T]) -> Callable[_P, _T]:
        """Decorate a function."""

        @wraps(read)
        def intact_read(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with intact():
                return read(*args, **kwargs)

        return intact_read


def each_intact(items: Iterator[_T]) -> Iterator[_T]:
    """Yield items, each of which is made within ``intact``. Raises VanishedError."""
    while True:
        with intact():
            item = next(items, None)
        if item is None:
            return
        yield item


def vanished() -> VanishedError:
    """Drop the maps in which zeros stand in for vanished bytes; return the error of such a read."""
    path, at = last_fault()
    with _MAPPED_GUARD:
        for file in filter(None, (known() for known in _MAPPED)):
            file.drop_unless_intact()
    base = int(Path(path).name) if is_mapped_file_name(Path(path).name) else 0
    reason = "the bytes vanished while they were read"
    return VanishedError(path, base + at, reason, _VANISHED_HINT)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Map a file read-only. Raises StoreIOError."""
    try:
        if path.stat().st_size == 0:
            return _EMPTY
    except OSError as e:
        raise StoreIOError("map", path, e) from e
    return np.frombuffer(_open_map(path), np.uint8)


def _open_map(path: Path, inode: int = 0) -> GuardedMap:
    try:
        with _open_same(path, inode) as f:
            return GuardedMap(f.fileno(), str(path))
    except (OSError, ValueError) as e:  # ValueError: the file is now empty
        error = e if isinstance(e, OSError) else OSError(str(e))
        raise StoreIOError("map", path, error) from e


def _open_same(path: Path, inode: int) -> FileIO:
    """Open a file, which must still have ``inode`` (0: any). Raises OSError."""
    file = FileIO(open_regular(path))
    if inode and os.fstat(file.fileno()).st_ino != inode:
        file.close()
        raise FileNotFoundError(errno.ENOENT, "another file has this name now")
    return file


def is_mapped_file_name(name: str) -> bool:
    """Return whether a name is a mapped file's."""
    return len(name) == MAPPED_FILE_NAME_DIGITS and name.isascii() and name.isdigit()


def data_pieces(path: Path, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges between ``begin`` and ``end`` that may hold data, of at most 1 MiB each.

    Holes, which read as zeros, are skipped. Raises StoreIOError.
    """
    try:
        with FileIO(open_regular(path)) as f:
            for first, last in data_extents(f.fileno(), begin, end):
                for at in range(first, last, _PIECE_MAX):
                    yield at, min(at + _PIECE_MAX, last)
    except OSError as e:
        raise StoreIOError("read", path, e) from e


class MappedFileQueue:
    """The files of one stream in offset order, possibly from several directories.

    Not thread-safe.

    ``are_sparse``: files may end in holes, so read-ahead is off. It would fill the page cache with
    the zero pages of holes: a search in a file of 6 MB leaves 5 MB there, which with thousands of
    queues evicts everything else.

    ``is_log``: a log's files may be symbolic links, and one that is no readable regular file does
    not keep the others from being read: it is listed with its ``problem``, which reads of it raise.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        file_size: int,
        *,
        are_sparse: bool = False,
        is_log: bool = False,
    ) -> None:
        self.directories = tuple(directories)
        self.file_size = file_size
        self._are_sparse = are_sparse
        self._is_log = is_log
        self.files: list[MappedFile] = []
        self._bases: list[int] = []
        self._by_base: dict[int, MappedFile] = {}
        self._is_whole = True
        self._watch = DirectoryWatch(self.directories)
        self._refreshes = 0
        self.refresh()

    def refresh_if_changed(self) -> bool:
        """Call ``refresh`` if the directories may have changed; return whether it was called.

        If only the length of a full-size file has changed, ``checked`` alone detects it.
        """
        self._refreshes += 1
        may_have_changed = self._watch.may_have_changed()
        if self._is_whole and not may_have_changed:
            return False
        self.refresh()
        if self._is_whole:  # else a file may grow, which does not change its directory
            self._watch.confirm_listing()
        return True

    def refresh(self) -> None:
        """List the directories again; keep the maps of unchanged files.

        Raises DamageError for a file whose name is not a mapped file's or not a multiple of the
        file size, StoreIOError if a directory cannot be read, or, except for a log, if an entry
        with a mapped file's name is not a readable regular file.
        """
        self._refreshes += 1
        known = {f.path: f for f in self.files}
        found = [
            self._listed(path, status, known.get(path))
            for directory in self.directories
            for path, status in list_files(
                directory, is_mapped_file_name, follows_links=self._is_log
            )
        ]
        self._is_whole = all(f.length == self.file_size and f.problem is None for f in found)
        found.sort(key=lambda f: f.base)
        while found and found[-1].length == 0 and not found[-1].is_emptied:
            found.pop()  # still being created; a broker skips it too
        self.files = found
        self._bases = [f.base for f in found]
        self._by_base = {f.base: f for f in found}

    def find(self, offset: int) -> MappedFile | None:
        """Return the file whose range contains ``offset``, or None."""
        return self._by_base.get(offset - offset % self.file_size)

    def checked(self, base: int) -> MappedFile | None:
        """Return the file that begins at ``base``, or None.

        The length is checked once after each refresh: reading beyond the end of a truncated file
        raises a signal, not an exception. Raises DamageError, StoreIOError.
        """
        file = self._by_base.get(base)
        if file is not None and file.checked_at != self._refreshes:
            file.check_length()
            file.checked_at = self._refreshes
        return file

    def map_at(self, base: int) -> GuardedMap | None:
        """Return the map of the file that begins at ``base``, checked as by ``checked``."""
        file = self._by_base.get(base)
        if file is None:
            return None
        if file.checked_at != self._refreshes:
            self.checked(base)
        return file.map()

    def next_base(self, offset: int) -> int | None:
        """Return the base of the first file that begins after ``offset``, or None."""
        at = bisect_right(self._bases, offset)
        return self._bases[at] if at < len(self._bases) else None

    def _listed(
        self, path: Path, status: os.stat_result | StoreIOError, old: MappedFile | None
    ) -> MappedFile:
        """Return the file of an entry: the old one unless it is new, has grown or was replaced."""
        if isinstance(status, StoreIOError):
            if not self._is_log:
                raise status
            return MappedFile(path, self._base_of(path), self.file_size, problem=status)
        length, inode = status.st_size, status.st_ino
        if old is not None and (old.length, old.inode) == (length, inode):
            return old
        is_emptied = length == 0 and old is not None and old.inode == inode
        return MappedFile(path, self._base_of(path), length, inode, self._are_sparse, is_emptied)

    def _base_of(self, path: Path) -> int:
        if not is_mapped_file_name(path.name):
            raise DamageError(path, 0, "not named as a mapped file (20 digits)")
        base = int(path.name)
        if base % self.file_size:
            raise DamageError(
                path,
                base,
                f"does not begin at a multiple of the file size {self.file_size}",
                "pass the broker.conf that this store was written with (--broker-conf)",
            )
        return base
