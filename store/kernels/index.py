"""Adding keys to one index file, as one kernel: the broker's ``IndexFile.putKey`` (§8.4)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import inlined, kernel
from store.kernels.prefetch import prefetch_to_write
from store.kernels.record import read_i32
from store.layout import INDEX_ENTRY_SIZE, SYS_ROLLBACK

ENTRY_WORDS = INDEX_ENTRY_SIZE // 4
_PREFETCH_KEYS = 32  # ahead of the current key: the slots of spread hashes miss every cache
SLOTS_PER_PAGE = 1024  # slots are written back in pages of 4096 bytes

# Positions in the header array: the fields in file order.
BEGIN_TIMESTAMP, END_TIMESTAMP, BEGIN_PHY, END_PHY, SLOT_COUNT, INDEX_COUNT = range(6)


class PutState(NamedTuple):
    """The mutable parts of one index file, updated in place."""

    header: NDArray[np.int64]
    slots: NDArray[np.int32]
    dirty_pages: NDArray[np.uint8]  # one per page of slots
    entries: NDArray[np.uint32]  # the entries of this call, as big-endian words


class PutInput(NamedTuple):
    """Records in log order and their key hashes, as in DispatchRequests."""

    commit_log_offset: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    transaction: NDArray[np.uint8]
    key_end: NDArray[np.int32]
    key_hash: NDArray[np.int32]


@inlined
def _big_endian(value: int) -> np.uint32:
    """Return the low 32 bits of a value as a big-endian word."""
    word = np.uint32(value)
    high = (word & np.uint32(0xFF)) << np.uint32(24) | (word & np.uint32(0xFF00)) << np.uint32(8)
    return high | (word >> np.uint32(8)) & np.uint32(0xFF00) | word >> np.uint32(24)


@inlined
def _put_entry(
    entries: NDArray[np.uint32], at: int, entry: tuple[np.int32, np.int64, int, np.int64]
) -> None:
    """Write an entry at word ``at``."""
    key_hash, offset, seconds, previous = entry
    to = np.uintp(at)  # unsigned: no check for negative positions
    entries[to] = _big_endian(key_hash)
    entries[to + np.uintp(1)] = _big_endian(offset >> 32)
    entries[to + np.uintp(2)] = _big_endian(offset)
    entries[to + np.uintp(3)] = _big_endian(seconds)
    entries[to + np.uintp(4)] = _big_endian(previous)


@kernel
def _time_diff_seconds(store_timestamp: int, begin_timestamp: int) -> int:
    difference = store_timestamp - begin_timestamp  # Java parity: a large step back wraps
    if begin_timestamp <= 0 or difference < 0:
        return 0
    return min(difference // 1000, 2147483647)


@kernel
def put_keys(
    state: PutState,
    records: PutInput,
    start: tuple[int, int],
    limits: tuple[int, bool],
) -> tuple[int, int]:
    """Put keys from record ``start[0]``, key ``start[1]``, until all are in or the file is full.

    ``limits`` = (maxIndexNum, whether every entry counts as a slot). Returns the record and key
    to resume from in the next file, (number of records, …) if all are in. Any record that finds
    the file full needs a new one, even a record without keys (Java parity: ``buildIndex`` gets
    the file before it reads the keys). If ``entries`` is empty, no entry is written and only the
    rest of the state advances.
    """
    header, slots, dirty_pages, entries = state
    max_index_num, counts_entries = limits
    row, key = np.int64(start[0]), np.int64(start[1])
    count, slot_count = header[INDEX_COUNT], header[SLOT_COUNT]
    begin = header[BEGIN_TIMESTAMP]
    slot_num = np.uint32(len(slots))
    at, writes, is_full = np.int64(0), len(entries) > 0, False
    while row < len(records.key_end):
        is_full = count >= max_index_num
        if is_full:
            break
        store_timestamp = records.store_timestamp[row]
        offset = records.commit_log_offset[row]
        last = np.int64(records.key_end[row])
        if records.transaction[row] == SYS_ROLLBACK:
            key = last
        stop = min(last, key + max_index_num - count)
        if key < stop:
            header[END_PHY] = offset
            header[END_TIMESTAMP] = store_timestamp
        seconds = _time_diff_seconds(store_timestamp, begin)
        while key < stop:
            ahead = np.int64(min(key + _PREFETCH_KEYS, len(records.key_hash) - 1))
            prefetch_to_write(slots, np.uint32(records.key_hash[ahead]) % slot_num)
            key_hash = records.key_hash[key]
            slot = np.int64(np.uint32(key_hash) % slot_num)
            previous = np.int64(slots[slot])
            if previous <= 0 or previous > count:
                previous = np.int64(0)
            if writes:
                # Java parity: the slot's previous head becomes the previous entry.
                _put_entry(entries, at, (key_hash, offset, seconds, previous))
                at += ENTRY_WORDS
            slots[slot] = count
            dirty_pages[slot // SLOTS_PER_PAGE] = 1
            if count <= 1:  # Java parity: the first entry's time counts from the last file's end
                header[BEGIN_PHY] = offset
                header[BEGIN_TIMESTAMP] = begin = store_timestamp
                seconds = 0
            if previous == 0 or counts_entries:
                slot_count += 1
            count += 1
            key += 1
        is_full = key < last
        if is_full:
            break
        row += 1
    header[INDEX_COUNT], header[SLOT_COUNT] = count, slot_count
    return row, key


@kernel
def fill_slots(entries: NDArray[np.uint8], slots: NDArray[np.int32]) -> int:
    """Rebuild the slots from the entries 1, 2, … of a file; return how many are in use.

    ``entries`` are their bytes; ``slots`` must be all zero.
    """
    used = 0
    for n in range(len(entries) // INDEX_ENTRY_SIZE):
        slot = read_i32(entries, n * INDEX_ENTRY_SIZE) % len(slots)
        if slots[slot] == 0:
            used += 1
        slots[slot] = n + 1
    return used
