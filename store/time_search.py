"""Time to queue offset: a broker's search since 5.1.1 (format notes §11.4), on queue offsets.

A queue's store times rise, but for clocks that step back. Where they rise the answer is exact;
where they do not it is the one a broker gives. The search of earlier versions starts from the
modification times of files, which no copy of a store keeps: it is not copied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from enum import StrEnum

_WALK_MAX = 8


class Boundary(StrEnum):
    """LOWER is the first message stored at or after a time, UPPER the last at or before it."""

    LOWER = "lower"
    UPPER = "upper"


Span = tuple[int, int]
StoreTime = Callable[[int], int]


def find_offset(
    files: Sequence[Span],
    span: Span,
    timestamp_ms: int,
    *,
    boundary: Boundary,
    store_time: StoreTime,
) -> int:
    """Return the queue offset for a time, within ``span`` = (min, max) of the queue.

    ``files`` are the queue offsets [begin, end) of each file, those of the last file to its last
    unit. ``store_time`` tells a unit's store time in ms, -1 for one whose message is gone. LOWER
    is max where all were stored earlier, UPPER is min where all were stored later.
    """
    first, end = span
    if first >= end:
        return min(max(0, first), end)
    file = _choose_file(files, timestamp_ms, boundary, store_time)
    if file is None:
        return first
    found = _search(file, (first, timestamp_ms), boundary, store_time)
    return min(max(found, first), end)


def _choose_file(
    files: Sequence[Span], timestamp_ms: int, boundary: Boundary, store_time: StoreTime
) -> Span | None:
    """Java parity: ``MappedFileQueue.getConsumeQueueMappedFileByTime``."""
    if boundary is Boundary.LOWER:
        for begin, end in files[:-1]:
            if store_time(end - 1) >= timestamp_ms:
                return begin, end
        return files[-1]
    for begin, end in reversed(files):
        if store_time(begin) <= timestamp_ms:
            return begin, end
    return None


def _search(file: Span, target: tuple[int, int], boundary: Boundary, store_time: StoreTime) -> int:
    """Java parity: ``ConsumeQueue.binarySearchInQueueByTime``; target = (min offset, time)."""
    begin, end = file
    first, timestamp_ms = target
    is_lower = boundary is Boundary.LOWER
    floor, ceiling = max(begin, first), end - 1
    if store_time(ceiling) < timestamp_ms:
        return end if is_lower else ceiling
    if store_time(floor) > timestamp_ms:
        return begin if is_lower else 0
    low, high = floor, ceiling
    left = right = begin - 1
    while low <= high:
        middle = (low + high) // 2
        time = store_time(middle)
        if time == timestamp_ms:
            return _walk(middle, (low, high), boundary, store_time)
        if time > timestamp_ms:
            high, right = middle - 1, middle
        else:
            low, left = middle + 1, middle
    return right if is_lower else left


def _walk(found: int, bounds: Span, boundary: Boundary, store_time: StoreTime) -> int:
    """Go to the first (LOWER) or last (UPPER) neighbour with the same time.

    Where there are many they are not walked, as a broker does, but searched in ``bounds``, whose
    neighbours have other times. The answer is the same where times rise.
    """
    timestamp_ms = store_time(found)
    low, high = bounds
    step = -1 if boundary is Boundary.LOWER else 1
    for _ in range(_WALK_MAX):
        if not low <= found + step <= high or store_time(found + step) != timestamp_ms:
            return found
        found += step
    if boundary is Boundary.LOWER:
        return low + bisect_left(range(low, found), timestamp_ms, key=store_time)
    return found + bisect_right(range(found + 1, high + 1), timestamp_ms, key=store_time)
