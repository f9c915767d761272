"""The options of the data source ``rocketmq-commitlog``, parsed once.

Options that mean the same as those of Spark's Kafka source have the same names. An unknown option,
or a value that does not parse, is an error that names option and value. Every number fits Java's
``long``.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from store.commitlog.compression import BODY_BYTES_CEILING, BODY_BYTES_MAX
from store.config import BrokerVersion
from store.errors import ConfigError, shown

TIME_FORMS = "epoch ms, ISO 8601, -2h (s, m, h, d), or now"
EARLIEST = "earliest"
LATEST = "latest"
OFFSET_KEY = "commit_log_offset"

_STREAM_ONLY = {"maxbytespertrigger"}
_BATCH_ONLY = {"endingoffsets", "endingtimestamp"}
_KNOWN = {
    "path", "brokerConf", "brokerVersion", "subscribe", "subscribePattern", "startingOffsets",
    "startingTimestamp", "endingOffsets", "endingTimestamp", "maxBytesPerTrigger",
    "minPartitions", "failOnDataLoss", "includeBody", "maxBodyBytes",
}  # fmt: skip
_NAMES = {name.lower(): name for name in _KNOWN}
_PROVIDER = "provider"
_OPTION = "option."
# Spark's own properties (TableCatalog, and those that a Hive catalog adds).
_TABLE_PROPERTIES = {
    _PROVIDER, "owner", "location", "comment", "collation", "external", "is_managed_location",
    "serialization.format", "transient_lastddltime",
}  # fmt: skip
_NO_PATH = (
    'no store given: load("<the broker\'s storePathRootDir>"), or CREATE TABLE t USING … OPTIONS '
    "(path '…') without a column list, or SELECT … FROM t WITH (path = '…')"
)
_RELATIVE_TIME = re.compile("now|-([0-9]{1,9})([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

MIN_PARTITIONS_MAX = 100_000
_INT64_MAX = (1 << 63) - 1
_OFFSETS_LENGTH_MAX = 200

# Digits are bounded, so that no conversion is quadratic and no result exceeds Java's long.
_TIME = re.compile(r"-?[0-9]{1,19}")
_COUNT = re.compile(r"[0-9]{1,19}")
_INTERVAL = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h|(?:millisecond|second|minute|hour)s?)")
_INTERVAL_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_SIZE = re.compile(r"([0-9]{1,19})\s*([kmgt]?)b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options. Offsets are physical offsets, EARLIEST or LATEST; times are epoch ms."""

    store_root: str
    broker_conf: str | None
    broker_version: str | None
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    starting_offsets: int | str
    starting_timestamp: int | None
    ending_offsets: int | str
    ending_timestamp: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_body: bool
    max_body_bytes: int

    def wants(self, topic: str) -> bool:
        """Return whether the read includes messages of a topic."""
        if self.subscribe is not None:
            return topic in self.subscribe
        if self.subscribe_pattern is not None:
            return re.fullmatch(self.subscribe_pattern, topic) is not None
        return True

    @property
    def filters_topics(self) -> bool:
        """Whether the read is limited to some topics."""
        return self.subscribe is not None or self.subscribe_pattern is not None


