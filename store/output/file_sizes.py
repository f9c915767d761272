"""What the names and sizes of a store's files show about the settings they were made with.

A broker gives each file its full size when it creates it, and names it by its first offset. So the
size of most files is that of all, and a file of another size was cut off. Each function gets the
size that is assumed, and returns the one that the files show: None if a file has the assumed one,
or if they leave it open.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import FileIO
from itertools import islice, pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.errors import DamageError, StoreError
from store.index.file import is_index_file_name
from store.io.file_system import data_extents, open_regular
from store.io.mapped_file import is_mapped_file_name
from store.layout import (
    BLANK_RECORD,
    BLANK_SIZE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
    MAPPED_FILE_SIZE_MAX,
    RECORD_MIN_SIZE,
    index_entry_at,
    index_file_size,
    index_slot_at,
    struct_of,
)

_QUEUE_FILES_MAX = 64  # that are looked at: they are all of one size
_HEADER_READS = 3  # a broker that is running may be adding an entry
_HEADER = struct_of(INDEX_HEADER)
_ENTRY = struct_of(INDEX_ENTRY)
_SLOT = struct_of(INDEX_SLOT)
_SIZE = struct_of(BLANK_RECORD)  # the first fields of every record
_PHY_OFFSET_AT = 4  # in an entry of the index
_PIECE = 1 << 20


class _File(NamedTuple):
    path: Path
    base: int
    length: int


def log_file_size(paths: Iterable[Path], assumed: int, config: StoreConfig) -> int | None:
    """Return the size of a commit log's files.

    One file alone, shorter than assumed, was perhaps cut off by a copy. It was if its last record
    is: then it does not show the size.
    """
    files = sorted((f for path in paths for f in _mapped_files(path)), key=lambda f: f.base)
    size = _common_size(files, assumed)
    if size is None or not RECORD_MIN_SIZE + BLANK_SIZE <= size <= MAPPED_FILE_SIZE_MAX:
        return None
    if len(files) == 1 and size < assumed and _is_cut_off(files[0], config):
        return None
    return size


def queue_file_size(directory: Path, assumed: int, *, is_given: bool) -> int | None:
    """Return the size of the files of consume queues, or of their ext files.

    One file alone, shorter than the size that was given, was cut off.
    """
    files = list(_queue_files(directory))
    size = _common_size(files, assumed)
    if is_given and size is not None and size < assumed and len(files) == 1:
        return None
    return size


class IndexShape(NamedTuple):
    """The numbers of slots and entries of an index file."""

    slots: int
    entries: int


GivenShape = tuple[int | None, int | None]  # the numbers that are known


def index_shape(paths: Iterable[Path], given: GivenShape, default: IndexShape) -> IndexShape | None:
    """Return the slots and entries of a store's index files, ``given`` as far as that is known.

    The size of a file and one of the numbers give the other. Without either, a file of the size
    that ``default`` gives has its numbers. Else the last entry, which the header describes, is
    looked for, and the slot of its hash must lead to it.
    """
    files = [_File(path, 0, size) for path in paths if (size := _length(path)) > 0]
    assumed = index_file_size(given[0] or default.slots, given[1] or default.entries)
    if any(file.length == assumed for file in files):
        return None
    if None in given:
        for file in files:
            found = _completed(given, file.length)
            if found is not None:
                return found
    for file in files:
        found = _shape_of_entries(file)
        if found is not None:
            return found
    return None


def index_file_paths(directory: Path) -> list[Path]:
    """Return the paths of index files, none where the directory cannot be listed."""
    return [Path(entry.path) for entry in _entries(directory) if is_index_file_name(entry.name)]


# --- sizes ----------------------------------------------------------------------------------------


def _common_size(files: list[_File], assumed: int) -> int | None:
    """Return the size that most lengths, and distances between names, agree on."""
    if not files or any(file.length == assumed for file in files):
        return None
    votes = Counter(f.length for f in files if f.length > 0 and f.base % f.length == 0)
    for before, after in pairwise(files):
        distance = after.base - before.base
        if distance in votes or distance >= max(before.length, after.length) > 0:
            votes[distance] += 1
    first, second = [*votes.most_common(2), (0, 0), (0, 0)][:2]
    return first[0] if first[1] > second[1] else None


def _mapped_files(directory: Path) -> Iterator[_File]:
    for entry in _entries(directory):
        if is_mapped_file_name(entry.name):
            path = Path(entry.path)
            length = _length(path)
            if length > 0:
                yield _File(path, int(entry.name), length)


def _queue_files(directory: Path) -> Iterator[_File]:
    """Return some files of consume queues, or of their ext files."""
    queues = (queue for topic in _directories(directory) for queue in _directories(topic))
    found = (file for queue in queues for file in sorted(_mapped_files(queue)))
    return islice(found, _QUEUE_FILES_MAX)


def _directories(parent: Path) -> list[Path]:
    entries = (e for e in _entries(parent) if e.is_dir(follow_symlinks=False))
    return sorted(Path(e.path) for e in entries)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory; what cannot be listed is reported when it is read."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


def _length(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def _is_cut_off(file: _File, config: StoreConfig) -> bool:
    """Return whether a log's only file ends within a record."""
    alone = replace(config, mapped_file_size_commit_log=file.length)
    try:
        log = CommitLog([file.path.parent], alone)
        end = log.max_offset() - file.base
        if end >= file.length or not log.files:
            return False
        rest = log.files[0].read_at(end, min(BLANK_SIZE, file.length - end))
    except DamageError:
        return False
    except StoreError:
        return True
    if len(rest) < BLANK_SIZE:
        return any(rest)
    size, _ = _SIZE.unpack(rest)
    return bool(size > file.length - end)


