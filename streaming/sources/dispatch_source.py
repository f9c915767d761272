"""The dispatch query's private data source: a row for each stretch of the log.

``streaming.sources.task_results`` defines the rows. Damage is a row of its own: an error raised in
``read()`` would lose the good records before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from store.commitlog.commit_log import was_closed_cleanly
from store.commitlog.planner import UNLIMITED
from store.commitlog.reader.log_batches import LogBatches
from store.commitlog.scanner import Scanner
from store.config import StoreConfig, config_from_json
from streaming.sources.options import OFFSET_KEY
from streaming.sources.partitions import DispatchPartition
from streaming.sources.task_results import SPOOLED_BATCH_BYTES_MIN, SQL_SCHEMA, Spool, pack
from streaming.sources.workers.calls import called_by_spark
from streaming.spark.batch_pace import BACKLOG_BYTES, BY_NEED, BatchPace, Waiting
from streaming.spark.read_limit import (
    ReadLimit,
    SupportsTriggerAvailableNow,
    max_bytes_of,
    read_limit,
)

FORMAT = "rocketmq-commitlog-dispatch"

Offset = dict[str, int]


class DispatchRequestSource(DataSource):
    """Streams the dispatch requests of a commit log. Only this package sets its options."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the private schema."""
        return SQL_SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        return DispatchRequestReader({k.lower(): v for k, v in self.options.items()})


@called_by_spark
class DispatchRequestReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, scans on the executors."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._max_bytes = int(options["maxbytespertrigger"])
        self._pace = BatchPace() if options.get("pace") == BY_NEED else None

    def _config(self) -> StoreConfig:
        return config_from_json(self._options["config"])

    @cached_property
    def _batches(self) -> LogBatches:
        """The batches that the query's options describe, planned in one process."""
        options = self._options
        store_root = Path(options["path"])
        recorded = options.get("closedcleanly")

        def is_clean() -> bool:
            if recorded is not None:
                return recorded == "true"
            return was_closed_cleanly(store_root)

        until = int(options.get("until", UNLIMITED))
        return LogBatches(
            store_root,
            self._config(),
            is_clean=is_clean,
            range_bytes=int(options["rangebytes"]),
            limit=lambda: until,
        )

    def initialOffset(self) -> Offset:
        """Return the reput offset, which comes from OUTPUT (promise I7)."""
        return {OFFSET_KEY: int(self._options["reputfromoffset"])}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch, once a batch is due."""
        begin = start[OFFSET_KEY]
        if self._pace is not None:
            self._pace.hold(lambda: self.waiting(begin))
        return {OFFSET_KEY: self._batches.next_end(begin, max_bytes_of(limit))}

    def waiting(self, begin: int) -> Waiting:
        """Return what the log holds after an offset, as far as the pace has to know."""
        backlog = min(self._max_bytes, BACKLOG_BYTES)
        records = self._batches.records_after(begin, backlog)
        size = records.end - begin
        return Waiting(len(records.ranges), size, is_backlog=size >= backlog)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        return read_limit(self._max_bytes)

    def reportLatestOffset(self) -> Offset:
        """Return the current end of the log, for the query's status."""
        return {OFFSET_KEY: self._batches.end()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query."""
        self._batches.fix_end()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch."""
        begin, stop = start[OFFSET_KEY], end[OFFSET_KEY]
        is_spooled = stop - begin >= SPOOLED_BATCH_BYTES_MIN
        return [DispatchPartition(part, is_spooled) for part in self._batches.ranges(begin, stop)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scan one range; yield a row for each stretch, or one that names the spool file of all."""
        assert isinstance(partition, DispatchPartition)
        skip = self._options.get("failondataloss") == "false"
        stretches = Scanner(self._config()).read(partition.part, skip_damage=skip)
        rows = [pack(stretch) for stretch in stretches]
        if rows and partition.is_spooled:
            spool = Spool(Path(self._options["spool"]))
            rows = spool.put(partition.part, rows, self._options["spooltoken"])
        yield from rows
