"""Java's strings and numbers as the broker computes them (plain Python twins of the kernels).

A Java string is UTF-16; here it is a ``str``. Decoding follows ``new String(bytes, UTF_8)`` of
JDK 17, hashing follows ``String.hashCode``, splitting ``String.split`` with a literal separator.
"""

from __future__ import annotations

import re
import time
from unicodedata import decimal

_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_ENCODED_SURROGATE = re.compile(rb"\xED[\xA0-\xBF][\x80-\xBF]?")
_LONG_DIGITS = 19  # of the greatest 64-bit integer
_INTEGER = re.compile(r"[+-]?\d+")


def decode(data: bytes) -> str:
    """Decode UTF-8 as Java does: each malformed sequence becomes one U+FFFD.

    Java parity: an encoded surrogate, complete or truncated, is one replacement character;
    Python's ``replace`` alone would give two or three (format notes §2.5).
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


def hash_code(text: str) -> int:
    """Return ``String.hashCode``: 31·h + c over UTF-16 code units, wrapped to int32."""
    h = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        h = (31 * h + ((data[at] << 8) | data[at + 1])) & 0xFFFFFFFF
    return h - 2**32 if h > _INT_MAX else h


def split(text: str, separator: str) -> list[str]:
    """Split as ``String.split`` does: trailing empty strings are removed, others kept."""
    if separator not in text:
        return [text]
    parts = text.split(separator)
    while parts and not parts[-1]:
        parts.pop()
    return parts


def parse_boolean(text: str) -> bool | None:
    """Parse true or false in any case, None for another text; blanks around it do not count."""
    return {"true": True, "false": False}.get(text.strip().lower())


def parse_int(text: str, *, bits: int = 32) -> int | None:
    """Parse as ``Integer.parseInt`` (``bits=64``: ``Long.parseLong``); None if Java throws.

    Java parity: any decimal digit that is one UTF-16 code unit counts, not only ASCII's.
    """
    if not _INTEGER.fullmatch(text) or max(text) > "\uffff":
        return None
    digits = text.lstrip("+-")
    if len(digits) > _LONG_DIGITS:  # Python limits the digits of an integer
        digits = "".join(str(decimal(digit)) for digit in digits).lstrip("0") or "0"
        if len(digits) > _LONG_DIGITS:
            return None
    value = -int(digits) if text[0] == "-" else int(digits)
    return value if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None


def int32(value: int) -> int:
    """Wrap to a signed 32-bit integer."""
    return ((value - _INT_MIN) & 0xFFFFFFFF) + _INT_MIN


def now_ms() -> int:
    """Return ``System.currentTimeMillis``: the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
