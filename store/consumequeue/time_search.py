"""The search for a position by time, as defined by brokers since 5.1.1 (format notes §11.4).

A queue's store times ascend, except where a clock stepped back. Where they ascend, the result
equals the broker's. Elsewhere several positions may be right: the result is one of the crossing
points, always the same one; a broker's result may be none of them. The search of earlier versions
starts from file modification times, which a copy of a store does not preserve: it is not
reproduced.
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
    """Return the position for a time, within ``span`` = (min, max) of the queue.

    ``store_time`` returns a message's store time in ms. LOWER was stored at or after the time, and
    the message before it earlier; it is max if all were stored earlier. UPPER was stored at or
    before the time, and the message after it later; it is min if all were stored later.
    """
    first, end = span
    positions = range(first, end)
    if boundary is Boundary.LOWER:
        return first + bisect_left(positions, timestamp_ms, key=store_time)
    return first + max(bisect_right(positions, timestamp_ms, key=store_time) - 1, 0)
