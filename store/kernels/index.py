"""Putting keys into one index file, as one kernel: the broker's ``IndexFile.putKey`` (§8.4)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import kernel
from store.kernels.record import read_i32
from store.layout import INDEX_ENTRY_SIZE, SYS_ROLLBACK

SLOTS_PER_PAGE = 1024  # slots are written back by pages of 4096 bytes

# Places in the header array: the header's fields, in the order of the file.
BEGIN_TIMESTAMP, END_TIMESTAMP, BEGIN_PHY, END_PHY, SLOT_COUNT, INDEX_COUNT = range(6)


class PutState(NamedTuple):
    """One index file's changing parts, updated in place."""

    header: NDArray[np.int64]
    slots: NDArray[np.int32]
    dirty_pages: NDArray[np.uint8]  # one a page of slots
    entries: NDArray[np.uint8]  # new entries' bytes from the first put of this call on


class PutInput(NamedTuple):
    """Records in log order and their key hashes, as in DispatchRequests."""

    commit_log_offset: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    transaction: NDArray[np.uint8]
    key_end: NDArray[np.int32]
    key_hash: NDArray[np.int32]


@kernel
def _write_i32(out: NDArray[np.uint8], at: int, value: int) -> None:
    out[at] = np.uint8((value >> 24) & 0xFF)
    out[at + 1] = np.uint8((value >> 16) & 0xFF)
    out[at + 2] = np.uint8((value >> 8) & 0xFF)
    out[at + 3] = np.uint8(value & 0xFF)


@kernel
def _time_diff_seconds(store_timestamp: int, begin_timestamp: int) -> int:
    difference = store_timestamp - begin_timestamp  # Java parity: a far step back wraps
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
    """Put keys from record ``start[0]``, key ``start[1]`` on, until the file is full or all is in.

    ``limits`` = (maxIndexNum, whether every entry counts as a slot). Returns the record and key
    to go on with in the next file, (number of records, …) when all is in. Any record that finds
    the file full wants a new one, even one without keys (Java parity: ``buildIndex`` gets the
    file before it looks at the keys).
    """
    header, slots, dirty_pages, entries = state
    max_index_num, counts_entries = limits
    row, key = start
    at = 0
    while row < len(records.key_end):
        if header[INDEX_COUNT] >= max_index_num:
            return row, key
        stamp = records.store_timestamp[row]
        offset = records.commit_log_offset[row]
        last = records.key_end[row]
        if records.transaction[row] == SYS_ROLLBACK:
            key = np.int64(last)
        while key < last:
            count = header[INDEX_COUNT]
            if count >= max_index_num:
                return row, key
            key_hash = records.key_hash[key]
            slot = key_hash % len(slots)
            previous = np.int64(slots[slot])
            if previous <= 0 or previous > count:
                previous = np.int64(0)
            _write_i32(entries, at, key_hash)
            _write_i32(entries, at + 4, offset >> 32)
            _write_i32(entries, at + 8, offset)
            _write_i32(entries, at + 12, _time_diff_seconds(stamp, header[BEGIN_TIMESTAMP]))
            _write_i32(entries, at + 16, previous)  # Java parity: the slot's former head
            at += INDEX_ENTRY_SIZE
            slots[slot] = count
            dirty_pages[slot // SLOTS_PER_PAGE] = 1
            if count <= 1:
                header[BEGIN_PHY] = offset
                header[BEGIN_TIMESTAMP] = stamp
            if previous == 0 or counts_entries:
                header[SLOT_COUNT] += 1
            header[INDEX_COUNT] = count + 1
            header[END_PHY] = offset
            header[END_TIMESTAMP] = stamp
            key += 1
        row += 1
    return row, key


@kernel
def fill_slots(entries: NDArray[np.uint8], slots: NDArray[np.int32]) -> int:
    """Set the slots that entries 1, 2, … of a file leave; return how many are in use.

    ``entries`` are their bytes; ``slots`` is all zero.
    """
    used = 0
    for n in range(len(entries) // INDEX_ENTRY_SIZE):
        slot = read_i32(entries, n * INDEX_ENTRY_SIZE) % len(slots)
        if slots[slot] == 0:
            used += 1
        slots[slot] = n + 1
    return used
