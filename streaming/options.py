"""The options of the data source ``rocketmq-commitlog``, parsed once.

They are named as those of Spark's Kafka source where they mean the same. An option that is not
known, or a value that does not parse, is refused by name and value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from store.config import BrokerVersion
from store.errors import ConfigError

EARLIEST = "earliest"
LATEST = "latest"
OFFSET_KEY = "commit_log_offset"

_STREAM_ONLY = {"maxbytespertrigger"}
_BATCH_ONLY = {"endingoffsets", "endingtimestamp"}
_KNOWN = {
    "path", "brokerConf", "brokerVersion", "subscribe", "subscribePattern", "startingOffsets",
    "startingTimestamp", "endingOffsets", "endingTimestamp", "maxBytesPerTrigger",
    "minPartitions", "failOnDataLoss", "includeBody",
}  # fmt: skip
_NAMES = {name.lower(): name for name in _KNOWN}

_INTERVAL = re.compile(r"(\d+)\s*(ms|s|m|h|(?:millisecond|second|minute|hour)s?)")
_INTERVAL_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)b?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options as values. Offsets are physical offsets, EARLIEST or LATEST; times epoch ms."""

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

    def wants(self, topic: str) -> bool:
        """Tell whether messages of a topic are wanted."""
        if self.subscribe is not None:
            return topic in self.subscribe
        if self.subscribe_pattern is not None:
            return re.fullmatch(self.subscribe_pattern, topic) is not None
        return True

    @property
    def filters_topics(self) -> bool:
        """Tell whether only some topics are wanted."""
        return self.subscribe is not None or self.subscribe_pattern is not None


def parse_options(raw: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse the options of a read (names in any case). Raises ConfigError.

    ``streaming`` is None while Spark has not told whether it is a batch or a stream.
    """
    values = {name.lower(): value for name, value in raw.items()}
    for name, value in values.items():
        if name not in _NAMES:
            known = ", ".join(sorted(_KNOWN - {"path"}))
            raise ConfigError(f"option {name!r} (value {value!r}) is not known; known are {known}")
        if streaming and name in _BATCH_ONLY:
            raise ConfigError(f"option {_NAMES[name]!r} is for batch reads only")
        if streaming is False and name in _STREAM_ONLY:
            raise ConfigError(f"option {_NAMES[name]!r} is for streams only")
    if not values.get("path"):
        raise ConfigError('no store given: load("<the broker\'s storePathRootDir>")')
    if "subscribe" in values and "subscribepattern" in values:
        raise ConfigError("give 'subscribe' or 'subscribePattern', not both")
    start = LATEST if streaming else EARLIEST
    return SourceOptions(
        store_root=values["path"],
        broker_conf=values.get("brokerconf"),
        broker_version=_version(values.get("brokerversion")),
        subscribe=_topics(values.get("subscribe")),
        subscribe_pattern=_pattern(values.get("subscribepattern")),
        starting_offsets=_offsets("startingOffsets", values.get("startingoffsets", start)),
        starting_timestamp=_time("startingTimestamp", values.get("startingtimestamp")),
        ending_offsets=_offsets("endingOffsets", values.get("endingoffsets", LATEST)),
        ending_timestamp=_time("endingTimestamp", values.get("endingtimestamp")),
        max_bytes_per_trigger=_bytes("maxBytesPerTrigger", values.get("maxbytespertrigger")),
        min_partitions=_count("minPartitions", values.get("minpartitions")),
        fail_on_data_loss=_flag("failOnDataLoss", values.get("failondataloss", "true")),
        include_body=_flag("includeBody", values.get("includebody", "true")),
    )


def parse_time_ms(text: str) -> int | None:
    """Parse epoch milliseconds or ISO 8601 (local time where no zone is given); None if neither."""
    text = text.strip()
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def parse_bytes(text: str) -> int | None:
    """Parse a size in bytes with an optional k, m, g or t (powers of 1024); None if malformed."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else None


def spark_interval(text: str) -> str:
    """Return a trigger interval as Spark spells it: ``5s`` is ``5 seconds``. Raises ConfigError."""
    match = _INTERVAL.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"trigger interval {text!r} is no time such as '0s', '500ms', '5 seconds' or '1m'"
        )
    unit = match[2]
    return f"{match[1]} {_INTERVAL_UNITS.get(unit, unit)}"


def _version(raw: str | None) -> str | None:
    if raw is None:
        return None
    try:
        BrokerVersion.parse(raw)
    except ConfigError as e:
        raise ConfigError(f"option 'brokerVersion' = {raw!r}: {e}") from e
    return raw


def _topics(raw: str | None) -> tuple[str, ...] | None:
    if raw is None:
        return None
    topics = tuple(t.strip() for t in raw.split(",") if t.strip())
    if not topics:
        raise ConfigError(f"option 'subscribe' = {raw!r} names no topic")
    return topics


def _pattern(raw: str | None) -> str | None:
    if raw is None:
        return None
    try:
        re.compile(raw)
    except re.error as e:
        raise ConfigError(f"option 'subscribePattern' = {raw!r} is not a pattern: {e}") from e
    return raw


def _offsets(name: str, raw: str) -> int | str:
    text = raw.strip()
    if text in (EARLIEST, LATEST):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and set(value) == {OFFSET_KEY}:
        offset = value[OFFSET_KEY]
        if isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0:
            return offset
    raise ConfigError(
        f"option {name!r} = {raw!r} is not 'earliest', 'latest' or "
        f'{{"{OFFSET_KEY}": N}} with N >= 0'
    )


def _time(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    value = parse_time_ms(raw)
    if value is None:
        raise ConfigError(f"option {name!r} = {raw!r} is neither epoch milliseconds nor ISO 8601")
    return value


def _bytes(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    value = parse_bytes(raw)
    if value is None or value <= 0:
        raise ConfigError(f"option {name!r} = {raw!r} is not a positive size in bytes (or 64m, 1g)")
    return value


def _count(name: str, raw: str | None) -> int | None:
    if raw is None:
        return None
    if not re.fullmatch(r"\d+", raw.strip()) or int(raw) <= 0:
        raise ConfigError(f"option {name!r} = {raw!r} is not a positive integer")
    return int(raw)


def _flag(name: str, raw: str) -> bool:
    value = raw.strip().lower()
    if value not in ("true", "false"):
        raise ConfigError(f"option {name!r} = {raw!r} is neither true nor false")
    return value == "true"
