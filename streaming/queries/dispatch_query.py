"""The dispatch query: connects the source, the sink, OUTPUT and a checkpoint epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from checkpoints.output import DispatchOutput
from checkpoints.recovery.adoption import RecoveryReporter
from checkpoints.recovery.reports import record_recoveries
from store.commitlog.boundary_search import requested_offset
from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.errors import ConfigError, StoreError
from store.io.user_path import given_path
from store.output.resolve_config import open_store_config
from streaming.queries.log_query import LogQuery, RunningLogQuery
from streaming.queries.query_metrics import DispatchProgress, OnBatch
from streaming.sinks.dispatch_sink import ArrivalListener, DispatchSink
from streaming.sources.option_values import check_size, spark_interval
from streaming.spark.batch_pace import BY_NEED
from streaming.spark.connect import refuse_connect
from streaming.spark.errors import to_store_error

_log = logging.getLogger(__name__)
MAX_BYTES_PER_TRIGGER = 1 << 30


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """The options of a dispatch; the defaults equal those of ``reput dispatch``."""

    broker_conf: Path | None = None
    broker_version: str | None = None
    from_offset: int | None = None
    from_time: int | None = None  # epoch ms; the first record stored at or after it
    available_now: bool = False
    trigger_interval: str = BY_NEED
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    keep_expired: bool = False  # queue and index files entirely below the log's minimum
    listeners: Sequence[ArrivalListener] = ()
    on_progress: Callable[[DispatchProgress], None] | None = None
    on_batch: OnBatch | None = None
    on_recovery: RecoveryReporter | None = None


@dataclass(frozen=True, slots=True)
class RunningDispatch:
    """A running dispatch: Spark's query, the sink it feeds and the OUTPUT it owns."""

    query: RunningLogQuery
    sink: DispatchSink
    output: DispatchOutput
    config: StoreConfig

    def close(self) -> None:
        """Stop the query after the batch in flight and release OUTPUT."""
        self.query.stop()


def start_dispatch(  # noqa: PLR0913 - the signature is a contract
    spark: SparkSession,
    store_root: str | Path,
    output: str | Path,
    *,
    broker_conf: str | Path | None = None,
    broker_version: str | None = None,
    from_offset: int | None = None,
    from_time: int | None = None,
    available_now: bool = False,
    trigger_interval: str = BY_NEED,
    max_bytes_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    keep_expired: bool = False,
    listeners: Sequence[ArrivalListener] = (),
) -> StreamingQuery:
    """Start dispatching the commit log of ``store_root`` into ``output``; return the query.

    ``stop`` of the query finishes the batch in flight and releases OUTPUT before it returns;
    ``awaitTermination`` also releases OUTPUT when the query has ended.

    ``from_offset`` or ``from_time`` (epoch ms) is where a new OUTPUT begins. On an existing OUTPUT,
    the dispatch replays from there, which changes nothing; an offset beyond its progress is
    refused. Queue and index files whose messages have all expired from the log are deleted, unless
    ``keep_expired``. ``listeners`` are called with each batch (``DurableBatch``) once it is
    durable; they must not raise.

    If the query is stopped through Spark (``spark.streams``), a listener releases OUTPUT shortly
    afterwards: call ``stop`` on the returned query to wait for that.

    Raises ConfigError, DamageError, OutputInUseError, UnsupportedFormatError and StoreIOError
    before anything is written; a session of Spark Connect is a ConfigError. Damage found later ends
    the query with that error.
    """
    options = DispatchOptions(
        broker_conf=Path(broker_conf) if broker_conf is not None else None,
        broker_version=broker_version,
        from_offset=from_offset,
        from_time=from_time,
        available_now=available_now,
        trigger_interval=trigger_interval,
        max_bytes_per_trigger=max_bytes_per_trigger,
        fail_on_data_loss=fail_on_data_loss,
        keep_expired=keep_expired,
        listeners=listeners,
    )
    return begin_dispatch(spark, given_path(store_root), given_path(output), options).query


