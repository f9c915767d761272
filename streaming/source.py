"""The data source ``rocketmq-commitlog``: messages as rows, in batch and as a stream.

::

    spark.dataSource.register(CommitLogDataSource)
    spark.read.format("rocketmq-commitlog").load(store_root)
    spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")…

A stream's offset is ``{"commit_log_offset": N}``, the physical offset up to which the log has been
read; the end of a micro-batch is always a record boundary. Only the columns of the schema given
with ``.schema("…")`` are decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from store.config import StoreConfig, load_config
from store.dispatch_request import DispatchRequests
from store.errors import ConfigError
from store.foreign import refuse_foreign_store
from store.layout import ABORT_FILE
from store.log_position import check_boundary, first_stored_at
from store.mapped_file import map_file
from store.message_columns import message_batch
from store.message_schema import MESSAGE_FIELDS, message_schema, rows_of_topics
from store.scan import Damage, Scanner
from streaming.log_stream import RANGE_BYTES_MIN, LogPartition, LogStream, LogStreamReader, Offset
from streaming.options import EARLIEST, LATEST, OFFSET_KEY, SourceOptions, parse_options
from streaming.pushdown import RowFilter, pushdown_is_enabled

FORMAT = "rocketmq-commitlog"

MESSAGE_SCHEMA = (
    "topic STRING, queue_id INT, queue_offset BIGINT, commit_log_offset BIGINT, size INT, "
    "tags STRING, keys STRING, uniq_key STRING, body BINARY, properties MAP<STRING,STRING>, "
    "store_timestamp TIMESTAMP, born_timestamp TIMESTAMP, born_host STRING, store_host STRING, "
    "reconsume_times INT, flag INT, sys_flag INT, tags_code BIGINT, "
    "prepared_transaction_offset BIGINT, body_crc INT"
)
_BATCH_PARTITION_BYTES = 64 * 1024 * 1024
_STREAM_PARTITIONS = 2


class CommitLogDataSource(DataSource):
    """A broker's commit log as a Spark data source."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of a message; without a body where ``includeBody`` is false."""
        options = parse_options(dict(self.options))
        if options.include_body:
            return MESSAGE_SCHEMA
        return MESSAGE_SCHEMA.replace("body BINARY, ", "")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        options = parse_options(dict(self.options), streaming=False)
        kind = FilteringReader if pushdown_is_enabled() else CommitLogReader
        return kind(_MessageRows(options, _wanted(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader."""
        options = parse_options(dict(self.options), streaming=True)
        return CommitLogStreamReader(_MessageRows(options, _wanted(schema)))


def _wanted(schema: StructType) -> tuple[str, ...]:
    """Return the columns asked for. Raises ConfigError for one that a message does not have."""
    names = tuple(f.name for f in schema.fields)
    expected = message_schema(names)
    for f in schema.fields:
        if to_arrow_type(f.dataType, timezone="UTC") != expected.field(f.name).type:
            wanted = MESSAGE_FIELDS[f.name]
            raise ConfigError(
                f"column {f.name!r} has the Arrow type {wanted}, not {f.dataType.simpleString()}"
            )
    return names


@dataclass(frozen=True)
class _MessageRows:
    """Reading one range as rows: what every reader, batch or stream, does on an executor."""

    options: SourceOptions
    wanted: tuple[str, ...]
    filter: RowFilter = field(default_factory=RowFilter)

    def config(self) -> StoreConfig:
        conf = self.options.broker_conf
        store_root = Path(self.options.store_root)
        return load_config(store_root, Path(conf) if conf else None, self.options.broker_version)

    def stream(self, range_bytes: int) -> LogStream:
        store_root, config = Path(self.options.store_root), self.config()
        if not store_root.is_dir():
            raise ConfigError(f"{store_root} is not a directory: give a broker's storePathRootDir")
        refuse_foreign_store(store_root, config)
        return LogStream(
            store_root,
            config,
            is_clean=lambda: not (store_root / ABORT_FILE).exists(),
            max_bytes=self.options.max_bytes_per_trigger,
            range_bytes=range_bytes,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range; for a plan without ranges Spark makes a partition of its own."""
        if not isinstance(partition, LogPartition):
            return
        part, config = partition.part, self.config()
        skip = not self.options.fail_on_data_loss
        view = None
        for stretch in Scanner(config).read(part, skip_damage=skip):
            if isinstance(stretch, Damage):
                if not skip:
                    raise stretch.error()
                continue
            rows = self._rows(stretch)
            if not len(rows):
                continue
            if view is None:
                view = map_file(Path(part.path))
            yield message_batch(
                stretch, view, part.base, self.wanted, rows=rows, config=config, path=part.path
            )

    def _rows(self, requests: DispatchRequests) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows of the topics and times asked for."""
        chosen = self.filter.mask(requests)
        if self.options.filters_topics:
            chosen &= rows_of_topics(requests, self.options.wants)
        return np.flatnonzero(chosen)


def starting_offset(options: SourceOptions, stream: LogStream) -> int:
    """Return where a read begins: ``startingTimestamp`` wins over ``startingOffsets``."""
    log, start = stream.log, options.starting_offsets
    if options.starting_timestamp is not None:
        return first_stored_at(log, options.starting_timestamp)
    if start == EARLIEST:
        return max(log.min_offset(), 0)
    return log.max_offset() if start == LATEST else int(start)


def ending_offset(options: SourceOptions, stream: LogStream) -> int:
    """Return where a batch read ends (exclusive); a time is inclusive, as Kafka's is."""
    if options.ending_timestamp is not None:
        return first_stored_at(stream.log, options.ending_timestamp + 1)
    end = options.ending_offsets
    if end == EARLIEST:
        raise ConfigError("option 'endingOffsets' = 'earliest' leaves nothing to read")
    return stream.report_latest()[OFFSET_KEY] if end == LATEST else int(end)


class CommitLogReader(DataSourceReader):
    """Reads a range of the log once."""

    def __init__(self, rows: _MessageRows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges between the starting and the ending offset."""
        options = self._rows.options
        stream = self._rows.stream(_BATCH_PARTITION_BYTES)
        begin, end = starting_offset(options, stream), ending_offset(options, stream)
        check_boundary(stream.log, begin)
        check_boundary(stream.log, end)
        if begin > end:
            raise ConfigError(f"the read begins at offset {begin}, behind its end at {end}")
        begin, end = _narrowed(begin, end, self._rows.filter, stream.log.file_size)
        if begin >= end:
            return []
        if options.min_partitions is not None:
            stream = self._rows.stream(max((end - begin) // options.min_partitions, 1))
        return [LogPartition(part) for part in stream.plan_between(begin, end).ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)


class FilteringReader(CommitLogReader):
    """Reads a range of the log once, where the session allows filters to be pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what rows can be chosen by before they are decoded; Spark evaluates all again."""
        self._rows.filter.add(filters)
        return filters


def _narrowed(begin: int, end: int, rows: RowFilter, file_size: int) -> tuple[int, int]:
    """Leave out whole files of the log that hold no offset asked for."""
    low, high = rows.bound("commit_log_offset")
    first, behind = low // file_size * file_size, (high // file_size + 1) * file_size
    return max(begin, first), min(end, behind)


class CommitLogStreamReader(LogStreamReader):
    """Tails the log."""

    def __init__(self, rows: _MessageRows) -> None:
        self._rows = rows
        self._initial: int | None = None

    def open_stream(self) -> LogStream:
        """Return the stream as the options say."""
        options = self._rows.options
        batch = options.max_bytes_per_trigger or _BATCH_PARTITION_BYTES
        parts = options.min_partitions or _STREAM_PARTITIONS
        return self._rows.stream(max(batch // parts, RANGE_BYTES_MIN))

    def initialOffset(self) -> Offset:
        """Return where a new query begins. Called twice by Spark: the answer stays the same."""
        if self._initial is None:
            self._initial = starting_offset(self._rows.options, self.stream)
            check_boundary(self.stream.log, self._initial)
        return {OFFSET_KEY: self._initial}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)
