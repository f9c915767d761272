"""The data source ``rocketmq-commitlog``: messages as rows, in batch and as a stream.

Spark finds it without registration (package ``pyspark_reput``)::

    spark.read.format("rocketmq-commitlog").load(store_root)
    spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")…

A stream's offset is ``{"commit_log_offset": N}``, the physical offset up to which the log has been
read, with several stores one by broker (``streaming.sources.log_streams``). A micro-batch always
ends at record boundaries. Only the columns of the schema given with
``.schema("…")`` are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StructType

from store.arrow.schema import MESSAGE_FIELDS, message_schema
from store.commitlog.boundary_search import boundaries_around, check_boundary
from store.commitlog.commit_log import CommitLog
from store.commitlog.reader.log_batches import LogBatches
from store.errors import ConfigError, StoreError, shown
from store.unsupported import require_log_files
from streaming.sources.kafka_view import KAFKA_FIELDS
from streaming.sources.known_topics import check_topics, warn_of_unlisted
from streaming.sources.log_streams import LogStreams, StreamOffset
from streaming.sources.message_rows import BROKER, MessageRows
from streaming.sources.options import (
    SourceOptions,
    given_options,
    is_table,
    parse_options,
    table_options,
)
from streaming.sources.partitions import (
    BATCH_RANGE_BYTES,
    batch_range_bytes,
    message_partitions,
    stream_range_bytes,
)
from streaming.sources.pushdown import RowFilter, is_pushdown_enabled
from streaming.sources.read_bounds import LogSpan, Start, span_to_read, start_of_read
from streaming.sources.stores import Store, find_stores
from streaming.sources.workers.calls import called_by_spark
from streaming.spark.read_limit import (
    ReadLimit,
    SupportsTriggerAvailableNow,
    read_limit,
)

FORMAT = "rocketmq-commitlog"

# The schema as text, to declare a table of messages.
MESSAGE_SCHEMA = (
    "topic STRING, queue_id INT, queue_offset BIGINT, commit_log_offset BIGINT, size INT, "
    "tags STRING, keys STRING, uniq_key STRING, body BINARY, properties MAP<STRING,STRING>, "
    "store_timestamp TIMESTAMP, born_timestamp TIMESTAMP, born_host STRING, store_host STRING, "
    "reconsume_times INT, flag INT, sys_flag INT, tags_code BIGINT, "
    "prepared_transaction_offset BIGINT, body_crc INT, broker STRING"
)
_TABLE = FORMAT  # key of the column metadata that holds a table's options


@called_by_spark
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
        options = parse_options(dict(self.options))
        schema = from_arrow_schema(_schema_of(_default_columns(options), options))
        if is_table(self.options):
            schema.fields[0].metadata = {_TABLE: json.dumps(given_options(self.options))}
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        options = parse_options(self._options(schema, streaming=False), streaming=False)
        reader = FilteringReader if is_pushdown_enabled() else CommitLogReader
        return reader(MessageRows(options, _requested_columns(schema, options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader, which raises wrong options: Spark hides errors raised here."""
        try:
            options = parse_options(self._options(schema, streaming=True), streaming=True)
            return CommitLogStreamReader(MessageRows(options, _requested_columns(schema, options)))
        except StoreError as e:
            return CommitLogStreamReader(e)

    def _options(self, schema: StructType, *, streaming: bool) -> dict[str, str]:
        """Return the options of the read, which override those of the table."""
        stored = schema.fields[0].metadata.get(_TABLE) if schema.fields else None
        table = table_options(json.loads(stored), streaming=streaming) if stored else {}
        return table | given_options(self.options)


def _default_columns(options: SourceOptions) -> list[str]:
    """Return the columns of a read without a schema; ``includeBody`` and ``paths`` affect them."""
    if not options.is_kafka:
        names = [n for n in MESSAGE_FIELDS if options.include_body or n != "body"]
        return [*names, BROKER]
    names = [n for n in KAFKA_FIELDS if options.include_body or n != "value"]
    return names if options.is_single else [*names, BROKER]


def _schema_of(names: Sequence[str], options: SourceOptions) -> pa.Schema:
    """Return the schema of columns of a message, and of its broker. Raises ConfigError."""
    return pa.schema([pa.field(name, _type_of(name, options)) for name in names])


def _type_of(name: str, options: SourceOptions) -> pa.DataType:
    if name == BROKER:
        return pa.string()
    if not options.is_kafka:
        return message_schema([name]).field(0).type
    if name not in KAFKA_FIELDS:
        known = ", ".join((*KAFKA_FIELDS, BROKER))
        raise ConfigError(f"columns=kafka has no column {shown(name)}; the columns are {known}")
    return KAFKA_FIELDS[name]