def begin_dispatch(
    spark: SparkSession, store_root: Path, output: Path, options: DispatchOptions
) -> RunningDispatch:
    """Start a dispatch like ``start_dispatch``; return the query with its sink and OUTPUT."""
    refuse_connect(spark, "a dispatch", "reput dispatch")
    return prepare_dispatch(store_root, output, options).start(spark)


@dataclass(frozen=True, slots=True)
class PreparedDispatch:
    """A dispatch that owns its OUTPUT and is ready to start on Spark."""

    output: DispatchOutput
    sink: DispatchSink
    config: StoreConfig
    options: DispatchOptions
    begin: int

    def start(self, spark: SparkSession) -> RunningDispatch:
        """Start the query; if that fails, release OUTPUT."""
        try:
            running = _start_query(spark, self)
        except BaseException:
            self.close()
            raise
        return RunningDispatch(running, self.sink, self.output, self.config)

    def close(self) -> None:
        """Release OUTPUT."""
        self.sink.close()


def prepare_dispatch(store_root: Path, output: Path, options: DispatchOptions) -> PreparedDispatch:
    """Check everything that can be checked without Spark, and lock OUTPUT."""
    spark_interval(options.trigger_interval)
    check_size("max_bytes_per_trigger", options.max_bytes_per_trigger)
    broker = options.broker_conf, options.broker_version
    config = open_store_config(store_root, output, *broker, needs_log=options.available_now)
    replay_from = _replay_offset(store_root, config, options)
    owned = DispatchOutput.open(
        output, store_root, config, from_offset=replay_from, report=options.on_recovery
    )
    for recovered in owned.recovered:
        _log.info(
            "%s: rolled back from offset %d to %d (%s)",
            output,
            recovered.from_offset,
            recovered.to_offset,
            recovered.why,
        )
    try:
        record_recoveries(output, owned.recovered, owned.disk)
        sink = _sink(owned, config, options)
    except BaseException:
        owned.close(clean=True)
        raise
    begin = owned.progress.reput_from_offset if replay_from is None else replay_from
    return PreparedDispatch(owned, sink, config, options, begin)


def _sink(output: DispatchOutput, config: StoreConfig, options: DispatchOptions) -> DispatchSink:
    return DispatchSink(
        output,
        config,
        fail_on_data_loss=options.fail_on_data_loss,
        keep_expired=options.keep_expired,
        listeners=options.listeners,
    )


def query_error(query: StreamingQuery) -> StoreError | None:
    """Return the error that ended a query; an error raised in a worker keeps its class."""
    failure = query.exception()
    return None if failure is None else to_store_error(failure)


def _replay_offset(store_root: Path, config: StoreConfig, options: DispatchOptions) -> int | None:
    """Return the offset at which the options begin the dispatch, or None without one."""
    if options.from_offset is None and options.from_time is None:
        return None
    if options.from_offset is not None and options.from_time is not None:
        raise ConfigError("give an offset or a time to begin at, not both")
    log = CommitLog(config.commit_log_paths(store_root), config)
    return requested_offset(log, options.from_offset, options.from_time)


def _start_query(spark: SparkSession, prepared: PreparedDispatch) -> RunningLogQuery:
    output, options = prepared.output, prepared.options
    clean, epoch = output.progress.log_was_clean, output.new_epoch()
    query = LogQuery(
        name="reput",
        store_root=output.progress.store,
        config=prepared.config,
        begin=prepared.begin,
        max_bytes=options.max_bytes_per_trigger or MAX_BYTES_PER_TRIGGER,
        fail_on_data_loss=options.fail_on_data_loss,
        checkpoint=epoch,
        trigger_interval=None if options.available_now else options.trigger_interval,
        options={} if clean is None else {"closedCleanly": str(clean).lower()},
        on_progress=options.on_progress,
        on_batch=options.on_batch,
    )
    return query.start(spark, prepared.sink)
