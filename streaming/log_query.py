"""A query of ours: the log's stretches, batch by batch, into a sink, and its end in good order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from store.config import StoreConfig, config_to_json
from streaming.batch_sink import BatchSink
from streaming.dispatch_source import FORMAT, DispatchRequestSource, from_table
from streaming.log_stream import RANGE_BYTES_MIN
from streaming.options import spark_interval
from streaming.progress import DispatchProgress, Listener

_LAST_BATCH_SECONDS = 10.0  # how long a query that is stopped may go on with the batch it is at
_POLL_SECONDS = 0.01

# Called before each batch with what tells whether the query is to end; returns whether it has
# applied what the log holds now, the batch with it.
CatchesUp = Callable[[Callable[[], bool]], bool]


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a query reads and how it runs; offsets and sizes in bytes of log."""

    name: str
    store_root: str
    config: StoreConfig
    begin: int
    max_bytes: int  # a batch
    fail_on_data_loss: bool
    checkpoint: Path
    trigger_interval: str | None  # None: until what the log holds now is done
    options: Mapping[str, str] = field(default_factory=dict)  # further ones, of the source
    on_progress: Callable[[DispatchProgress], None] | None = None
    on_end: Callable[[], None] | None = None
    catches_up: CatchesUp | None = None

    def start(self, spark: SparkSession, sink: BatchSink) -> RunningLogQuery:
        """Start it; when it ends, for whatever reason, the sink is closed."""
        name = f"{self.name}-{uuid.uuid4().hex[:8]}"
        listener = Listener(name, sink, self.on_progress)
        spark.streams.addListener(listener)
        listener.on_end(lambda: spark.streams.removeListener(listener))
        if self.on_end is not None:
            listener.on_end(self.on_end)
        feed = _Feed(sink, self.catches_up)
        writer = self._stream(spark).writeStream.foreachBatch(feed.apply).queryName(name)
        feed.query = self._triggered(writer).start()
        return RunningLogQuery(feed.query, feed)

    def _stream(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(DispatchRequestSource)
        range_bytes = max(self.max_bytes // spark.sparkContext.defaultParallelism, RANGE_BYTES_MIN)
        return (
            spark.readStream.format(FORMAT)
            .option("config", config_to_json(self.config))
            .option("reputFromOffset", str(self.begin))
            .option("maxBytesPerTrigger", str(self.max_bytes))
            .option("rangeBytes", str(range_bytes))
            .option("failOnDataLoss", str(self.fail_on_data_loss).lower())
            .options(**self.options)
            .load(self.store_root)
        )

    def _triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.trigger_interval is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=spark_interval(self.trigger_interval))


class RunningLogQuery:
    """A query that can be stopped between two batches."""

    def __init__(self, query: StreamingQuery, feed: _Feed) -> None:
        self.query = query
        self._feed = feed

    def stop(self) -> None:
        """Stop the query after the batch in flight, or after 10 s of waiting for it.

        Spark's own ``stop`` cancels the batch instead: its tasks fail, and say so.
        """
        self._feed.stop()
        self.query.stop()


class _InterruptedError(Exception):
    """Ends a batch that Spark interrupted; by this text Spark knows that nothing failed."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the sink: "
            "java.lang.InterruptedException: the query is being stopped"
        )


class _Feed:
    """Gives each batch to the sink, until the query is to stop."""

    def __init__(self, sink: BatchSink, catches_up: CatchesUp | None) -> None:
        self.query: StreamingQuery | None = None
        self._sink = sink
        self._catches_up = catches_up
        self._busy = threading.Lock()
        self._stopping = threading.Event()

    def apply(self, batch: DataFrame, _batch_id: int) -> None:
        """Apply a batch.

        What fails because the query ends is no failure, and is told to Spark in few words: Spark
        looks through the text by a recursion, which a long one makes overflow its stack.
        """
        try:
            with self._busy:
                if not self._stopping.is_set() and self._is_caught_up():
                    return
                if not self._stopping.is_set():
                    self._sink.apply(from_table(batch.toArrow()))
                    return
        except Exception:
            if not self._is_ending():
                raise
        while self.query is not None and self.query.isActive:
            time.sleep(_POLL_SECONDS)
        raise _InterruptedError from None

    def _is_caught_up(self) -> bool:
        return self._catches_up is not None and self._catches_up(self._is_ending)

    def stop(self) -> None:
        """Take no more batches; wait for the one in flight, though not for long."""
        self._stopping.set()
        self._sink.stop_waiting()
        if self._busy.acquire(timeout=_LAST_BATCH_SECONDS):
            self._busy.release()

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or (self.query is not None and not self.query.isActive)
