"""Walking the chain of records without decoding them, as kernels: positions only.

Each record starts where the previous one ended; the walk returns where it stopped and why, as a
reason of ``store.kernels.record``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.kernels import record as rk
from store.kernels.jit import kernel
from store.kernels.record import Rules, check_record, is_complete, read_i32, read_i64

NO_CUTS = (np.empty(0, np.int64), 1 << 62)  # of ``walk``


class WalkEnd(NamedTuple):
    """Where and why a walk stopped, the last record before, and how many cuts were recorded."""

    reason: int
    at: int
    last: int  # position of the last record walked over, -1 if none
    cuts: int


@kernel
def walk(
    buf: NDArray[np.uint8],
    span: tuple[int, int, int],
    rules: Rules,
    live: bool,
    cuts: tuple[NDArray[np.int64], int],
) -> WalkEnd:
    """Walk from ``begin`` until a record starts at ``end`` or later; span = (base, begin, end).

    ``live`` applies the rule of the live end to the last record only: a record followed by a valid
    record or a blank is complete. ``cuts`` = (array, bytes): after every so many bytes, the end of
    the record is recorded as a cut, as long as the array has room.
    """
    base, at, end = span
    cut_at, every = cuts
    reason, count, begin = rk.OK, 0, at
    before, last = np.int64(-1), np.int64(-1)
    while at < end:
        parts = check_record(buf, at, base, rules)
        if parts.reason != rk.OK:
            reason = parts.reason
            break
        before, last = last, at
        at = parts.end
        if at - begin >= every and count < len(cut_at):
            cut_at[count] = at
            count += 1
            begin = at
    if live and last >= 0 and not is_complete(buf, last, base, rules):
        if count > 0 and cut_at[count - 1] > last:
            count -= 1
        return WalkEnd(rk.EMPTY, last, before, count)
    return WalkEnd(reason, at, last, count)


@kernel
def find_record(buf: NDArray[np.uint8], span: tuple[int, int, int], rules: Rules) -> int:
    """Return the first position of a valid record or the blank, -1 if there is neither.

    ``span`` = (base, begin, end). A valid record passes the whole acceptance rule; the blank must
    extend exactly to the file's end.
    """
    base, begin, end = span
    for at in range(begin, end - layout.BLANK_SIZE + 1):
        if buf[at + 4] != 0xDA and buf[at + 4] != 0xCB:
            continue
        magic = read_i32(buf, at + layout.MAGIC_AT)
        if magic == layout.MAGIC_BLANK:
            if read_i32(buf, at) == len(buf) - at:
                return at
        elif magic == layout.MAGIC_V1 or magic == layout.MAGIC_V2:
            if end - at < layout.RECORD_MIN_SIZE:
                continue
            if read_i64(buf, at + layout.PHYSICAL_OFFSET_AT) != base + at:
                continue
            if check_record(buf, at, base, rules).reason == rk.OK:
                return at
    return -1


@kernel
def first_stored(buf: NDArray[np.uint8], base: int, timestamp_ms: int, rules: Rules) -> int:
    """Return the position of a file's first record stored at or after a time, -1 if none is."""
    at = np.int64(0)
    while at < len(buf):
        parts = check_record(buf, at, base, rules)
        if parts.reason != rk.OK:
            return -1
        if read_i64(buf, parts.store_timestamp_at) >= timestamp_ms:
            return at
        at = parts.end
    return -1


@kernel
def stored_between(
    buf: NDArray[np.uint8],
    span: tuple[int, int, int],
    times_ms: tuple[int, int],
    rules: Rules,
) -> tuple[int, int]:
    """Return the part of a span with the records stored between two times, both inclusive.

    It reaches from the first of them to the end of the last one; (-1, -1) without any. ``span`` =
    (base, begin, end). A record that fails belongs to the part, as does all that follows it.
    """
    base, at, end = span
    low, high = times_ms
    first, last_end = np.int64(-1), np.int64(-1)
    while at < end:
        parts = check_record(buf, at, base, rules)
        if parts.reason == rk.BLANK:
            break
        is_wanted = parts.reason != rk.OK
        if not is_wanted:
            is_wanted = low <= read_i64(buf, parts.store_timestamp_at) <= high
        if is_wanted and first < 0:
            first = np.int64(at)
        if parts.reason != rk.OK:
            last_end = np.int64(end)
            break
        if is_wanted:
            last_end = np.int64(parts.end)
        at = parts.end
    return first, last_end
