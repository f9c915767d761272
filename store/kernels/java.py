"""Java's string arithmetic on raw UTF-8 bytes, as kernels. The plain twins are in ``store.java``.

Bytes are decoded on the fly, as by ``new String(bytes, UTF_8)``; nothing is allocated.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import inlined, kernel

_REPLACEMENT = 0xFFFD
# The zero digits of the scripts beyond ASCII whose digits are one UTF-16 code unit.
_DIGIT_ZEROS = np.array(
    [z for z in range(0x80, 0x10000) if unicodedata.decimal(chr(z), None) == 0], np.int64
)
_ONE, _TWO, _THREE, _FOUR = np.uintp(1), np.uintp(2), np.uintp(3), np.uintp(4)
_P1, _P2, _P3, _P4 = np.uint32(31), np.uint32(31**2), np.uint32(31**3), np.uint32(31**4)
# Character.isWhitespace beyond ASCII: the separators except the no-break spaces.
_SPACES = np.array([0x1680, *range(0x2000, 0x2007), 0x2008, 0x2009, 0x200A, 0x2028, 0x2029,
                    0x205F, 0x3000], np.int64)  # fmt: skip


@inlined
def _is_continuation(buf: NDArray[np.uint8], at: int, end: int) -> bool:
    return at < end and (buf[at] & 0xC0) == 0x80


@kernel
def decode_one(buf: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Decode one non-ASCII code point at ``at``; return it and the position after it.

    A malformed sequence yields U+FFFD and consumes the maximal subpart; an encoded surrogate,
    complete or truncated, is one sequence (Java parity, format notes §2.5).
    """
    lead = np.int64(buf[at])
    if 0xC2 <= lead <= 0xDF:
        if _is_continuation(buf, at + 1, end):
            return ((lead & 0x1F) << 6) | (buf[at + 1] & 0x3F), at + 2
        return _REPLACEMENT, at + 1
    if 0xE0 <= lead <= 0xEF:
        if not _is_continuation(buf, at + 1, end) or (lead == 0xE0 and buf[at + 1] < 0xA0):
            return _REPLACEMENT, at + 1
        if not _is_continuation(buf, at + 2, end):
            return _REPLACEMENT, at + 2
        if lead == 0xED and buf[at + 1] >= 0xA0:
            return _REPLACEMENT, at + 3
        point = ((lead & 0x0F) << 12) | (np.int64(buf[at + 1] & 0x3F) << 6) | (buf[at + 2] & 0x3F)
        return point, at + 3
    if 0xF0 <= lead <= 0xF4:
        if (
            not _is_continuation(buf, at + 1, end)
            or (lead == 0xF0 and buf[at + 1] < 0x90)
            or (lead == 0xF4 and buf[at + 1] > 0x8F)
        ):
            return _REPLACEMENT, at + 1
        if not _is_continuation(buf, at + 2, end):
            return _REPLACEMENT, at + 2
        if not _is_continuation(buf, at + 3, end):
            return _REPLACEMENT, at + 3
        high = ((lead & 0x07) << 18) | (np.int64(buf[at + 1] & 0x3F) << 12)
        return high | (np.int64(buf[at + 2] & 0x3F) << 6) | (buf[at + 3] & 0x3F), at + 4
    return _REPLACEMENT, at + 1


@kernel
def hash_utf8(buf: NDArray[np.uint8], begin: int, end: int, start: np.uint32) -> np.uint32:
    """Continue ``String.hashCode`` from ``start`` over the decoded ``buf[begin:end]``."""
    h = np.uint32(start)
    at, stop = np.uintp(begin), np.uintp(end)  # unsigned: no check for negative positions
    while at < stop:
        if at + _FOUR <= stop:
            a, b, c, d = buf[at], buf[at + _ONE], buf[at + _TWO], buf[at + _THREE]
            if (a | b | c | d) < 0x80:
                # Four ASCII characters at once: the same sum with the powers of 31 expanded.
                h = np.uint32(h * _P4 + a * _P3 + b * _P2 + c * _P1 + d)
                at += _FOUR
                continue
        if buf[at] < 0x80:
            h = np.uint32(h * _P1 + buf[at])
            at += _ONE
            continue
        point, after = decode_one(buf, np.int64(at), end)
        at = np.uintp(after)
        if point < 0x10000:
            h = np.uint32(h * _P1 + np.uint32(point))
        else:
            high = 0xD800 + ((point - 0x10000) >> 10)
            low = 0xDC00 + ((point - 0x10000) & 0x3FF)
            h = np.uint32(h * _P1 + np.uint32(high))
            h = np.uint32(h * _P1 + np.uint32(low))
    return h


@kernel
def index_key_hash(h: np.uint32) -> np.int32:
    """Return the key hash as the index stores it: the absolute value; the minimum becomes 0.

    Java parity: ``IndexFile.indexKeyHashMethod``.
    """
    value = np.int32(h)
    if value < 0:
        value = np.int32(-value)
    return np.int32(0) if value < 0 else value


@kernel
def is_whitespace(point: int) -> bool:
    """Return ``Character.isWhitespace(point)``."""
    if point < 0x80:
        return 0x09 <= point <= 0x0D or 0x1C <= point <= 0x20
    for space in _SPACES:
        if space == point:
            return True
    return False


@kernel
def is_blank(buf: NDArray[np.uint8], begin: int, end: int) -> bool:
    """Return ``StringUtils.isBlank`` for the decoded ``buf[begin:end]``."""
    at = begin
    while at < end:
        point = np.int64(buf[at])
        if point < 0x80:
            at += 1
        else:
            point, at = decode_one(buf, at, end)
        if not is_whitespace(point):
            return False
    return True


@kernel
def _digit(point: int) -> int:
    """Return ``Character.digit(point, 10)``, -1 if the code point is not a digit."""
    for zero in _DIGIT_ZEROS:
        if zero <= point <= zero + 9:
            return np.int64(point - zero)
    return np.int64(-1)


@kernel
def parse_int(buf: NDArray[np.uint8], begin: int, end: int, limit: int) -> tuple[bool, int]:
    """Parse a signed number with ``-limit - 1 <= value <= limit``; (False, 0) where Java throws."""
    at = begin
    negative = False
    if at < end and (buf[at] == ord("-") or buf[at] == ord("+")):
        negative = buf[at] == ord("-")
        at += 1
    if at >= end:
        return False, 0
    value = np.int64(0)  # kept negative, because the negative range is wider
    while at < end:
        digit = np.int64(buf[at]) - ord("0")
        if buf[at] < 0x80:
            at += 1
        else:
            point, at = decode_one(buf, at, end)
            digit = _digit(point)
        if digit < 0 or digit > 9:
            return False, 0
        if value < (-limit - 1 + digit) // 10 + (1 if (-limit - 1 + digit) % 10 else 0):
            return False, 0
        value = value * 10 - digit
    if negative:
        return True, value
    if value < -limit:
        return False, 0
    return True, -value
