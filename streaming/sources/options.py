"""The options of the data source ``rocketmq-commitlog``, parsed once.

Options that mean the same as those of Spark's Kafka source have the same names. An unknown option,
or a value that does not parse, is an error that names option and value. Every number fits Java's
``long``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from glob import has_magic
from typing import Any

from store.commitlog.compression import BODY_BYTES_CEILING, BODY_BYTES_MAX
from store.config import BrokerVersion
from store.consumequeue.names import check_topic_pattern
from store.errors import ConfigError, shown
from store.io.user_path import given_path
from store.java import parse_boolean
from streaming.sources.option_values import INT64_MAX, parse_bytes, parse_time_ms, time_fault
from streaming.sources.queues.offsets import QueueOffsets, parse_queue_offsets

EARLIEST = "earliest"
LATEST = "latest"
OFFSET_KEY = "commit_log_offset"

_STREAM_ONLY = {"maxbytespertrigger"}
_BATCH_ONLY = {"endingoffsets", "endingtimestamp"}
OPTION_NAMES = {
    "path", "paths", "brokerNames", "brokerConf", "brokerVersion", "subscribe",
    "subscribePattern", "startingOffsets", "startingTimestamp", "endingOffsets",
    "endingTimestamp", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss", "includeBody",
    "maxBodyBytes", "columns",
}  # fmt: skip
_NAMES = {name.lower(): name for name in OPTION_NAMES}
_REMOVED = {
    "output": "omit it. Offsets by queue are now always the messages' own, found by a scan of the "
    "log; 'reput get' reads by position in a queue",
}
_PROVIDER = "provider"
_OPTION = "option."
# Spark's own properties (TableCatalog, and those that a Hive catalog adds).
_TABLE_PROPERTIES = {
    _PROVIDER, "owner", "location", "comment", "collation", "external", "is_managed_location",
    "serialization.format", "transient_lastddltime",
}  # fmt: skip
_NO_PATH = (
    "no store given: load(\"<the broker's storePathRootDir>\"), or option 'paths', or CREATE TABLE "
    "t USING … OPTIONS (path '…') without a column list, or SELECT … FROM t WITH (path = '…')"
)
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

MIN_PARTITIONS_MAX = 100_000
_JSON_LENGTH_MAX = 1 << 20

_COLUMNS = ("message", "kafka")
_COUNT = re.compile(r"[0-9]{1,19}")


StoreOffsets = int | QueueOffsets  # of one store: in its log, or by queue
ByBroker = str | Mapping[str, str] | None  # of all brokers, or by name
Offsets = str | StoreOffsets | Mapping[str, StoreOffsets]  # of all stores, of one, or by broker


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Parsed options. Offsets are physical offsets, EARLIEST or LATEST; times are epoch ms.

    ``paths`` are stores or globs. Several stores have an offset each, by broker; ``is_single`` is
    true for a read of one ``path`` that is not a glob. ``broker_names`` are by store.
    """

    paths: tuple[str, ...]
    is_single: bool
    broker_names: Mapping[str, str]
    broker_conf: ByBroker
    broker_version: ByBroker
    subscribe: tuple[str, ...] | None
    subscribe_pattern: str | None
    starting_offsets: Offsets
    starting_timestamp: int | None
    ending_offsets: Offsets
    ending_timestamp: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_body: bool
    max_body_bytes: int
    is_kafka: bool = False  # columns=kafka

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
    paths = _paths(values)
    if "subscribe" in values and "subscribepattern" in values:
        raise ConfigError("give 'subscribe' or 'subscribePattern', not both")
    start = LATEST if streaming else EARLIEST
    return SourceOptions(
        paths=paths,
        is_single=bool(values.get("path")) and not has_magic(paths[0]),
        broker_names=_broker_names(values.get("brokernames"), paths),
        broker_conf=_by_broker("brokerConf", values.get("brokerconf"), _conf_path),
        broker_version=_by_broker("brokerVersion", values.get("brokerversion"), _version),
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
        is_kafka=_is_kafka(values.get("columns", _COLUMNS[0])),
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
        if name in _REMOVED:
            raise ConfigError(f"option {name!r} no longer exists: {_REMOVED[name]}")
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
    known = ", ".join(sorted(OPTION_NAMES - {"path"}))
    return f"option {name!r} (value {shown(value)}) is not known; {hint}known are {known}"


def _paths(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths or globs of a read. Raises ConfigError."""
    path, several = values.get("path"), values.get("paths")
    if path and several is not None:
        raise ConfigError("give 'path' or 'paths', not both")
    if several is None:
        if not path:
            raise ConfigError(_NO_PATH)
        return (_local_path(path),)
    found = _json(several)
    if not isinstance(found, list) or not found or not all(_is_text(item) for item in found):
        raise ConfigError(f"option 'paths' = {shown(several)} is not a JSON list of paths")
    return tuple(dict.fromkeys(map(_local_path, found)))


def _broker_names(text: str | None, paths: tuple[str, ...]) -> Mapping[str, str]:
    """Return the names of brokers by store, without a slash at its end."""
    names = {} if text is None else _json(text)
    if not isinstance(names, dict) or not all(map(_is_text, names.values())):
        raise ConfigError(
            f"option 'brokerNames' = {shown(text or '')} is not a JSON object of names by path"
        )
    by_path = {_local_path(path).rstrip("/"): name for path, name in names.items()}
    for path in by_path:
        if not any(path == p.rstrip("/") or fnmatch(path, p.rstrip("/")) for p in paths):
            raise ConfigError(f"option 'brokerNames' names {shown(path)}, which is not read")
    return by_path


def _json(text: str) -> Any:
    """Return the value of a JSON text of bounded length, None if it is malformed."""
    with suppress(ValueError, RecursionError):
        if len(text) <= _JSON_LENGTH_MAX:
            return json.loads(text)
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


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


def _by_broker(name: str, raw: str | None, parse: Callable[[str], str]) -> ByBroker:
    """Return one value, or those of a JSON object by broker. Raises ConfigError."""
    value = None if raw is None else _json(raw)
    if not isinstance(value, dict):
        return None if raw is None else parse(raw)
    if not value or not all(map(_is_text, value.values())):
        raise ConfigError(
            f"option {name!r} = {shown(raw or '')} is not a JSON object of texts by broker"
        )
    return {broker: parse(text) for broker, text in value.items()}


def _conf_path(raw: str) -> str:
    return str(given_path(_local_path(raw)))


def _version(raw: str) -> str:
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
    if raw is not None:
        check_topic_pattern(raw, "option 'subscribePattern' =")
    return raw


def _offsets(name: str, raw: str) -> Offsets:
    text = raw.strip()
    if text in (EARLIEST, LATEST):
        return text
    value = _json(text)
    offsets = _store_offsets(value)
    if offsets is not None:
        return offsets
    if isinstance(value, dict) and value:
        by_broker = {broker: _store_offsets(of_broker) for broker, of_broker in value.items()}
        known = {broker: n for broker, n in by_broker.items() if n is not None}
        if len(known) == len(by_broker):
            return known
    raise ConfigError(
        f"option {name!r} = {shown(raw)} is not 'earliest', 'latest', "
        f'{{"{OFFSET_KEY}": N}} with N from 0 to {INT64_MAX}, or {{"topic": {{"queue id": N}}}} '
        "with N from -2 (earliest), nor such offsets by broker"
    )


def _store_offsets(value: Any) -> StoreOffsets | None:
    offset = _offset(value)
    return parse_queue_offsets(value) if offset is None else offset


def _offset(value: Any) -> int | None:
    """Return the N of ``{"commit_log_offset": N}``, None if it is anything else."""
    if not isinstance(value, dict) or set(value) != {OFFSET_KEY}:
        return None
    offset = value[OFFSET_KEY]
    is_offset = isinstance(offset, int) and not isinstance(offset, bool)
    return offset if is_offset and 0 <= offset <= INT64_MAX else None


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


def _is_kafka(raw: str) -> bool:
    value = raw.strip().lower()
    if value not in _COLUMNS:
        raise ConfigError(f"option 'columns' = {shown(raw)} is neither message nor kafka")
    return value == "kafka"


def _flag(name: str, raw: str) -> bool:
    value = parse_boolean(raw)
    if value is None:
        raise ConfigError(f"option {name!r} = {shown(raw)} is neither true nor false")
    return value