def parse_options(raw: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse the options of a read (names in any case). Raises ConfigError.

    ``streaming`` is None while it is unknown whether the read is a batch or a stream.
    """
    values = given_options(raw)
    for name in values:
        if streaming and name in _BATCH_ONLY:
            raise ConfigError(f"option {_NAMES[name]!r} is for batch reads only")
        if streaming is False and name in _STREAM_ONLY:
            raise ConfigError(f"option {_NAMES[name]!r} is for streams only")
    if not values.get("path"):
        raise ConfigError(_NO_PATH)
    if "subscribe" in values and "subscribepattern" in values:
        raise ConfigError("give 'subscribe' or 'subscribePattern', not both")
    start = LATEST if streaming else EARLIEST
    return SourceOptions(
        store_root=_local_path(values["path"]),
        broker_conf=values.get("brokerconf"),
        broker_version=_version(values.get("brokerversion")),
        subscribe=_topics(values.get("subscribe")),
        subscribe_pattern=_pattern(values.get("subscribepattern")),
        starting_offsets=_offsets("startingOffsets", values.get("startingoffsets", start)),
        starting_timestamp=_time("startingTimestamp", values.get("startingtimestamp")),
        ending_offsets=_offsets("endingOffsets", values.get("endingoffsets", LATEST)),
        ending_timestamp=_time("endingTimestamp", values.get("endingtimestamp")),
        max_bytes_per_trigger=_bytes("maxBytesPerTrigger", values.get("maxbytespertrigger")),
        min_partitions=_partitions("minPartitions", values.get("minpartitions")),
        fail_on_data_loss=_flag("failOnDataLoss", values.get("failondataloss", "true")),
        include_body=_flag("includeBody", values.get("includebody", "true")),
        max_body_bytes=_body_bytes("maxBodyBytes", values.get("maxbodybytes")),
    )


def is_table(raw: Mapping[str, str]) -> bool:
    """Return whether the options come from CREATE TABLE: Spark then adds the table's properties."""
    return _PROVIDER in {name.lower() for name in raw}


def given_options(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave, by lower-case name. Raises ConfigError.

    For CREATE TABLE, Spark mixes them with the table's properties, and repeats each option (except
    the path) with a prefix. Spark's own properties are always removed.
    """
    values = {name.lower(): value for name, value in raw.items()}
    if is_table(raw):
        prefixed = {n.removeprefix(_OPTION): v for n, v in values.items() if n.startswith(_OPTION)}
        values = {n: v for n, v in values.items() if n == "path"} | prefixed
    values = {n: v for n, v in values.items() if n not in _TABLE_PROPERTIES}
    for name, value in values.items():
        if name not in _NAMES:
            raise ConfigError(_unknown(name, value))
    return values


def table_options(stored: Mapping[str, str], *, streaming: bool) -> dict[str, str]:
    """Return a table's options for a read, without those for the other kind of read."""
    other = _BATCH_ONLY if streaming else _STREAM_ONLY
    return {name: value for name, value in stored.items() if name not in other}


def _unknown(name: str, value: str) -> str:
    close = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {_NAMES[close[0]]!r}? " if close else ""
    known = ", ".join(sorted(_KNOWN - {"path"}))
    return f"option {name!r} (value {shown(value)}) is not known; {hint}known are {known}"


def _local_path(text: str) -> str:
    """Return a local path; Spark passes a table's as a ``file:`` URI, not percent-encoded."""
    scheme = _URI.match(text)
    if scheme is None:
        return text
    if scheme[1] != "file":
        raise ConfigError(
            f"path {shown(text)}: a store can only be read from a mounted file system"
        )
    return re.sub("^/+", "/", text.removeprefix("file:"))


def parse_time(option: str, text: str | None) -> int | None:
    """Parse the time of an option or parameter (``TIME_FORMS``) into epoch ms; None if not given.

    ISO 8601 without a zone is local time. Raises ConfigError naming option and value.
    """
    if text is None:
        return None
    relative = _RELATIVE_TIME.fullmatch(text.strip())
    if relative is not None:
        count, unit = relative.groups(default="0")
        return int(time.time() * 1000) - int(count) * _UNIT_MS.get(unit, 0)
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
    if value is not None and not 0 < value <= _INT64_MAX:
        raise ConfigError(f"{name}={value} is not a size in bytes from 1 to {_INT64_MAX}")


def spark_interval(text: str) -> str:
    """Return a trigger interval in Spark's syntax: ``5 seconds`` for ``5s``. Raises ConfigError."""
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"trigger interval {shown(text)} is not a time such as '0s', '500ms', '5 seconds' or "
            "'1m'"
        )
    unit = match[2]
    return f"{match[1]} {_INTERVAL_UNITS.get(unit, unit)}"


def _version(raw: str | None) -> str | None:
    if raw is None:
        return None
    try:
        BrokerVersion.parse(raw)
    except ConfigError as e:
        raise ConfigError(f"option 'brokerVersion' = {shown(raw)}: {e}") from e
    return raw


def _topics(raw: str | None) -> tuple[str, ...] | None:
    if raw is None:
        return None
    topics = tuple(t.strip() for t in raw.split(",") if t.strip())
    if not topics:
        raise ConfigError(f"option 'subscribe' = {shown(raw)} names no topic")
    return topics


def _pattern(raw: str | None) -> str | None:
    if raw is None:
        return None
    try:
        re.compile(raw)
    except (re.error, RecursionError, OverflowError) as e:
        raise ConfigError(
            f"option 'subscribePattern' = {shown(raw)} is not a regular expression: {e}"
        ) from e
    return raw


def _offsets(name: str, raw: str) -> int | str:
    text = raw.strip()
    if text in (EARLIEST, LATEST):
        return text
    value = None
    if len(text) <= _OFFSETS_LENGTH_MAX:  # json recurses into nested brackets
        with suppress(ValueError):
            value = json.loads(text)
    if isinstance(value, dict) and set(value) == {OFFSET_KEY}:
        offset = value[OFFSET_KEY]
        if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= _INT64_MAX:
            return offset
    raise ConfigError(
        f"option {name!r} = {shown(raw)} is not 'earliest', 'latest' or "
        f'{{"{OFFSET_KEY}": N}} with N from 0 to {_INT64_MAX}'
    )


def _time(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    value = parse_time_ms(raw)
    if value is None:
        raise ConfigError(f"option {name!r} = {shown(raw)} {time_fault(raw)}")
    return value


def _bytes(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    value = parse_bytes(raw)
    if value is None or value <= 0:
        raise ConfigError(
            f"option {name!r} = {shown(raw)} is not a positive size in bytes (or 64m, 1g) below "
            "8 EiB"
        )
    return value


def _body_bytes(name: str, raw: str | None) -> int:
    value = _bytes(name, raw) or BODY_BYTES_MAX
    if value > BODY_BYTES_CEILING:
        raise ConfigError(f"option {name!r} = {value} is more than {BODY_BYTES_CEILING} bytes")
    return value


def _partitions(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    value = int(raw) if _COUNT.fullmatch(raw.strip()) else 0
    if value <= 0:
        raise ConfigError(f"option {name!r} = {shown(raw)} is not a positive integer")
    if value > MIN_PARTITIONS_MAX:
        raise ConfigError(
            f"option {name!r} = {value} exceeds {MIN_PARTITIONS_MAX}: Spark's driver keeps every "
            "task in memory, and starting one costs more than reading many messages"
        )
    return value


def _flag(name: str, raw: str) -> bool:
    value = raw.strip().lower()
    if value not in ("true", "false"):
        raise ConfigError(f"option {name!r} = {shown(raw)} is neither true nor false")
    return value == "true"


def _int64_or_none(value: int) -> int | None:
    return value if abs(value) <= _INT64_MAX else None
