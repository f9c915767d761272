"""The data source ``rocketmq-commitlog``: messages as rows, in batch and as a stream.

::

    spark.dataSource.register(CommitLogDataSource)
    spark.read.format("rocketmq-commitlog").load(store_root)
    spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")…

A stream's offset is ``{"commit_log_offset": N}``, the physical offset up to which the log has been
read; a micro-batch always ends at a record boundary. Only the columns of the schema given with
``.schema("…")`` are decoded.
"""

from __future__ import annotations

import json
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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType

from store.arrow.batches import BodyLimits, message_batches
from store.arrow.schema import MESSAGE_FIELDS, message_schema, rows_of_topics
from store.commitlog.commit_log import was_closed_cleanly
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage, Scanner
from store.commitlog.search import check_boundary, first_stored_after, first_stored_at
from store.config import StoreConfig, load_config
from store.errors import ConfigError, StoreError
from store.io.mapped_file import map_file
from store.unsupported import refuse_unsupported_store, require_log_files
from streaming.sources.known_topics import check_topics, warn_of_unlisted
from streaming.sources.log_stream import (
    RANGE_BYTES_MIN,
    DataLoss,
    LogPartition,
    LogStream,
    LogStreamReader,
    Offset,
    warn_skipped,
)
from streaming.sources.options import (
    EARLIEST,
    LATEST,
    OFFSET_KEY,
    SourceOptions,
    given_options,
    is_table,
    parse_options,
    table_options,
)
from streaming.sources.pushdown import RowFilter, is_pushdown_enabled

FORMAT = "rocketmq-commitlog"

# The schema as text, to declare a table of messages.
MESSAGE_SCHEMA = (
    "topic STRING, queue_id INT, queue_offset BIGINT, commit_log_offset BIGINT, size INT, "
    "tags STRING, keys STRING, uniq_key STRING, body BINARY, properties MAP<STRING,STRING>, "
    "store_timestamp TIMESTAMP, born_timestamp TIMESTAMP, born_host STRING, store_host STRING, "
    "reconsume_times INT, flag INT, sys_flag INT, tags_code BIGINT, "
    "prepared_transaction_offset BIGINT, body_crc INT"
)
_TABLE = FORMAT  # key of the column metadata that holds a table's options
_BATCH_PARTITION_BYTES = 64 * 1024 * 1024
_TASK_BYTES_MIN = 16 * 1024  # reading less takes less time than starting a task
_STREAM_PARTITIONS = 2


