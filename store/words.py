"""Words that errors share: how a value is shown, and why a text cannot be parsed."""

from __future__ import annotations

import json

SHOWN_MAX = 120  # characters of a value in an error


def shown(value: str) -> str:
    """Return a value as errors show it: quoted, and cut if it is long."""
    if len(value) <= SHOWN_MAX:
        return repr(value)
    return f"{value[:SHOWN_MAX]!r}… ({len(value)} characters)"


def parse_fault(error: Exception) -> str:
    """Return why a text was not decoded or parsed as JSON."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}, column {error.colno}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if type(error) is ValueError:  # Python parses no more than some thousand digits
        return "an integer has too many digits"
    return str(error)
