"""The messages of a stretch of the log as Kafka record batches, by partition; pure but for maps.

A batch lacks its header, which only the producer can write: producer id and sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import codec
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.errors import ConfigError, shown
from store.layout import SYS_COMMIT
from store.reads.arrow import BodyLimits, message_batches
from streaming.kafka import record_kernel as rk
from streaming.kafka.record_kernel import Batches, Messages

Compress = Callable[[bytes | memoryview], bytes]

_COLUMNS = ("body", "properties", "born_host", "born_timestamp", "queue_id")
_MICROSECONDS = 1000


# Name -> (codec id in a batch's attributes, compress function).
CODECS: Mapping[str, tuple[int, Compress | None]] = MappingProxyType(
    {
        "none": (0, None),
        "gzip": (1, codec.gzip_encode),
        "snappy": (2, codec.snappy_encode),
        "lz4": (3, codec.lz4_encode),
        "zstd": (4, codec.zstd_encode),
    }
)


@dataclass(frozen=True, slots=True)
class Route:
    """The target of a RocketMQ topic; ``queues`` is -1 if their number is unknown."""

    kafka_topic: str
    partitions: int
    queues: int = rk.HAS_NO_QUEUES


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one partition; offsets are physical offsets in the commit log."""

    topic: str
    partition: int
    count: int
    base_timestamp: int
    max_timestamp: int
    records: bytes  # as sent, possibly compressed
    is_compressed: bool
    first_offset: int
    largest_offset: int  # of the largest message
    largest_size: int  # of its record, before compression


@dataclass(frozen=True, slots=True)
class Encoder:
    """Builds record batches of at most ``batch_bytes`` (before compression)."""

    config: StoreConfig
    batch_bytes: int
    compress: Compress | None
    limits: BodyLimits = field(default_factory=BodyLimits)

    def encode(
        self,
        requests: DispatchRequests,
        routes: Mapping[str, Route],
        file: tuple[NDArray[np.uint8], int, str],
    ) -> list[RecordBatch]:
        """Return the batches of the messages with a route, in log order per partition.

        ``file`` is the commit log file that contains them all: its bytes, base and path. Raises
        DamageError for a record that changed since it was scanned, BodyTooLargeError.
        """
        rows = mirrored_rows(requests, routes)
        if not len(rows):
            return []
        view, base, path = file
        found = message_batches(
            requests, view, base, _COLUMNS,
            rows=rows, config=self.config, path=path, limits=self.limits,
        )  # fmt: skip
        batches: list[RecordBatch] = []
        at = 0
        for columns in found:
            part = rows[at : at + columns.num_rows]
            at += columns.num_rows
            batches += self._encode_part(requests, part, routes, columns)
        return batches

    def _encode_part(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64],
        routes: Mapping[str, Route],
        columns: pa.RecordBatch,
    ) -> list[RecordBatch]:
        names = list(routes)
        messages = self._messages(requests, rows, names, columns)
        rk.find_keys(messages)
        partition = np.empty(len(rows), np.int32)
        counts = np.array([routes[t].partitions for t in names], np.int32)
        queues = np.array([routes[t].queues for t in names], np.int32)
        rk.choose_partitions(messages, counts, queues, partition)
        return self._batches(messages, partition, [routes[t].kafka_topic for t in names])

    def _messages(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64],
        names: list[str],
        found: pa.RecordBatch,
    ) -> Messages:
        columns = dict(zip(_COLUMNS, found.columns, strict=True))
        numbers = {topic: number for number, topic in enumerate(names)}
        of_queue = np.array([numbers.get(t, -1) for t in requests.topics], np.int32)
        topics = [topic.encode("utf-8", "surrogatepass") for topic in names]
        properties = columns["properties"]
        return Messages(
            *_texts(columns["body"]),
            _numbers(properties, 1, np.int32),
            *_texts(properties.keys),
            *_texts(properties.items),
            *_texts(columns["born_host"]),
            np.empty(len(rows), np.int64),
            np.empty(len(rows), np.int64),
            np.ascontiguousarray(requests.store_timestamp[rows], np.int64),
            _numbers(columns["queue_id"], 1, np.int32),
            np.ascontiguousarray(requests.queue_offset[rows], np.int64),
            np.ascontiguousarray(requests.commit_log_offset[rows], np.int64),
            _numbers(columns["born_timestamp"], 1, np.int64) // _MICROSECONDS,
            of_queue[requests.queue[rows]],
            np.cumsum([0, *map(len, topics)], dtype=np.int32),
            np.frombuffer(b"".join(topics), np.uint8),
        )

    def _batches(
        self, m: Messages, partition: NDArray[np.int32], kafka_topics: list[str]
    ) -> list[RecordBatch]:
        """Encode the records, ordered by topic and partition, and compress each batch."""
        targets = {topic: number for number, topic in enumerate(dict.fromkeys(kafka_topics))}
        target_of = np.array([targets[topic] for topic in kafka_topics], np.int64)
        groups = target_of[m.topic] << 32 | partition
        rows = np.argsort(groups, kind="stable")
        out = np.empty(_room(m), np.uint8)
        batches = Batches(*(np.empty(len(rows), np.int64) for _ in Batches._fields))
        count = rk.encode((rows, groups), m, self.batch_bytes, out, batches)
        names = list(targets)
        return [self._batch(m, batches, b, names, out) for b in range(count)]

    def _batch(
        self, m: Messages, batches: Batches, b: int, names: list[str], out: NDArray[np.uint8]
    ) -> RecordBatch:
        group = int(batches.group[b])
        raw = out[batches.begin[b] : batches.end[b]].tobytes()
        packed = self.compress(raw) if self.compress is not None else raw
        is_compressed = len(packed) < len(raw)
        return RecordBatch(
            topic=names[group >> 32],
            partition=group & 0xFFFFFFFF,
            count=int(batches.records[b]),
            base_timestamp=int(batches.base_timestamp[b]),
            max_timestamp=int(batches.max_timestamp[b]),
            records=packed if is_compressed else raw,
            is_compressed=is_compressed,
            first_offset=int(m.commit_log_offset[batches.first_row[b]]),
            largest_offset=int(m.commit_log_offset[batches.largest_row[b]]),
            largest_size=int(batches.largest_size[b]),
        )


