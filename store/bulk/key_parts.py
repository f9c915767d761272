"""Index keys of a part, kept in a file until all parts are known, and their numbers in the index.

An index file holds ``maxIndexNum - 1`` entries, and entries are numbered in log order. So where
each index file begins follows from how many keys each part has (format notes §8.4).

A part's file: store times ``<i8``, sizes ``<i4``, ends of each record's keys ``<i4``, key hashes
``<i4``, one array after the other. The records of a part lie one behind the other from its begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from store.dispatch_request import DispatchRequests
from store.errors import DamageError, StoreIOError
from store.kernels.index import PutInput
from store.state_codec import Count, Offset, Position

NO_OFFSET = -1
_PARTS_MAX = 8  # of an index file: the last goes through the keys of all before it


@dataclass(frozen=True, slots=True)
class PartKeys:
    """How many records and keys a part has, and the offsets of its first and last record.

    ``last_with_key`` is that of the last record with a key. They are -1 where there is none.
    """

    begin: Offset
    records: Count = 0
    keys: Count = 0
    first_offset: Position = NO_OFFSET
    last_offset: Position = NO_OFFSET
    last_with_key: Position = NO_OFFSET


@dataclass(frozen=True, slots=True)
class KeySource:
    """A part's file of keys, and the number of its first key in the log."""

    path: str
    part: PartKeys
    first_key: int


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Entries of one index file: those of the log's keys ``[begin_key, end_key)``.

    ``sources`` hold them, and the keys before them from the file's ``first_key`` on, and the one
    before that. ``is_last``: whoever builds this part knows the file's slots and header.
    """

    name: str
    first_key: int
    begin_key: int
    end_key: int
    is_last: bool
    sources: tuple[KeySource, ...]


def summarise(begin: int, requests: Sequence[DispatchRequests]) -> PartKeys:
    """Return what a part has."""
    filled = [r for r in requests if len(r)]
    if not filled:
        return PartKeys(begin)
    last_with_key = NO_OFFSET
    for request in reversed(filled):
        if len(request.key_hash):
            row = int(np.searchsorted(request.key_end, len(request.key_hash)))
            last_with_key = int(request.commit_log_offset[row])
            break
    return PartKeys(
        begin=begin,
        records=sum(len(r) for r in filled),
        keys=sum(len(r.key_hash) for r in filled),
        first_offset=int(filled[0].commit_log_offset[0]),
        last_offset=int(filled[-1].commit_log_offset[-1]),
        last_with_key=last_with_key,
    )


def encode_keys(requests: Sequence[DispatchRequests]) -> list[bytes]:
    """Encode what an index needs of a part."""
    at = [0, *accumulate(len(r.key_hash) for r in requests)]
    ends = [r.key_end + np.int32(k) for k, r in zip(at[:-1], requests, strict=True)]
    return [
        *(r.store_timestamp.astype("<i8").tobytes() for r in requests),
        *(r.size.astype("<i4").tobytes() for r in requests),
        *(end.astype("<i4").tobytes() for end in ends),
        *(r.key_hash.astype("<i4").tobytes() for r in requests),
    ]


def read_keys(source: KeySource) -> PutInput:
    """Read a part's file. Raises DamageError if it is not as it was written, StoreIOError."""
    part, path = source.part, Path(source.path)
    try:
        with path.open("rb") as f:
            stamps = np.fromfile(f, "<i8", part.records)
            sizes = np.fromfile(f, "<i4", part.records)
            ends = np.fromfile(f, "<i4", part.records)
            hashes = np.fromfile(f, "<i4", part.keys)
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    if len(hashes) != part.keys or (part.records and ends[-1] != part.keys):
        raise DamageError(path, 0, "the part is not as it was written", "start the rebuild again")
    offsets = np.empty(part.records, np.int64)
    offsets[:1] = part.begin
    np.cumsum(sizes[:-1], dtype=np.int64, out=offsets[1:])
    offsets[1:] += part.begin
    return PutInput(offsets, stamps, np.zeros(part.records, np.uint8), ends, hashes)


def count_index_files(parts: Sequence[PartKeys], entries_max: int) -> int:
    """Return how many index files a log has; its parts are given in order.

    Java parity: ``buildIndex`` gets a file with room before it looks at a record's keys. So a
    record without keys begins a file too: the first, and the next if the last one is full.
    """
    keys = sum(part.keys for part in parts)
    if not any(part.records for part in parts):
        return 0
    files = -(-keys // entries_max)
    last_record = max(part.last_offset for part in parts)
    last_with_key = max(part.last_with_key for part in parts)
    is_full = keys % entries_max == 0
    return files + 1 if is_full and last_record > last_with_key else files


def plan_index(
    sources: Sequence[KeySource], names: Sequence[str], entries_max: int, cores: int
) -> list[IndexPart]:
    """Return which keys go in which index file; ``names`` has one name a file.

    Where there are fewer files than cores, a file is built in parts, cut where sources end. What
    the entries before a part leave in the slots has to be found once more for each, which is
    little beside writing entries.
    """
    total = sum(source.part.keys for source in sources)
    parts = []
    for number, name in enumerate(names):
        first = number * entries_max
        end = max(min(first + entries_max, total), first)
        bounds = _cut_keys(sources, first, end, min(-(-cores // len(names)), _PARTS_MAX))
        for begin_key, end_key in pairwise(bounds):
            wanted = tuple(
                s
                for s in sources
                if s.part.keys and s.first_key < end_key and s.first_key + s.part.keys >= first
            )
            parts.append(IndexPart(name, first, begin_key, end_key, end_key == end, wanted))
    return parts


def _cut_keys(sources: Sequence[KeySource], first: int, end: int, count: int) -> list[int]:
    """Return where up to ``count`` about equal parts of ``[first, end)`` begin, and the end."""
    bounds = [first]
    for source in sources:
        enough = first + len(bounds) * (end - first) / count
        if bounds[-1] < source.first_key < end and source.first_key >= enough:
            bounds.append(source.first_key)
    return [*bounds, end]


def number_keys(parts: Sequence[tuple[str, PartKeys]]) -> list[KeySource]:
    """Return the keys of parts, given in order with their files, with their numbers in the log."""
    at = [0, *accumulate(part.keys for _, part in parts)]
    return [KeySource(path, part, k) for (path, part), k in zip(parts, at[:-1], strict=True)]