def _requested_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a schema. Raises ConfigError for a column that the read lacks."""
    names = tuple(f.name for f in schema.fields)
    for f, expected in zip(schema.fields, _schema_of(names, options), strict=True):
        found = _arrow_type(f.dataType)
        if found != _arrow_type(from_arrow_type(expected.type)):
            raise ConfigError(
                f"column {f.name!r} has the Arrow type {expected.type}, "
                f"not {f.dataType.simpleString()}"
            )
    return names


def _arrow_type(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


@called_by_spark
class CommitLogReader(DataSourceReader):
    """Reads a range of each log once."""

    def __init__(self, rows: MessageRows) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Plan the ranges between the starting and the ending offset of each store."""
        options = self._rows.options
        stores = find_stores(options)
        if not stores:
            raise ConfigError(f"no store matches {', '.join(options.paths)}")
        logs = {store: self._rows.open_log(store, BATCH_RANGE_BYTES) for store in stores}
        for store, log in logs.items():
            require_log_files(Path(store.store_root), log.log.config)
        if options.subscribe is not None:
            check_topics(options.subscribe, {Path(s.store_root): log for s, log in logs.items()})
        spans = {
            s: self._span(s, log) for s, log in logs.items() if self._rows.filter.reads(s.broker)
        }
        if options.min_partitions is not None:
            log_bytes = sum(s.end - s.begin for s in spans.values())
            size = batch_range_bytes(log_bytes, options.min_partitions)
            logs = {s: self._rows.open_log(s, size) for s in spans}
        return [
            part
            for store, span in spans.items()
            if span.begin < span.end
            for part in message_partitions(
                logs[store].ranges(span.begin, span.end),
                store,
                span.queues,
                logs[store].log.config,
            )
        ]

    def _span(self, store: Store, batches: LogBatches) -> LogSpan:
        """Return the span of a log to read. Raises ConfigError."""
        span = span_to_read(self._rows.options, batches, store)
        check_boundary(batches.log, span.begin)
        check_boundary(batches.log, span.end)
        begin, end = _narrow(span.begin, span.end, self._rows.filter, batches.log)
        return replace(span, begin=begin, end=end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)


@called_by_spark
class FilteringReader(CommitLogReader):
    """Reads a range of the log once, with filter push-down, if the session enables it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters before decoding where possible; return those that Spark must evaluate."""
        return self._rows.filter.add(filters)


def _narrow(begin: int, end: int, rows: RowFilter, log: CommitLog) -> tuple[int, int]:
    """Narrow a span to the records that can have the commit log offsets in a filter."""
    low, high = rows.bound("commit_log_offset")
    if begin < low < end:
        begin = min(max(begin, boundaries_around(log, low)[1]), end)
    elif low >= end:
        begin = end
    if begin <= high < end:
        after = boundaries_around(log, high + 1)[1]
        # Where the chain breaks, the damage is read.
        end = min(end, after if after > high else log.roll_next_file(high))
    elif high < begin:
        end = begin
    return begin, end


@called_by_spark
class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tails the log of each store as a stream. Every call raises the error of invalid options."""

    def __init__(self, rows: MessageRows | StoreError) -> None:
        self._given = rows
        self._initial: StreamOffset | None = None

    @property
    def _rows(self) -> MessageRows:
        if isinstance(self._given, StoreError):
            raise self._given
        return self._given

    @cached_property
    def streams(self) -> LogStreams:
        """The streams that the options describe, opened on first use, where Spark plans."""
        options = self._rows.options
        if options.subscribe is not None:
            warn_of_unlisted(options.subscribe, [Path(s.store_root) for s in find_stores(options)])
        size = stream_range_bytes(options.max_bytes_per_trigger, options.min_partitions)
        return LogStreams(self._rows, size)

    def initialOffset(self) -> StreamOffset:
        """Return where a new query begins. Spark calls this twice and gets the same offset."""
        if self._initial is None:
            self._initial = self.streams.initial(self._begin_of)
        return self._initial

    def _begin_of(self, batches: LogBatches, store: Store) -> Start:
        start = start_of_read(self._rows.options, batches, store)
        check_boundary(batches.log, start.offset)
        return start

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Return the end of the next micro-batch."""
        return self.streams.latest(start, limit)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxBytesPerTrigger`` as a limit."""
        return read_limit(self._rows.options.max_bytes_per_trigger)

    def reportLatestOffset(self) -> StreamOffset:
        """Return the current ends of the logs."""
        return self.streams.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query."""
        self.streams.prepare_available_now()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch."""
        return self.streams.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return self._rows.read(partition)
