"""Messages as rows: the ranges of one or several stores, read on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from store.arrow.batches import BodyLimits, message_batches
from store.arrow.schema import rows_of_topics
from store.commitlog.boundary_search import narrow_to_times
from store.commitlog.commit_log import was_closed_cleanly
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.reader.log_batches import DataLoss, LogBatches, warn_skipped
from store.commitlog.scanner import Damage, Scanner
from store.io.mapped_file import map_file
from streaming.sources.kafka_view import MESSAGE_COLUMNS, as_kafka
from streaming.sources.options import SourceOptions
from streaming.sources.partitions import MessagePartition
from streaming.sources.pushdown import RowFilter
from streaming.sources.queues.offsets import QueueSpans
from streaming.sources.stores import Store

BROKER = "broker"  # the column of the broker's name, beside those of a message


@dataclass(frozen=True)
class MessageRows:
    """What a read returns, for batch and stream readers alike."""

    options: SourceOptions
    columns: tuple[str, ...]
    filter: RowFilter = field(default_factory=RowFilter)

    def open_log(self, store: Store, range_bytes: int) -> LogBatches:
        """Open the log of a store. Raises ConfigError, UnsupportedFormatError, StoreIOError."""
        store_root, config = Path(store.store_root), store.config()
        return LogBatches(
            store_root,
            config,
            is_clean=lambda: was_closed_cleanly(store_root),
            range_bytes=range_bytes,
            data_loss=DataLoss.FAIL if self.options.fail_on_data_loss else DataLoss.SKIP,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. For a plan without ranges, Spark passes a partition of its own."""
        if not isinstance(partition, MessagePartition):
            return
        part, config = partition.part, partition.config
        if "store_timestamp" in self.filter.bounds:
            part = narrow_to_times(part, config, self.filter.bound("store_timestamp"))
        skip = not self.options.fail_on_data_loss
        limits = BodyLimits(self.options.max_body_bytes, leaves_out=skip)
        names = tuple(name for name in self.columns if name != BROKER)
        is_kafka = self.options.is_kafka
        decoded = tuple(MESSAGE_COLUMNS[n] for n in names) if is_kafka else names
        view = None
        for stretch in Scanner(config).read(part, skip_damage=skip):
            if isinstance(stretch, Damage):
                if not skip:
                    raise stretch.error()
                warn_skipped(stretch)
                continue
            rows = np.flatnonzero(self._chosen(stretch, partition.queues))
            if not len(rows):
                continue
            if view is None:
                view = map_file(Path(part.path))
            for batch in message_batches(
                stretch, view, part.base, decoded,
                rows=rows, config=config, path=part.path, limits=limits,
            ):  # fmt: skip
                made = as_kafka(batch, names) if is_kafka and names else batch
                yield self._with_broker(made, len(rows), partition.store)

    def _with_broker(self, batch: pa.RecordBatch, count: int, store: Store) -> pa.RecordBatch:
        """Add the broker's column where it is wanted."""
        if BROKER not in self.columns:
            return batch
        at = self.columns.index(BROKER)
        count = batch.num_rows if batch.num_columns else count
        arrays = [*batch.columns]
        arrays.insert(at, pa.repeat(store.broker, count))
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    def _chosen(self, requests: DispatchRequests, queues: QueueSpans) -> NDArray[np.bool_]:
        """Return for each record whether it matches the topics, the queues and the filters."""
        chosen = self.filter.mask(requests)
        if self.options.is_kafka or queues:
            chosen &= requests.is_queued
        if queues:
            chosen &= queues.mask(requests)
        if self.options.filters_topics:
            chosen &= rows_of_topics(requests, self.options.wants)
        return chosen