def check_codec(name: str) -> None:
    """Raise ConfigError for a compression that is unknown or whose package is missing."""
    if name not in CODECS:
        raise ConfigError(f"compression {shown(name)} is none of {', '.join(CODECS)}")
    compress = CODECS[name][1]
    if compress is not None:
        try:
            compress(b"x")
        except NotImplementedError as e:
            raise ConfigError(f"compression {name} needs a package: python-{name}") from e


def mirrored_rows(requests: DispatchRequests, routes: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the rows of the messages that are in a queue and whose topic has a route.

    A prepared or rolled back half message is in no queue.
    """
    of_queue = np.array([topic in routes for topic in requests.topics], np.bool_)
    is_stored = (requests.transaction == 0) | (requests.transaction == SYS_COMMIT)
    return np.flatnonzero(of_queue[requests.queue] & is_stored)


def _room(m: Messages) -> int:
    """Return an upper bound of the size of the records, in bytes."""
    names = np.diff(m.topic_at)[m.topic].sum() if len(m.topic) else 0
    sizes = len(m.bodies) + len(m.names) + 2 * len(m.values) + len(m.hosts) + int(names)
    return sizes + len(m.topic) * rk.RECORD_OVERHEAD + (len(m.name_at) - 1) * rk.ENTRY_OVERHEAD


def _texts(column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return the offsets and the bytes of a string or binary column, without copying."""
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return at, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def _numbers(column: pa.Array, buffer: int, kind: type[Any]) -> NDArray[Any]:
    """Return one of a column's buffers as an array."""
    return np.frombuffer(column.buffers()[buffer], kind)
