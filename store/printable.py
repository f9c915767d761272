"""Text from a store made safe to show: control and format characters are escaped."""

from __future__ import annotations


def printable(text: str, *, kept: str = "") -> str:
    """Return text with its unprintable characters escaped, except those ``kept``; one line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)
