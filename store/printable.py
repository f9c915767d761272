"""Values as text for people: sizes, and text from a store, with control characters escaped."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_KILO = 1000
_THREE_DIGITS = 100


def printable(text: str, *, kept: str = "") -> str:
    """Return text with its unprintable characters escaped, except those ``kept``; one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def size_text(size: float) -> str:
    """Return a number of bytes in about three digits, as ``1.2 GB``; units are powers of 1000."""
    power = 0
    while size >= _KILO and power < len(_UNITS) - 1:
        size, power = size / _KILO, power + 1
    digits = 0 if power == 0 or size >= _THREE_DIGITS else 1
    return f"{size:,.{digits}f} {_UNITS[power]}"
