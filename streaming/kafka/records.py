"""The messages of a stretch of the log as Kafka records. Pure but for maps.

The headers of a record are the message's properties in their order, then those of ``HEADERS``. Its
key is the first of KEYS, else UNIQ_KEY, else none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.arrow.batches import BodyLimits, message_batches
from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.errors import ConfigError

# The headers added to the message's properties, in this order.
HEADERS = (
    "reput.topic", "reput.queue_id", "reput.queue_offset", "reput.commit_log_offset",
    "reput.born_timestamp", "reput.born_host",
)  # fmt: skip
HAS_NO_QUEUES = -1
BY_KEY = -1  # the client chooses the partition, by the hash of Kafka's own clients
_POSITIVE = 0x7FFFFFFF
# The columns of HEADERS after the first.
_HEADER_COLUMNS = (
    "queue_id", "queue_offset", "commit_log_offset", "born_timestamp_ms", "born_host",
)  # fmt: skip
_COLUMNS = (*_HEADER_COLUMNS, "store_timestamp_ms", "keys", "uniq_key", "body", "properties")
_NUL = "\0"


class Record(NamedTuple):
    """A record as ``Producer.produce`` takes it, and its physical offset in the log."""

    topic: str
    value: bytes
    key: bytes | None
    partition: int
    timestamp: int
    headers: list[tuple[str, bytes]]
    commit_log_offset: int


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a RocketMQ topic; ``queues`` is -1 if their number is unknown."""

    kafka_topic: str
    partitions: int
    queues: int = HAS_NO_QUEUES

    def partition(self, queue_id: int, key: bytes | None) -> int:
        """Return a message's partition.

        By queue id if the topic has as many queues as partitions, or if the number of its queues is
        unknown and the partition exists; else by key, and without a key by queue id.
        """
        by_queue = self.queues in (HAS_NO_QUEUES, self.partitions)
        if by_queue and 0 <= queue_id < self.partitions:
            return queue_id
        return BY_KEY if key is not None else (queue_id & _POSITIVE) % self.partitions


@dataclass(frozen=True, slots=True)
class LogFile:
    """A mapped commit log file: its bytes, base and path."""

    view: NDArray[np.uint8]
    base: int
    path: str


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads the records of a stretch from the commit log file that contains it."""

    config: StoreConfig
    limits: BodyLimits

    def read(
        self, requests: DispatchRequests, routes: Mapping[str, Route], file: LogFile
    ) -> Iterator[Record]:
        """Yield the records of the messages with a route, in log order.

        Raises DamageError for a message that changed since it was scanned, BodyTooLargeError,
        ConfigError for one that Kafka's client cannot send; what precedes it has been yielded.
        """
        rows = mirrored_rows(requests, routes)
        if not len(rows):
            return
        at = 0
        queues = requests.queue[rows].tolist()
        for columns in message_batches(
            requests, file.view, file.base, _COLUMNS,
            rows=rows, config=self.config, path=file.path, limits=self.limits,
        ):  # fmt: skip
            topics = [requests.topics[queue] for queue in queues[at : at + columns.num_rows]]
            yield from _records(columns, topics, routes, file.path)
            at += columns.num_rows


def mirrored_rows(requests: DispatchRequests, routes: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the rows of the messages that are in a queue and whose topic has a route."""
    of_queue = np.array([topic in routes for topic in requests.topics], np.bool_)
    return np.flatnonzero(of_queue[requests.queue] & requests.is_queued)


def _records(
    found: pa.RecordBatch, topics: list[str], routes: Mapping[str, Route], path: str
) -> Iterator[Record]:
    columns = dict(zip(_COLUMNS, found.columns, strict=True))
    properties = columns["properties"]
    entries = list(zip(properties.keys.to_pylist(), _bytes(properties.items), strict=True))
    entry_at = properties.offsets.to_pylist()
    has_nul = pc.any(pc.match_substring(properties.keys, _NUL)).as_py()
    queue_ids, offsets = columns["queue_id"].to_pylist(), columns["commit_log_offset"].to_pylist()
    timestamps, bodies = columns["store_timestamp_ms"].to_pylist(), columns["body"].to_pylist()
    keys, uniq_keys = _bytes(columns["keys"]), _bytes(columns["uniq_key"])
    topic_bytes = {topic: topic.encode("utf-8", "surrogatepass") for topic in routes}
    header_values = zip(*(_bytes(columns[name]) for name in _HEADER_COLUMNS), strict=True)
    for row, (topic, values) in enumerate(zip(topics, header_values, strict=True)):
        route = routes[topic]
        headers = entries[entry_at[row] : entry_at[row + 1]]
        if has_nul and any(_NUL in name for name, _ in headers):
            raise ConfigError(
                f"the message at offset {offsets[row]} of {path} has a property whose name "
                "contains a NUL character, which Kafka's client cannot send"
            )
        headers += zip(HEADERS, (topic_bytes[topic], *values), strict=True)
        key = (keys[row] or b"").lstrip(b" ").partition(b" ")[0] or uniq_keys[row]
        yield Record(
            route.kafka_topic,
            bodies[row],
            key,
            route.partition(queue_ids[row], key),
            timestamps[row],
            headers,
            offsets[row],
        )


def _bytes(column: pa.Array) -> list[Any]:
    """Return the values of a column, in decimal if they are numbers, as bytes."""
    values: list[Any] = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return values
