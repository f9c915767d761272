"""The dispatch query: source, dispatchers, root and checkpoint epoch wired together."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from store.config import StoreConfig, config_from_shape, config_to_json, load_config
from store.errors import ConfigError
from store.foreign import refuse_foreign_store
from streaming.dispatch_source import FORMAT, DispatchRequestSource, from_table
from streaming.dispatchers import ArrivalListener, DispatchSink
from streaming.progress import DispatchProgress, Listener

MAX_BYTES_PER_TRIGGER = 256 * 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """How a dispatch runs; the defaults are those of ``reput dispatch``."""

    broker_conf: Path | None = None
    broker_version: str | None = None
    available_now: bool = False
    trigger_interval: str = "0s"
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    listeners: Sequence[ArrivalListener] = ()
    on_progress: Callable[[DispatchProgress], None] | None = None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A running dispatch: Spark's query, the sink it feeds and the root it owns."""

    query: StreamingQuery
    sink: DispatchSink
    root: DispatchRoot
    config: StoreConfig

    def close(self) -> None:
        """Stop the query if it runs, wait for the batch in flight, give the root back."""
        self.query.stop()
        self.sink.close()


def start_dispatch(  # noqa: PLR0913 - the signature is a contract
    spark: SparkSession,
    store_root: str | Path,
    output: str | Path,
    *,
    broker_conf: str | Path | None = None,
    broker_version: str | None = None,
    available_now: bool = False,
    trigger_interval: str = "0s",
    max_bytes_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
) -> StreamingQuery:
    """Start dispatching the commit log of ``store_root`` into ``output``; return the query.

    The root is given back when the query ends. Raises ConfigError, DamageError, RootInUseError,
    UnsupportedFormatError and StoreIOError before anything is written; damage met later ends the
    query with that error.
    """
    options = DispatchOptions(
        broker_conf=Path(broker_conf) if broker_conf is not None else None,
        broker_version=broker_version,
        available_now=available_now,
        trigger_interval=trigger_interval,
        max_bytes_per_trigger=max_bytes_per_trigger,
        fail_on_data_loss=fail_on_data_loss,
    )
    return begin_dispatch(spark, Path(store_root), Path(output), options).query


def begin_dispatch(
    spark: SparkSession, store_root: Path, output: Path, options: DispatchOptions
) -> Dispatch:
    """Start a dispatch as ``start_dispatch`` does; return the query with its sink and root."""
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    config = resolve_config(store_root, output, options)
    refuse_foreign_store(store_root, config)
    root = DispatchRoot.open(output, store_root, config)
    try:
        sink = DispatchSink(
            root,
            config,
            fail_on_data_loss=options.fail_on_data_loss,
            listeners=options.listeners,
        )
        query = _start_query(spark, store_root, (root, sink, config), options)
    except BaseException:
        root.close(clean=True)
        raise
    return Dispatch(query, sink, root, config)


def resolve_config(store_root: Path, output: Path, options: DispatchOptions) -> StoreConfig:
    """Return the settings to run with: those given, else those OUTPUT was made with."""
    progress = read_progress(output)
    given = options.broker_conf is not None or (store_root / "broker.conf").exists()
    if progress is None or given:
        version = options.broker_version
        if version is None and progress is not None:
            version = str(progress.shape["version"])
        return load_config(store_root, options.broker_conf, version)
    shape = dict(progress.shape)
    if options.broker_version is not None:
        shape["version"] = options.broker_version
    return config_from_shape(shape, commit_log=progress.commit_log)


def _start_query(
    spark: SparkSession,
    store_root: Path,
    parts: tuple[DispatchRoot, DispatchSink, StoreConfig],
    options: DispatchOptions,
) -> StreamingQuery:
    root, sink, config = parts
    spark.dataSource.register(DispatchRequestSource)
    reader = (
        spark.readStream.format(FORMAT)
        .option("config", config_to_json(config))
        .option("reputFromOffset", str(root.progress.reput_from_offset))
        .option("maxBytesPerTrigger", str(options.max_bytes_per_trigger or MAX_BYTES_PER_TRIGGER))
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .option("failOnDataLoss", str(options.fail_on_data_loss).lower())
    )
    if root.progress.log_was_clean is not None:
        reader = reader.option("closedCleanly", str(root.progress.log_was_clean).lower())

    def apply(batch: DataFrame, _batch_id: int) -> None:
        sink.apply(from_table(batch.toArrow()))

    name = f"reput-{uuid.uuid4().hex[:8]}"
    listener = Listener(name, sink, options.on_progress)
    spark.streams.addListener(listener)
    listener.on_end(lambda: spark.streams.removeListener(listener))
    writer = (
        reader.load(str(store_root))
        .writeStream.foreachBatch(apply)
        .queryName(name)
        .option("checkpointLocation", str(root.new_epoch()))
    )
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=options.trigger_interval)
    return writer.start()
