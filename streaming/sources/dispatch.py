"""The dispatch query's private data source: dispatch requests in packed columns.

A row is a stretch of the log (some thousand records): its bounds, its queues, and each column of
``store.commitlog.dispatch_request`` packed into one binary value. So Spark moves a few large values
instead of millions of small ones. Damage is a row of its own: an error raised in ``read()`` would
lose the good records before it. The schema is private to this project.

A worker that sees the query's spool directory bypasses Spark (``streaming.sources.spool``) if the
batch is large: it writes the columns to a file there, and the row names the file. This holds for
every range of the batch, however small: the sink takes a range only after the one before it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from store.commitlog.commit_log import was_closed_cleanly
from store.commitlog.dispatch_request import COLUMN_TYPES, DispatchRequests
from store.commitlog.planner import UNLIMITED
from store.commitlog.scanner import Damage, LogRange, Scanner, Stretch
from store.config import StoreConfig, config_from_json
from store.errors import StoreIOError
from streaming.sources.log_stream import LogPartition, LogStream, LogStreamReader, Offset
from streaming.sources.options import OFFSET_KEY
from streaming.sources.spool import SPOOLED_BATCH_BYTES_MIN, Spool
from streaming.sources.workers.calls import called_by_spark
from streaming.spark.batch_pace import BY_NEED, BatchPace

FORMAT = "rocketmq-commitlog-dispatch"

_ARROW_SCHEMA = pa.schema(
    [
        ("begin_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("spooled", pa.string()),
        ("damage_path", pa.string()),
        ("damage_reason", pa.string()),
        ("damage_is_lost", pa.bool_()),
        ("topics", pa.list_(pa.string())),
        ("queue_ids", pa.binary()),
        *((name, pa.binary()) for name in COLUMN_TYPES),
    ]
)
_SCHEMA = (
    "begin_offset BIGINT, end_offset BIGINT, spooled STRING, damage_path STRING, "
    "damage_reason STRING, "
    "damage_is_lost BOOLEAN, topics ARRAY<STRING>, queue_ids BINARY, "
    + ", ".join(f"{name} BINARY" for name in COLUMN_TYPES)
)


class DispatchRequestSource(DataSource):
    """Streams the dispatch requests of a commit log. Only this package sets its options."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the private schema."""
        return _SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return DispatchRequestReader({k.lower(): v for k, v in self.options.items()})


@dataclass(frozen=True)
class DispatchPartition(LogPartition):
    """One range of the log; ``is_spooled``: its columns bypass Spark if the spool is visible."""

    is_spooled: bool


