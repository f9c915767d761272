"""A query of ours: the log's stretches, batch by batch, into a sink, and its end in good order."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from store.commitlog.scanner import Stretch
from store.config import StoreConfig, config_to_json
from store.errors import SparkError, StoreError
from streaming.queries.metrics import DispatchProgress, ProgressListener
from streaming.sinks.ordered_sink import BatchSink, StoppedError
from streaming.sources.dispatch import FORMAT, DispatchRequestSource, parts_of, spooled_stretches
from streaming.sources.log_stream import RANGE_BYTES_MAX, RANGE_BYTES_MIN
from streaming.sources.options import spark_interval
from streaming.sources.spool import SPOOL_DIR, Spool
from streaming.spark.errors import to_store_error
from streaming.spark.private_api import java_query
from streaming.spark.session import register_source
from streaming.spark.stopping import LAST_BATCH_SECONDS, finish_batch

_POLL_SECONDS = 0.01


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

    def start(self, spark: SparkSession, sink: BatchSink) -> RunningLogQuery:
        """Start it; when it ends, for whatever reason, the sink is closed."""
        name = f"{self.name}-{uuid.uuid4().hex[:8]}"
        listener = ProgressListener(name, sink, self.on_progress)
        spark.streams.addListener(listener)
        listener.on_end(lambda: spark.streams.removeListener(listener))
        if self.on_end is not None:
            listener.on_end(self.on_end)
        spool = Spool(self.checkpoint / SPOOL_DIR)
        feed = _BatchApplier(sink, spool)
        writer = self._stream(spark, spool).writeStream.foreachBatch(feed.apply).queryName(name)
        feed.query = self._triggered(writer).start()
        return RunningLogQuery(feed.query, feed, sink)

    def _stream(self, spark: SparkSession, spool: Spool) -> DataFrame:
        register_source(spark, DispatchRequestSource)
        share = self.max_bytes // spark.sparkContext.defaultParallelism
        range_bytes = min(max(share, RANGE_BYTES_MIN), RANGE_BYTES_MAX)
        return (
            spark.readStream.format(FORMAT)
            .option("config", config_to_json(self.config))
            .option("reputFromOffset", str(self.begin))
            .option("maxBytesPerTrigger", str(self.max_bytes))
            .option("rangeBytes", str(range_bytes))
            .option("failOnDataLoss", str(self.fail_on_data_loss).lower())
            .option("spool", str(spool.directory))
            .option("spoolToken", spool.begin())
            .options(**self.options)
            .load(self.store_root)
        )

    def _triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.trigger_interval is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=spark_interval(self.trigger_interval))


class RunningLogQuery(StreamingQuery):
    """Spark's query, but for its end: that finishes the batch in flight and frees what it owns."""

    def __init__(self, query: StreamingQuery, feed: _BatchApplier, sink: BatchSink) -> None:
        super().__init__(java_query(query))
        self._feed = feed
        self._sink = sink

    def stop(self) -> None:
        """Stop after the batch in flight; return when the sink's root or name is free again.

        After 10 s of waiting for the batch, Spark interrupts its jobs; what the sink has begun to
        apply is finished in any case. A failure of that batch is what ``exception`` returns.
        Raises StoreError if the sink cannot be closed.
        """
        self._feed.refuse()
        if not finish_batch(self, LAST_BATCH_SECONDS):
            self._feed.is_interrupted = True
            super().stop()
        self._sink.close()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end, as Spark's query does; then the root or name is free again too.

        ``timeout`` in seconds. Raises StreamingQueryException if the query failed.
        """
        has_ended: bool | None = True
        try:
            has_ended = super().awaitTermination(timeout)  # type: ignore[arg-type]
        finally:
            if has_ended is not False:
                self._sink.close()
        return has_ended

    def failure(self) -> StoreError | None:
        """Return what the query failed with; not that a stop interrupted it."""
        if self._sink.error is not None:
            return self._sink.error
        raised = self.exception()
        if raised is None:
            return None
        error = to_store_error(raised)
        is_stops = self._feed.is_interrupted and isinstance(error, SparkError)
        return None if is_stops else error


class _InterruptedError(Exception):
    """Ends a batch that Spark interrupted; by this text Spark knows that nothing failed."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the sink: "
            "java.lang.InterruptedException: the query is being stopped"
        )


class _BatchApplier:
    """Gives each batch to the sink, until the query is to stop."""

    def __init__(self, sink: BatchSink, spool: Spool) -> None:
        self.query: StreamingQuery | None = None
        self.is_interrupted = False  # by Spark, on behalf of our own stop
        self._sink = sink
        self._spool = spool
        self._refuses = threading.Event()

    def apply(self, batch: DataFrame, _batch_id: int) -> None:
        """Apply a batch. Raises what it fails with.

        What the stop itself causes is no failure, and Spark gets it in few words: it searches the
        text with a recursion that a long one makes overflow the stack.
        """
        try:
            if not self._refuses.is_set():
                self._apply(batch)
                return
        except StoppedError:
            pass
        while self.query is not None and self.query.isActive:
            time.sleep(_POLL_SECONDS)
        raise _InterruptedError from None

    def refuse(self) -> None:
        """Take no more batches; the one in flight waits for nothing outside any more."""
        self._refuses.set()
        self._sink.stop_waiting()

    def _apply(self, batch: DataFrame) -> None:
        """Run the batch's jobs while what is spooled is applied, then apply the rest."""
        try:
            with _SpoolApplier(self._sink, self._spool):
                table = self._read(batch)
            stretches: list[Stretch] = []
            for end, part in parts_of(table, self._spool):
                if not self._sink.takes_parts:
                    stretches += part()
                elif end > self._sink.applied_to() and not self._sink.is_blocked():
                    self._sink.apply_part(part())
            self._sink.apply(stretches)
        finally:
            self._spool.clear()

    def _read(self, batch: DataFrame) -> pa.Table:
        """Run the batch's jobs. Raises StoppedError if Spark cancelled them."""
        try:
            return batch.toArrow()
        except Exception as e:
            if self._is_cancelled() and isinstance(to_store_error(e), SparkError):
                raise StoppedError("Spark cancelled the batch") from e
            raise

    def _is_cancelled(self) -> bool:
        """Return whether Spark's own stop was called: by ours, or by the user."""
        return self.is_interrupted or (not self._refuses.is_set() and not self._is_active())

    def _is_active(self) -> bool:
        return self.query is None or self.query.isActive


class _SpoolApplier:
    """Applies what tasks have spooled, in log order, while Spark runs the others of a batch."""

    def __init__(self, sink: BatchSink, spool: Spool) -> None:
        self._sink = sink
        self._spool = spool
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reput-apply", daemon=True)

    def __enter__(self) -> None:
        if self._sink.takes_parts:
            self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        if self._sink.takes_parts:
            self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._sink.is_blocked() and not self._end.is_set():
                found = self._spool.find(self._sink.applied_to())
                if found is None:
                    self._end.wait(_POLL_SECONDS)
                else:
                    self._sink.apply_part(spooled_stretches(self._spool, found))
        except BaseException as e:  # noqa: BLE001 - raised where the batch is applied
            self._error = e