class CommitLogDataSource(DataSource):
    """A broker's commit log as a Spark data source."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of a message, without a body if ``includeBody`` is false.

        Spark keeps a table's schema but does not pass its options to a reader. So the options are
        stored in the metadata of the first column.
        """
        include_body = parse_options(dict(self.options)).include_body
        names = [name for name in MESSAGE_FIELDS if include_body or name != "body"]
        schema = from_arrow_schema(message_schema(names))
        if is_table(self.options):
            schema.fields[0].metadata = {_TABLE: json.dumps(given_options(self.options))}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        options = parse_options(self._options(schema, streaming=False), streaming=False)
        reader = FilteringReader if is_pushdown_enabled() else CommitLogReader
        return reader(_MessageRows(options, _requested_columns(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader, which raises wrong options: Spark hides errors raised here."""
        try:
            options = parse_options(self._options(schema, streaming=True), streaming=True)
            return CommitLogStreamReader(_MessageRows(options, _requested_columns(schema)))
        except StoreError as e:
            return RefusedStreamReader(e)

    def _options(self, schema: StructType, *, streaming: bool) -> dict[str, str]:
        """Return the options of the read, which override those of the table."""
        stored = schema.fields[0].metadata.get(_TABLE) if schema.fields else None
        table = table_options(json.loads(stored), streaming=streaming) if stored else {}
        return table | given_options(self.options)


def _requested_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema. Raises ConfigError for a column that messages lack."""
    names = tuple(f.name for f in schema.fields)
    expected = message_schema(names)
    for f in schema.fields:
        if to_arrow_type(f.dataType, timezone="UTC") != expected.field(f.name).type:
            actual = MESSAGE_FIELDS[f.name]
            raise ConfigError(
                f"column {f.name!r} has the Arrow type {actual}, not {f.dataType.simpleString()}"
            )
    return names


@dataclass(frozen=True)
class _MessageRows:
    """Reads one range as rows on an executor, for batch and stream readers alike."""

    options: SourceOptions
    columns: tuple[str, ...]
    filter: RowFilter = field(default_factory=RowFilter)

    def config(self) -> StoreConfig:
        conf = self.options.broker_conf
        store_root = Path(self.options.store_root)
        return load_config(store_root, Path(conf) if conf else None, self.options.broker_version)

    def stream(self, range_bytes: int) -> LogStream:
        store_root, config = Path(self.options.store_root), self.config()
        if not store_root.is_dir():
            raise ConfigError(f"{store_root} is not a directory: give a broker's storePathRootDir")
        refuse_unsupported_store(store_root, config)
        return LogStream(
            store_root,
            config,
            is_clean=lambda: was_closed_cleanly(store_root),
            max_bytes=self.options.max_bytes_per_trigger,
            range_bytes=range_bytes,
            data_loss=DataLoss.FAIL if self.options.fail_on_data_loss else DataLoss.SKIP,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. For a plan without ranges, Spark passes a partition of its own."""
        if not isinstance(partition, LogPartition):
            return
        part, config = partition.part, self.config()
        skip = not self.options.fail_on_data_loss
        limits = BodyLimits(self.options.max_body_bytes, leaves_out=skip)
        view = None
        for stretch in Scanner(config).read(part, skip_damage=skip):
            if isinstance(stretch, Damage):
                if not skip:
                    raise stretch.error()
                warn_skipped(stretch)
                continue
            rows = self._rows(stretch)
            if not len(rows):
                continue
            if view is None:
                view = map_file(Path(part.path))
            yield from message_batches(
                stretch, view, part.base, self.columns,
                rows=rows, config=config, path=part.path, limits=limits,
            )  # fmt: skip

    def _rows(self, requests: DispatchRequests) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the rows that match the topics and the filters."""
        chosen = self.filter.mask(requests)
        if self.options.filters_topics:
            chosen &= rows_of_topics(requests, self.options.wants)
        return np.flatnonzero(chosen)


def starting_offset(options: SourceOptions, stream: LogStream) -> int:
    """Return where a read begins; ``startingTimestamp`` overrides ``startingOffsets``."""
    log, start = stream.log, options.starting_offsets
    if options.starting_timestamp is not None:
        return first_stored_at(log, options.starting_timestamp)
    if start == EARLIEST:
        return max(log.min_offset(), 0)
    return log.max_offset() if start == LATEST else int(start)


def ending_offset(options: SourceOptions, stream: LogStream) -> int:
    """Return the exclusive end of a batch read; a time is inclusive, as in Kafka."""
    if options.ending_timestamp is not None:
        return first_stored_after(stream.log, options.ending_timestamp)
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
        require_log_files(Path(options.store_root), stream.log.config)
        if options.subscribe is not None:
            check_topics(Path(options.store_root), options.subscribe, stream)
        begin, end = starting_offset(options, stream), ending_offset(options, stream)
        check_boundary(stream.log, begin)
        check_boundary(stream.log, end)
        if begin > end:
            raise ConfigError(f"the read begins at offset {begin}, after its end at {end}")
        begin, end = _skip_files(begin, end, self._rows.filter, stream.log.file_size)
        if begin >= end:
            return []
        if options.min_partitions is not None:
            size = (end - begin) // options.min_partitions
            stream = self._rows.stream(max(size, _TASK_BYTES_MIN))
        return [*stream.partitions_of(stream.plan_between(begin, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)


class FilteringReader(CommitLogReader):
    """Reads a range of the log once, with filter push-down, if the session enables it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters before decoding where possible; Spark evaluates all of them again."""
        self._rows.filter.add(filters)
        return filters


def _skip_files(begin: int, end: int, rows: RowFilter, file_size: int) -> tuple[int, int]:
    """Narrow a span to the log files that can hold the offsets in a filter."""
    low, high = rows.bound("commit_log_offset")
    first, last_end = low // file_size * file_size, (high // file_size + 1) * file_size
    return max(begin, first), min(end, last_end)


class RefusedStreamReader(LogStreamReader):
    """The reader of a stream with invalid options: every call raises their error."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def open_stream(self) -> LogStream:
        """Raise the error."""
        raise self._error

    def initialOffset(self) -> Offset:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


class CommitLogStreamReader(LogStreamReader):
    """Tails the log as a stream."""

    def __init__(self, rows: _MessageRows) -> None:
        self._rows = rows
        self._initial: int | None = None

    def open_stream(self) -> LogStream:
        """Return the stream that the options describe."""
        options = self._rows.options
        batch = options.max_bytes_per_trigger or _BATCH_PARTITION_BYTES
        parts = options.min_partitions or _STREAM_PARTITIONS
        if options.subscribe is not None:
            warn_of_unlisted(Path(options.store_root), options.subscribe)
        return self._rows.stream(max(batch // parts, RANGE_BYTES_MIN))

    def initialOffset(self) -> Offset:
        """Return where a new query begins. Spark calls this twice and gets the same offset."""
        if self._initial is None:
            self._initial = starting_offset(self._rows.options, self.stream)
            check_boundary(self.stream.log, self._initial)
        return {OFFSET_KEY: self._initial}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)