@called_by_spark
class DispatchRequestReader(LogStreamReader[LogStream]):
    """Plans on the driver, scans on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._pace = BatchPace() if options.get("pace") == BY_NEED else None

    def latestOffset(self, start: Offset, limit: Any) -> Offset:
        """Return the end of the next micro-batch, once a batch is due."""
        if self._pace is not None:
            self._pace.hold(lambda: self.stream.waiting(start))
        return super().latestOffset(start, limit)  # type: ignore[no-any-return]

    def _config(self) -> StoreConfig:
        return config_from_json(self._options["config"])

    def open_stream(self) -> LogStream:
        """Return the stream with the options that the query set."""
        options = self._options
        store_root = Path(options["path"])
        recorded = options.get("closedcleanly")

        def is_clean() -> bool:
            if recorded is not None:
                return recorded == "true"
            return was_closed_cleanly(store_root)

        until = int(options.get("until", UNLIMITED))
        return LogStream(
            store_root,
            self._config(),
            is_clean=is_clean,
            max_bytes=int(options["maxbytespertrigger"]),
            range_bytes=int(options["rangebytes"]),
            limit=lambda: until,
        )

    def initialOffset(self) -> Offset:
        """Return the reput offset, which comes from the root (promise I7)."""
        return {OFFSET_KEY: int(self._options["reputfromoffset"])}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch."""
        is_spooled = end[OFFSET_KEY] - start[OFFSET_KEY] >= SPOOLED_BATCH_BYTES_MIN
        return [DispatchPartition(p.part, is_spooled) for p in self.stream.partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scan one range; yield a row for each stretch, or one that names the spool file of all."""
        assert isinstance(partition, DispatchPartition)
        skip = self._options.get("failondataloss") == "false"
        stretches = Scanner(self._config()).read(partition.part, skip_damage=skip)
        batches = [to_batch(stretch) for stretch in stretches]
        if batches and partition.is_spooled:
            name = self._spool(partition.part, batches)
            if name is not None:
                row: dict[str, Any] = dict.fromkeys(_ARROW_SCHEMA.names)
                row["begin_offset"], row["end_offset"] = partition.part.begin, partition.part.end
                row["spooled"] = name
                batches = [_batch_of(row)]
        yield from batches

    def _spool(self, part: LogRange, batches: list[pa.RecordBatch]) -> str | None:
        """Spool a range and return the file's name; None if this process cannot use the spool.

        Raises StoreIOError.
        """
        spool = Spool(Path(self._options["spool"]))
        if not spool.has_token(self._options["spooltoken"]):
            return None
        try:
            return spool.write((part.begin, part.end), batches)
        except StoreIOError as e:
            if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):  # of another user
                return None
            raise


def to_batch(stretch: DispatchRequests | Damage) -> pa.RecordBatch:
    """Pack a stretch as one row."""
    row: dict[str, Any] = dict.fromkeys(_ARROW_SCHEMA.names)
    row["begin_offset"], row["end_offset"] = stretch.begin, stretch.end
    if isinstance(stretch, Damage):
        row["damage_path"], row["damage_reason"] = stretch.path, stretch.reason
        row["damage_is_lost"] = stretch.is_lost
    else:
        row["topics"] = stretch.topics
        row["queue_ids"] = stretch.queue_ids.astype("<i4").tobytes()
        row.update(stretch.packed())
    return _batch_of(row)


def _batch_of(row: dict[str, Any]) -> pa.RecordBatch:
    arrays = [pa.array([row[f.name]], f.type) for f in _ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def parts_of(table: pa.Table, spool: Spool) -> Iterator[tuple[int, Callable[[], list[Stretch]]]]:
    """Yield the parts of a batch in log order: the end of each, and a function to read it.

    Each spool file is a part of its own. The function may raise StoreIOError.
    """
    inline: list[Stretch] = []
    for row in sorted(table.to_batches(max_chunksize=1), key=_begin_of):
        name = row.column("spooled")[0].as_py()
        if name is None:
            inline += stretches_of([row])
            continue
        if inline:
            yield inline[-1].end, partial(list, inline)
            inline = []
        yield row.column("end_offset")[0].as_py(), partial(spooled_stretches, spool, name)
    if inline:
        yield inline[-1].end, partial(list, inline)


def _begin_of(row: pa.RecordBatch) -> tuple[int, int]:
    return row.column("begin_offset")[0].as_py(), row.column("end_offset")[0].as_py()


def spooled_stretches(spool: Spool, name: str) -> list[Stretch]:
    """Read and remove a spool file. Raises StoreIOError."""
    return stretches_of(spool.take(name))


def stretches_of(batches: Iterable[pa.RecordBatch]) -> list[Stretch]:
    """Unpack rows of one stretch each; the columns are views of the rows' buffers."""
    stretches: list[Stretch] = []
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        for row in range(batch.num_rows):
            span = columns["begin_offset"][row].as_py(), columns["end_offset"][row].as_py()
            reason = columns["damage_reason"][row].as_py()
            if reason is not None:
                path, is_lost = (
                    columns[name][row].as_py() for name in ("damage_path", "damage_is_lost")
                )
                stretches.append(Damage(*span, path, reason, is_lost))
                continue
            queues = columns["topics"][row].as_py(), columns["queue_ids"][row].as_buffer()
            packed = {name: columns[name][row].as_buffer() for name in COLUMN_TYPES}
            stretches.append(DispatchRequests.unpack(span, queues, packed))
    return stretches