# --- the index ------------------------------------------------------------------------------------


def _completed(given: GivenShape, length: int) -> IndexShape | None:
    """Return the shape of a file of which one number is given, None if none fits."""
    slots, entries = given
    rest, odd = length - INDEX_HEADER_SIZE, 0
    if slots is not None:
        entries, odd = divmod(rest - slots * INDEX_SLOT_SIZE, INDEX_ENTRY_SIZE)
    elif entries is not None:
        slots, odd = divmod(rest - entries * INDEX_ENTRY_SIZE, INDEX_SLOT_SIZE)
    if odd or slots is None or entries is None or slots < 1 or entries <= 1:
        return None
    return IndexShape(slots, entries)


def _shape_of_entries(file: _File) -> IndexShape | None:
    try:
        with FileIO(open_regular(file.path)) as f:
            for _ in range(_HEADER_READS):
                found = set(_shapes(f.fileno(), file.length))
                if len(found) == 1:
                    return found.pop()
    except OSError:
        pass
    return None


def _shapes(fd: int, length: int) -> Iterator[IndexShape]:
    """Yield the shapes with which the first and the last entry are where they must be."""
    head = os.pread(fd, INDEX_HEADER_SIZE, 0)
    if len(head) < INDEX_HEADER_SIZE:
        return
    _, _, begin, end, _, count = _HEADER.unpack(head)
    last = count - 1
    if last < 1 or end <= 0:
        return
    pattern = _ENTRY.pack(0, end, 0, 0)[_PHY_OFFSET_AT : _PHY_OFFSET_AT + 8]
    for at in _places(fd, pattern, index_entry_at(last, 1) + _PHY_OFFSET_AT, length):
        slots, odd = divmod(at - _PHY_OFFSET_AT - index_entry_at(last, 0), INDEX_SLOT_SIZE)
        entries, rest = divmod(length - index_entry_at(0, slots), INDEX_ENTRY_SIZE)
        if odd or rest or slots < 1 or entries < count:
            continue
        first_entry = _read(fd, _ENTRY, index_entry_at(1, slots))
        last_entry = _read(fd, _ENTRY, index_entry_at(last, slots))
        slot = last_entry[0] % slots
        if first_entry[1] == begin and _read(fd, _SLOT, index_slot_at(slot))[0] == last:
            yield IndexShape(slots, entries)


def _read(fd: int, fields: Struct, at: int) -> tuple[int, ...]:
    return fields.unpack(os.pread(fd, fields.size, at))


def _places(fd: int, pattern: bytes, begin: int, length: int) -> Iterator[int]:
    """Yield the positions of a pattern in the data of a file, which may have holes."""
    for first, stop in data_extents(fd, begin, length):
        for at in range(first, stop, _PIECE):
            data = os.pread(fd, min(_PIECE + len(pattern) - 1, stop - at), at)
            found = data.find(pattern)
            while found >= 0:
                yield at + found
                found = data.find(pattern, found + 1)
