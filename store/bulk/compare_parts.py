"""Parts compared with the files of a root, where all must be as a dispatch of the log leaves it.

Each function tells whether something is exactly so. What differs, and where, is for the comparison
in log order (``store.compare``) to say, which knows what else a root may hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.bulk.log_parts import LogPart, PartScanner
from store.bulk.queue_parts import PartQueues, PlacedPart, place_part
from store.config import StoreConfig
from store.consume_queue_store import QueueKey, pre_fill
from store.differences import first_data
from store.dispatch_request import DispatchRequests
from store.errors import StoreError
from store.index_file import list_index_files
from store.index_service import (
    encode_header,
    entries_of,
    map_index_file,
    read_header,
    read_slots,
)
from store.kernels.index import (
    BEGIN_PHY,
    BEGIN_TIMESTAMP,
    END_PHY,
    END_TIMESTAMP,
    INDEX_COUNT,
    SLOT_COUNT,
    SLOTS_PER_PAGE,
    PutInput,
    PutState,
    put_keys,
)
from store.mapped_file import file_name, map_file
from store.marks import INDEX_HEADER_FIELDS

_CHUNK_ENTRIES = 1 << 20
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """What a part came to: ``is_equal`` if its units and entries lie as they must.

    ``first_entry`` is the number, from 0, of its first entry in the whole index.
    """

    begin: int
    end: int
    messages: int
    queues: PartQueues
    first_entry: int
    entries: int
    is_equal: bool


class IndexEntries:
    """The index files of a root as one row of entries, numbered from 0 in log order."""

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.paths = list_index_files(root / layout.INDEX_DIR)
        self._config = config
        self._per_file = config.max_index_num - 1
        self._known: tuple[int, NDArray[np.int64], NDArray[np.void]] | None = None

    def file(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Return a file's header and entries. Raises StoreError."""
        if self._known is None or self._known[0] != number:
            view = map_index_file(self.paths[number], self._config)
            self._known = number, read_header(view), entries_of(view, self._config)
        return self._known[1:]

    def find(self, offset: int) -> int:
        """Return the number of the first entry of a record at or behind an offset."""
        low, high = 0, self.count()
        while low < high:
            middle = (low + high) // 2
            entry = self.file(middle // self._per_file)[1][middle % self._per_file]
            if int(entry["phy_offset"]) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def count(self) -> int:
        """Return how many entries there are, if all files but the last are full."""
        if not self.paths:
            return 0
        return (len(self.paths) - 1) * self._per_file + len(self.file(len(self.paths) - 1)[1])

    def pieces(self, first: int, count: int) -> Iterator[tuple[int, slice, int]]:
        """Yield (file, entries in it, how many entries lie before) of a row of entries."""
        done = 0
        while done < count:
            number, at = divmod(first + done, self._per_file)
            size = min(self._per_file - at, count - done)
            yield number, slice(at, at + size), done
            done += size


def compare_part(
    part: LogPart, scanner: PartScanner, root: Path, config: StoreConfig
) -> ComparedPart:
    """Compare a part's units of continuous queues, and its index entries."""
    scanned = scanner.scan(part)
    placed = place_part(scanned.requests, config.mapped_file_size_consume_queue)
    is_equal = scanned.fault is None and _has_units(placed, root, config)
    first = entries = 0
    if config.message_index_enable:
        entries = sum(len(r.key_hash) for r in scanned.requests)
        try:
            index = IndexEntries(root, config)
            first = index.find(scanned.begin)
            is_equal = is_equal and _has_entries(scanned.requests, index, first)
        except (StoreError, IndexError):
            is_equal = False
    messages = sum(len(r) for r in scanned.requests)
    return ComparedPart(
        scanned.begin, scanned.end, messages, placed.queues, first, entries, is_equal
    )


def has_queue_files(root: Path, queue: tuple[QueueKey, int, int], config: StoreConfig) -> bool:
    """Tell whether a queue has the files of its span, in bytes, and nothing before or behind it."""
    (topic, queue_id), first, end = queue
    directory = root / layout.CONSUME_QUEUE_DIR / topic / str(queue_id)
    size = config.mapped_file_size_consume_queue
    begin = first - first % size
    names = [file_name(base) for base in range(begin, end, size)]
    with os.scandir(directory) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries}
    if sizes != dict.fromkeys(names, size):
        return False
    if first > begin:
        fill = map_file(directory / names[0])[: first - begin]
        if fill.tobytes() != pre_fill(len(fill) // layout.CQ_UNIT_SIZE):
            return False
    if end % size == 0:
        return True
    last = directory / names[-1]
    return first_data(last, map_file(last), end % size) < 0


def is_index_file(root: Path, number: int, config: StoreConfig) -> bool:
    """Tell whether a file's chains, slots and counts are those of its entries, and all else zero.

    Of the header, what entries do not tell is compared with their records (``compare_part``).
    """
    index = IndexEntries(root, config)
    try:
        view = map_index_file(index.paths[number], config)
        header, entries = index.file(number)
        before = index.file(number - 1)[0] if number else None
    except StoreError:
        return False
    derived = np.zeros(INDEX_HEADER_FIELDS, np.int64)
    derived[INDEX_COUNT] = 1
    slots = np.zeros(config.max_hash_slot_num, np.int32)
    limits = (config.max_index_num, config.counts_every_entry_as_slot)
    for at in range(0, len(entries), _CHUNK_ENTRIES):
        chunk = entries[at : at + _CHUNK_ENTRIES]
        out = np.empty(chunk.nbytes, np.uint8)
        state = PutState(derived, slots, np.zeros(-(-len(slots) // SLOTS_PER_PAGE), np.uint8), out)
        put_keys(state, _as_input(chunk), (0, 0), limits)
        if not np.array_equal(out.view(layout.INDEX_ENTRY)["prev_index"], chunk["prev_index"]):
            return False
    if not len(entries) and before is not None:  # it begins as the file before ends
        for begin, end in ((BEGIN_PHY, END_PHY), (BEGIN_TIMESTAMP, END_TIMESTAMP)):
            derived[begin] = derived[end] = max(int(before[end]), 0)
    elif len(entries):
        for field in (BEGIN_PHY, END_PHY, BEGIN_TIMESTAMP, END_TIMESTAMP):
            derived[field] = header[field]
    first, slots_end = layout.INDEX_HEADER_SIZE, layout.index_slot_at(config.max_hash_slot_num)
    unused = view[slots_end : layout.index_entry_at(1, config.max_hash_slot_num)]
    end = layout.index_entry_at(int(header[INDEX_COUNT]), config.max_hash_slot_num)
    return (
        int(derived[SLOT_COUNT]) == int(header[SLOT_COUNT])
        and view[:first].tobytes() == encode_header(derived, config)
        and np.array_equal(slots, read_slots(index.paths[number], config))
        and not unused.any()
        and first_data(index.paths[number], view, end) < 0
    )


def _has_units(part: PlacedPart, root: Path, config: StoreConfig) -> bool:
    directory, size = root / layout.CONSUME_QUEUE_DIR, config.mapped_file_size_consume_queue
    for (topic, queue_id), at, data in part.pieces(size):
        path = f"{directory}/{topic}/{queue_id}/{file_name(at - at % size)}"
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            if os.pread(fd, len(data), at % size) != data:
                return False
        finally:
            os.close(fd)
    return True


def _has_entries(requests: Sequence[DispatchRequests], index: IndexEntries, first: int) -> bool:
    """Tell whether the entries of records lie from entry ``first`` of the index on."""
    for request in requests:
        keys = np.diff(request.key_end, prepend=np.int32(0))
        offsets = np.repeat(request.commit_log_offset, keys)
        stamps = np.repeat(request.store_timestamp, keys)
        for number, where, done in index.pieces(first, len(offsets)):
            if number >= len(index.paths):
                return False
            span = slice(done, done + where.stop - where.start)
            wanted = (request.key_hash[span], offsets[span], stamps[span])
            if not _is_piece(index, number, where, wanted):
                return False
        first += len(offsets)
    return True


def _is_piece(
    index: IndexEntries,
    number: int,
    where: slice,
    wanted: tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]],
) -> bool:
    """Compare some entries of a file, and its header where they are its first or its last."""
    hashes, offsets, stamps = wanted
    before = index.file(number - 1)[0] if number and where.start == 0 else None
    header, entries = index.file(number)
    actual = entries[where]
    if len(actual) < len(hashes):
        return False
    seconds = time_diffs(stamps, int(header[BEGIN_TIMESTAMP]))
    if where.start == 0:  # its time counts from the end of the file before
        begin = int(before[END_TIMESTAMP]) if before is not None else 0
        seconds[:1] = time_diffs(stamps[:1], begin)
        if (int(header[BEGIN_PHY]), int(header[BEGIN_TIMESTAMP])) != (offsets[0], stamps[0]):
            return False
    ends = (int(header[END_PHY]), int(header[END_TIMESTAMP]))
    if where.stop == len(entries) and ends != (offsets[-1], stamps[-1]):
        return False
    return (
        np.array_equal(actual["key_hash"], hashes)
        and np.array_equal(actual["phy_offset"], offsets)
        and np.array_equal(actual["time_diff_seconds"], seconds)
    )


def time_diffs(stamps: NDArray[np.int64], begin: int) -> NDArray[np.int64]:
    """Return what entries of such store times have as time differences (format notes §8.4)."""
    difference = stamps - np.int64(begin)
    if begin <= 0:
        return np.zeros(len(stamps), np.int64)
    return np.where(difference < 0, 0, np.minimum(difference // _SECOND_MS, 2147483647))


def _as_input(entries: NDArray[np.void]) -> PutInput:
    count = len(entries)
    none = np.zeros(count, np.int64)
    return PutInput(
        entries["phy_offset"].astype(np.int64),
        none,
        np.zeros(count, np.uint8),
        np.arange(1, count + 1, dtype=np.int32),
        entries["key_hash"].astype(np.int32),
    )
