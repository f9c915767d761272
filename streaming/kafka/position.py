"""The position of a mirror: a record in a compacted topic of the Kafka it writes to.

The record is written in the same transaction as the messages it covers, so it is committed if and
only if they are. Its key is the mirror's name, its value JSON:

==================  ==============================================================================
field               meaning
==================  ==============================================================================
version             1, or 2 with ``oversized``
commit_log_offset   physical offset up to which the log has been mirrored: where to resume
last_record         fingerprint of the last record before it (``store.output.progress``), or null
lost_to             end of the last range of the log that was skipped as lost, 0 for none
store               the STORE it was mirrored from, as it was named
messages            how many messages have been mirrored under this name
oversized           how many of its messages were too large for their topic; absent if none was
==================  ==============================================================================
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, errors
from kafka.structs import TopicPartition

from store.errors import ConfigError, KafkaIOError, parse_fault
from store.io.checked_json import Count, Offset, PathText, decode_value
from store.output.progress import Fingerprint
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import ClientOptions
from streaming.kafka.cluster import Cluster

POSITION_TOPIC = "reput-mirror-offsets"
VERSION, VERSION_OVERSIZED = 1, 2
# Small segments, so that a start reads little: Kafka compacts only closed segments.
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}
_POLL_MS = 200
_DIGEST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Position:
    """A mirror's position; offsets are physical offsets in the log."""

    commit_log_offset: Offset
    last_record: Fingerprint | None = None
    lost_to: Offset = 0
    store: PathText = ""
    messages: Count = 0
    oversized: Count = 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A position that Kafka holds, and when it was written, in epoch milliseconds."""

    position: Position
    timestamp: int


def default_name(store_root: Path, prefix: str) -> str:
    """Return the default name of a store's mirror under a prefix; stable across starts."""
    path = str(store_root.resolve())
    digest = hashlib.sha256(f"{path}\0{prefix}".encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{store_root.resolve().name}-{digest}"


def encode_position(position: Position) -> bytes:
    """Encode as JSON, in version 1 if that can hold it."""
    values = {"version": VERSION_OVERSIZED, **asdict(position)}
    if not position.oversized:
        values["version"] = VERSION
        del values["oversized"]
    return json.dumps(values, sort_keys=True).encode()


def decode_position(value: bytes | None, name: str) -> Position:
    """Decode a position. Raises ConfigError for one that this release does not read."""
    try:
        values = {"oversized": 0} | json.loads(value or b"")
        version = values.pop("version")
        if version not in (VERSION, VERSION_OVERSIZED):
            raise ConfigError(
                f"the position of mirror {name!r} has version {version!s:.20}; this release "
                f"reads {VERSION} and {VERSION_OVERSIZED}"
            )
        position: Position = decode_value(Position, values)
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        reason = parse_fault(e) if isinstance(e, ValueError | RecursionError) else repr(e)
        raise ConfigError(f"the position of mirror {name!r} cannot be read: {reason}") from e
    return position


def ensure_position_topic(cluster: Cluster, topic: str) -> None:
    """Create the topic if it is missing. Raises ConfigError if it would delete positions."""
    if not cluster.partitions(topic):
        cluster.create(topic, 1, _SETTINGS)
    policy = cluster.limits(topic).cleanup_policy
    if policy and policy != "compact":
        raise ConfigError(
            f"topic {topic} has cleanup.policy={policy}: its positions would be deleted; set "
            "it to compact, or name another topic (--position-topic)"
        )


def read_position(
    options: ClientOptions, topic: str, name: str, *, waits: bool = True
) -> Committed | None:
    """Return the last position committed under a name, None for a new name.

    The caller ensures that no transaction of that name is open. If one of another name is open,
    wait for the records after it, up to Kafka's transaction timeout; without ``waits``, return what
    is committed before the first open transaction. Raises ConfigError, KafkaIOError.
    """
    seconds = options.get("transaction.timeout.ms") / 1000 + 30
    try:
        ends = _ends(options, topic, "read_uncommitted" if waits else "read_committed")
        consumer = _consumer(options, "read_committed")
        try:
            record = _read_to(consumer, ends, name.encode(), time.monotonic() + seconds)
        finally:
            consumer.close(timeout_ms=1000)
    except errors.KafkaError as e:
        raise as_store_error(e, options, f"reading {topic}") from e
    return (
        None if record is None else Committed(decode_position(record.value, name), record.timestamp)
    )


def _consumer(options: ClientOptions, isolation: str) -> KafkaConsumer:
    arguments = options.of(
        KafkaConsumer,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=isolation,
    )
    return connect(options, lambda: KafkaConsumer(**arguments))


def _ends(options: ClientOptions, topic: str, isolation: str) -> dict[TopicPartition, int]:
    """Return the end offsets of the topic's partitions for consumers of an isolation level."""
    consumer = _consumer(options, isolation)
    try:
        numbers = consumer.partitions_for_topic(topic) or {0}
        ends: dict[TopicPartition, int] = consumer.end_offsets(
            [TopicPartition(topic, number) for number in numbers]
        )
        return ends
    finally:
        consumer.close(timeout_ms=1000)


def _read_to(
    consumer: KafkaConsumer, ends: dict[TopicPartition, int], key: bytes, deadline: float
) -> Any:
    """Return the last committed record of a key before the ends, None if there is none."""
    consumer.assign(list(ends))
    consumer.seek_to_beginning(*ends)
    found = None
    left = {p for p, end in ends.items() if consumer.position(p) < end}
    while left:
        if time.monotonic() > deadline:
            raise KafkaIOError(
                f"the positions in {next(iter(left)).topic} could not be read to their end: "
                "another mirror's transaction is open, or Kafka is slow"
            )
        for records in consumer.poll(timeout_ms=_POLL_MS).values():
            for record in records:
                if record.key == key:
                    found = record
        left = {p for p in left if consumer.position(p) < ends[p]}
    return found
