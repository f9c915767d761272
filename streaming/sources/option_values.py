"""Values of options as text: times, sizes and intervals, each within bounds.

Every number fits Java's ``long``. Patterns bound the digits, so that no conversion is quadratic.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime

from store.errors import ConfigError, shown
from store.java import now_ms
from streaming.spark.batch_pace import BY_NEED

TIME_FORMS = "epoch ms, ISO 8601, -2h (s, m, h, d), or now"
_RELATIVE_TIME = re.compile("now|-([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
INT64_MAX = (1 << 63) - 1
_TIME = re.compile(r"-?[0-9]{1,19}")
_INTERVAL = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|(?:millisecond|second|minute|hour)s?)")
_INTERVAL_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_SIZE = re.compile(r"([0-9]{1,19})\s*([kmgt]?)b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_time(option: str, text: str | None) -> int | None:
    """Parse the time of an option or parameter (``TIME_FORMS``) into epoch ms; None if not given.

    ISO 8601 without a zone is local time. Raises ConfigError naming option and value.
    """
    if text is None:
        return None
    relative = _RELATIVE_TIME.fullmatch(text.strip())
    if relative is not None:
        count, unit = relative.groups(default="0")
        return now_ms() - int(count) * _UNIT_MS.get(unit, 0)
    value = parse_time_ms(text)
    if value is None:
        raise ConfigError(f"{option} {shown(text)} {time_fault(text)}, nor relative (-2h, now)")
    return value


def parse_time_ms(text: str) -> int | None:
    """Parse epoch milliseconds or ISO 8601 (local time without a zone).

    The result fits 64 bits. Returns None for any other text, or a time out of range.
    """
    text = text.strip()
    if _TIME.fullmatch(text):
        return _int64_or_none(int(text))
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (
        ValueError,
        OverflowError,
        OSError,
    ):  # the last two: a year that local time does not cover
        return None


def time_fault(text: str) -> str:
    """Return the predicate of an error about a text that ``parse_time_ms`` rejects."""
    text = text.strip()
    is_time = bool(re.fullmatch("-?[0-9]+", text))
    if not is_time:
        with suppress(ValueError):
            is_time = bool(datetime.fromisoformat(text))
    if is_time:
        return "is out of range: epoch milliseconds have 64 bits, ISO 8601 has the years 1 to 9999"
    return "is neither epoch milliseconds (64 bits) nor ISO 8601 (such as 2024-05-01T08:00:00Z)"


def parse_bytes(text: str) -> int | None:
    """Parse a size in bytes with an optional k, m, g or t (powers of 1024).

    The result fits 64 bits. Returns None if the text is malformed or the size is too large.
    """
    match = _SIZE.fullmatch(text.strip())
    return _int64_or_none(int(match[1]) * _SIZE_UNITS[match[2].lower()]) if match else None


def check_size(name: str, value: int | None) -> None:
    """Raise ConfigError, naming the argument, unless a size in bytes is positive and fits int64."""
    if value is not None and not 0 < value <= INT64_MAX:
        raise ConfigError(f"{name}={value} is not a size in bytes from 1 to {INT64_MAX}")


def spark_interval(text: str) -> str:
    """Return a trigger interval in Spark's syntax: ``5 seconds`` for ``5s``. Raises ConfigError.

    A query with the interval ``auto`` paces itself, and is asked for its next batch at once.
    """
    if text.strip() == BY_NEED:
        return "0 seconds"
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"trigger interval {shown(text)} is neither auto nor a time such as '0s', '500ms', "
            "'5 seconds' or '1m'"
        )
    unit = match[2]
    return f"{match[1]} {_INTERVAL_UNITS.get(unit, unit)}"


def _int64_or_none(value: int) -> int | None:
    return value if abs(value) <= INT64_MAX else None
