"""The streaming query that feeds the log's stretches to a sink, batch by batch, and its stop."""

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

from store.config import StoreConfig, config_to_json
from store.errors import SparkError, StoreError
from streaming.queries.query_metrics import DispatchProgress, OnBatch, ProgressListener
from streaming.sinks.ordered_sink import BatchSink, StoppedError
from streaming.sources.dispatch_source import FORMAT, DispatchRequestSource
from streaming.sources.option_values import spark_interval
from streaming.sources.partitions import dispatch_range_bytes
from streaming.sources.task_results import SPOOL_DIR, Spool, parts_of
from streaming.spark.errors import mixed_installation, to_store_error
from streaming.spark.private_api import java_query
from streaming.spark.session import register_source
from streaming.spark.stopping import LAST_BATCH_SECONDS, finish_batch

_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class LogQuery:
    """What a query reads and how it runs. Offsets are physical offsets of the log."""

    name: str
    store_root: str
    config: StoreConfig
    begin: int
    max_bytes: int  # of log, in a batch
    fail_on_data_loss: bool
    checkpoint: Path
    trigger_interval: str | None  # None: process the current log, then end
    options: Mapping[str, str] = field(default_factory=dict)  # further options of the source
    on_progress: Callable[[DispatchProgress], None] | None = None
    on_batch: OnBatch | None = None
    on_end: Callable[[], None] | None = None

    def start(self, spark: SparkSession, sink: BatchSink) -> RunningLogQuery:
        """Start the query; when it ends, for whatever reason, the sink is closed."""
        name = f"{self.name}-{uuid.uuid4().hex[:8]}"
        listener = ProgressListener(name, sink, self.on_progress, self.on_batch)
        spark.streams.addListener(listener)
        listener.on_end(lambda: spark.streams.removeListener(listener))
        if self.on_end is not None:
            listener.on_end(self.on_end)
        try:
            spool = Spool(self.checkpoint / SPOOL_DIR)
            applier = _BatchApplier(sink, spool)
            stream = self._stream(spark, spool).writeStream
            writer = stream.foreachBatch(applier.apply).queryName(name)
            applier.query = self._triggered(writer).start()
        except BaseException as e:  # no event will report the end
            spark.streams.removeListener(listener)
            if (mixed := mixed_installation(e)) is not None:
                raise mixed from e
            raise
        return RunningLogQuery(applier.query, applier, sink)

    def _stream(self, spark: SparkSession, spool: Spool) -> DataFrame:
        register_source(spark, DispatchRequestSource)
        range_bytes = dispatch_range_bytes(
            self.max_bytes, cores=spark.sparkContext.defaultParallelism
        )
        return (
            spark.readStream.format(FORMAT)
            .option("config", config_to_json(self.config))
            .option("reputFromOffset", str(self.begin))
            .option("maxBytesPerTrigger", str(self.max_bytes))
            .option("rangeBytes", str(range_bytes))
            .option("failOnDataLoss", str(self.fail_on_data_loss).lower())
            .option("spool", str(spool.directory))
            .option("spoolToken", spool.begin())
            .option("pace", (self.trigger_interval or "").strip())
            .options(**self.options)
            .load(self.store_root)
        )

    def _triggered(self, writer: DataStreamWriter) -> DataStreamWriter:
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.trigger_interval is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=spark_interval(self.trigger_interval))


class RunningLogQuery(StreamingQuery):
    """Spark's query, whose end also finishes the batch in flight and closes the sink."""

    def __init__(self, query: StreamingQuery, applier: _BatchApplier, sink: BatchSink) -> None:
        super().__init__(java_query(query))
        self._applier = applier
        self._sink = sink

    def stop(self) -> None:
        """Stop after the batch in flight; return when the sink's OUTPUT or name is released.

        If the batch takes more than 10 s, Spark interrupts its jobs; what the sink has begun to
        apply is finished in any case. If that batch fails, ``exception`` returns the failure.
        Raises StoreError if the sink cannot be closed.
        """
        self._applier.stop_accepting()
        if not finish_batch(self, LAST_BATCH_SECONDS):
            self._applier.is_interrupted = True
            super().stop()
        self._sink.close()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query has ended, like Spark's query, and release OUTPUT or name.

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
        """Return the failure of the query; an interruption by a stop is not one."""
        if self._sink.error is not None:
            return self._sink.error
        raised = self.exception()
        if raised is None:
            return None
        error = to_store_error(raised)
        is_interruption = self._applier.is_interrupted and isinstance(error, SparkError)
        return None if is_interruption else error


class _InterruptedError(Exception):
    """Ends an interrupted batch; by this text Spark recognises that nothing failed."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling the sink: "
            "java.lang.InterruptedException: the query is being stopped"
        )


class _BatchApplier:
    """Applies each batch to the sink, until the query is being stopped."""

    def __init__(self, sink: BatchSink, spool: Spool) -> None:
        self.query: StreamingQuery | None = None
        self.is_interrupted = False  # by Spark, on behalf of ``RunningLogQuery.stop``
        self._sink = sink
        self._spool = spool
        self._is_stopping = threading.Event()

    def apply(self, batch: DataFrame, _batch_id: int) -> None:
        """Apply a batch. Raises its failure.

        The end of a batch through a stop is not a failure, and is reported to Spark in a short
        text: Spark searches the text recursively, and a long one would overflow the stack.
        """
        try:
            if not self._is_stopping.is_set():
                self._apply(batch)
                return
        except StoppedError:
            pass
        while self.query is not None and self.query.isActive:
            time.sleep(_POLL_SECONDS)
        raise _InterruptedError from None

    def stop_accepting(self) -> None:
        """Accept no further batch; the one in flight no longer waits for external systems."""
        self._is_stopping.set()
        self._sink.stop_waiting()

    def _apply(self, batch: DataFrame) -> None:
        """Apply spooled ranges while the batch's jobs run, then apply the rest."""
        try:
            with _SpoolApplier(self._sink, self._spool):
                table = self._read(batch)
            for end, part in parts_of(table, self._spool):
                if end > self._sink.applied_to() and not self._sink.is_blocked():
                    self._sink.apply_part(part())
            self._sink.apply([])
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
        """Return whether Spark's own stop was called: by ``RunningLogQuery`` or by the user."""
        return self.is_interrupted or (not self._is_stopping.is_set() and not self._is_active())

    def _is_active(self) -> bool:
        return self.query is None or self.query.isActive


class _SpoolApplier:
    """Applies spooled ranges in log order while Spark still runs other tasks of the batch."""

    def __init__(self, sink: BatchSink, spool: Spool) -> None:
        self._sink = sink
        self._spool = spool
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="reput-apply", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._sink.is_blocked() and not self._end.is_set():
                name = self._spool.find(self._sink.applied_to())
                if name is None:
                    self._end.wait(_POLL_SECONDS)
                else:
                    self._sink.apply_part(self._spool.take(name))
        except BaseException as e:  # noqa: BLE001 - raised where the batch is applied
            self._error = e
