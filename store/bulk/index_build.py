"""A part of an index file, built from the keys of the log's parts, as a dispatch would put them.

A file needs of the one before only the offset and store time of its last entry, which stand in its
header until its own first entry, and from which that entry's time counts (format notes §8.4).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.bulk.key_parts import IndexPart, KeySource, read_keys
from store.config import StoreConfig
from store.disk import Disk
from store.index_service import encode_header
from store.kernels.index import (
    BEGIN_PHY,
    BEGIN_TIMESTAMP,
    END_PHY,
    END_TIMESTAMP,
    ENTRY_WORDS,
    INDEX_COUNT,
    SLOTS_PER_PAGE,
    PutInput,
    PutState,
    put_keys,
)
from store.marks import INDEX_HEADER_FIELDS
from store.state_codec import Count

_NO_ENTRIES = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class BuiltIndexPart:
    """An index file up to the end of a part: entries, counted from 1, and the end's store time."""

    count: Count
    begin_timestamp: int  # that of the file before's end, where it has no entry
    end_timestamp: int


def build_index_part(
    plan: IndexPart, directory: Path, config: StoreConfig, disk: Disk
) -> BuiltIndexPart:
    """Write a part's entries, and with the last ones slots and header; durable after a sync.

    Raises StoreIOError, DamageError.
    """
    path = str(directory / plan.name)
    size = layout.index_file_size(config.max_hash_slot_num, config.max_index_num)
    header = np.zeros(INDEX_HEADER_FIELDS, np.int64)
    header[INDEX_COUNT] = 1
    slots = np.zeros(config.max_hash_slot_num, np.int32)
    pages = np.zeros(-(-len(slots) // SLOTS_PER_PAGE), np.uint8)
    room = max((_count(source, plan) for source in plan.sources), default=0)
    buffers = [np.empty(room * ENTRY_WORDS, np.uint32) for _ in range(2)]
    with ThreadPoolExecutor(1) as writer:  # entries are written while the next are put
        writing: Future[None] | None = None
        for source in plan.sources:
            records = read_keys(source)
            _prefill(header, source, records, plan.first_key)
            if plan.first_key < plan.begin_key > source.first_key:  # another part's entries
                _put(PutState(header, slots, pages, _NO_ENTRIES), source, records, plan, config)
                continue
            at = layout.index_entry_at(int(header[INDEX_COUNT]), config.max_hash_slot_num)
            state = PutState(header, slots, pages, buffers[0])
            entries = _put(state, source, records, plan, config)
            if writing is not None:
                writing.result()
            buffers.reverse()
            if len(entries):
                writing = writer.submit(disk.lay, path, size, at, entries.data)
        if writing is not None:
            writing.result()
    if plan.is_last:
        for begin, end in _runs(pages):
            data = slots[begin * SLOTS_PER_PAGE : end * SLOTS_PER_PAGE].astype(layout.INDEX_SLOT)
            disk.lay(path, size, layout.index_slot_at(begin * SLOTS_PER_PAGE), data.data)
        disk.lay(path, size, 0, encode_header(header, config))
    return BuiltIndexPart(
        int(header[INDEX_COUNT]), int(header[BEGIN_TIMESTAMP]), int(header[END_TIMESTAMP])
    )


def _prefill(
    header: NDArray[np.int64], source: KeySource, records: PutInput, first_key: int
) -> None:
    """Begin the header where the file before ends, if that is in this source.

    Java parity: the constructor sets both ends to those of the file before, if they are positive.
    """
    before = first_key - 1 - source.first_key
    if not 0 <= before < source.part.keys:
        return
    row = int(np.searchsorted(records.key_end, before, side="right"))
    offset, stamp = int(records.commit_log_offset[row]), int(records.store_timestamp[row])
    if offset > 0:
        header[BEGIN_PHY] = header[END_PHY] = offset
    if stamp > 0:
        header[BEGIN_TIMESTAMP] = header[END_TIMESTAMP] = stamp


def _count(source: KeySource, plan: IndexPart) -> int:
    """Return how many keys of a source belong in the file."""
    first = max(plan.first_key, source.first_key)
    return max(min(plan.end_key, source.first_key + source.part.keys) - first, 0)


def _put(
    state: PutState,
    source: KeySource,
    records: PutInput,
    plan: IndexPart,
    config: StoreConfig,
) -> NDArray[np.uint32]:
    """Put the keys of one source that belong in the file; return their entries' bytes."""
    count = _count(source, plan)
    if count:
        first = max(plan.first_key - source.first_key, 0)
        row = int(np.searchsorted(records.key_end, first, side="right"))
        limits = (config.max_index_num, config.counts_every_entry_as_slot)
        put_keys(state, records, (row, first), limits)
    return state.entries[: count * ENTRY_WORDS]


def _runs(pages: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of pages that are set."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], pages, [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
