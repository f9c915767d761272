"""Lines of output and their values; control characters from a store are escaped."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from store.printable import printable

_MINUTE = 60  # seconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def print_line(text: str) -> None:
    """Print a line of the answer to stdout."""
    print(printable(text), flush=True)


def say(text: str) -> None:
    """Print a message to stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def shows_progress(*, as_json: bool) -> bool:
    """Return whether progress is shown: to a terminal, and not beside an answer in JSON."""
    return sys.stderr.isatty() and not as_json


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on a line, in ASCII if stdout is not UTF-8."""
    line = json.dumps(value, ensure_ascii=not _is_utf_8())
    if sys.stdout.isatty() and not line.isprintable():
        line = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
    print(line, flush=True)


def _is_utf_8() -> bool:
    try:
        return codecs.lookup(sys.stdout.encoding).name == "utf-8"
    except (LookupError, TypeError):
        return False


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as ``1 file`` or ``1,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def local_time(timestamp_ms: int) -> datetime | None:
    """Return a time in the local zone, None if it is outside the calendar."""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).astimezone()
    except (OverflowError, ValueError, OSError):
        return None


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 with the local zone; as a number if outside the calendar."""
    moment = local_time(timestamp_ms)
    return str(timestamp_ms) if moment is None else moment.isoformat(timespec="milliseconds")


def seconds_text(seconds: float) -> str:
    """Return a duration in its two largest units; in whole seconds below a minute."""
    whole = round(seconds)
    return f"{whole}s" if whole < _MINUTE else duration_text(whole * 1000)


def duration_text(milliseconds: int) -> str:
    """Return a duration in its two largest units, as ``1d 02h``, ``3m 07s`` or ``0.250s``."""
    seconds = milliseconds // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    if minutes:
        return f"{minutes}m {seconds % 60:02d}s"
    return f"{milliseconds / 1000:.3f}s"
