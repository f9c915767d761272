"""Finding the properties that the store itself uses in a record, as kernels (§2.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.kernels.jit import inlined, kernel
from store.kernels.topic import name_bytes

_SEPARATOR = layout.NAME_VALUE_SEPARATOR
_TERMINATOR = layout.PROPERTY_SEPARATOR

_NAMES = (
    "KEYS",
    "TAGS",
    "UNIQ_KEY",
    "DELAY",
    "INNER_NUM",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
)
KEYS, TAGS, UNIQ_KEY, DELAY, INNER_NUM, INNER_BASE, MULTI_NAMES, MULTI_OFFSETS = range(8)
_NAME_BYTES = name_bytes("".join(_NAMES))
NAME_ENDS = np.cumsum([len(n) for n in _NAMES]).astype(np.int64)
_FIRST_NAME_LONGEST = 24
_ONE = np.uintp(1)


@kernel
def _known_name(buf: NDArray[np.uint8], at: int, end: int) -> int:
    """Return the number of a property name that the store uses, -1 for any other."""
    size = end - at
    if size < 4 or size > _FIRST_NAME_LONGEST:
        return -1
    begin = 0
    for number in range(len(NAME_ENDS)):
        stop = NAME_ENDS[number]
        if stop - begin == size and buf[at] == _NAME_BYTES[begin]:
            i = 1
            while i < size and buf[np.uintp(at + i)] == _NAME_BYTES[np.uintp(begin + i)]:
                i += 1
            if i == size:
                return number
        begin = stop
    return -1


@inlined
def find_byte(buf: NDArray[np.uint8], begin: int, end: int, byte: int) -> int:
    """Return the position of the first ``byte`` or property separator, ``end`` if none."""
    at, stop = np.uintp(begin), np.uintp(end)  # unsigned: no check for negative positions
    while at < stop and buf[at] != byte and buf[at] != _TERMINATOR:
        at += _ONE
    return np.int64(at)


@kernel
def _split_segment(buf: NDArray[np.uint8], first: int, stop: int) -> tuple[int, bool]:
    """Apply the old parser to a segment whose first separator is at ``first``.

    Returns the value's end and whether the segment has exactly two parts: trailing separators
    add no part, any other separator after the first adds a third.
    """
    while stop > first and buf[stop - 1] == _SEPARATOR:
        stop -= 1
    if stop <= first:
        return stop, False
    for i in range(first + 1, stop):
        if buf[i] == _SEPARATOR:
            return stop, False
    return stop, True


@kernel
def find_properties(
    buf: NDArray[np.uint8], begin: int, end: int, splits: bool, found: NDArray[np.int64]
) -> None:
    """Set ``found[n] = (begin, end)`` of each known property's value; begin is -1 if absent.

    ``splits`` selects the parser of 4.9.0 and before, which splits and requires exactly two parts
    (format notes §2.4). A repeated name keeps its last value.
    """
    for number in range(len(found)):
        found[number, 0] = -1
    at = begin
    while at < end:
        first = find_byte(buf, at, end, _SEPARATOR)  # the first separator of the segment
        stop = find_byte(buf, first, end, _TERMINATOR)
        value_end = stop
        if splits:
            value_end, accepted = _split_segment(buf, first, stop)
        else:
            accepted = at < first < stop - 1
        if accepted:
            number = _known_name(buf, at, first)
            if number >= 0:
                found[number, 0] = first + 1
                found[number, 1] = value_end
        at = stop + 1
