"""Time to queue offset, on what a broker since 5.1.1 means by it (format notes §11.4).

A queue's store times rise, but for clocks that step back. Where they rise the answer is the
broker's. Where they do not, several offsets may be right: the answer is one of the crossing points,
always the same one; a broker's may be none. The search of earlier versions starts from the
modification times of files, which no copy of a store keeps: it is not copied.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from enum import StrEnum


class Boundary(StrEnum):
    """LOWER is the first message stored at or after a time, UPPER the last at or before it."""

    LOWER = "lower"
    UPPER = "upper"


def find_offset(
    span: tuple[int, int],
    timestamp_ms: int,
    *,
    boundary: Boundary,
    store_time: Callable[[int], int],
) -> int:
    """Return the queue offset for a time, within ``span`` = (min, max) of the queue.

    ``store_time`` tells a message's store time in ms. LOWER was stored at or after the time and
    the message before it earlier; it is max where all were stored earlier. UPPER was stored at or
    before the time and the message behind it later; it is min where all were stored later.
    """
    first, end = span
    offsets = range(first, end)
    if boundary is Boundary.LOWER:
        return first + bisect_left(offsets, timestamp_ms, key=store_time)
    return first + max(bisect_right(offsets, timestamp_ms, key=store_time) - 1, 0)
