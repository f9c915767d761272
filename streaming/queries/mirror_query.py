"""The mirror: a query over the log whose sink, and whose position, are in Kafka.

It reads STORE and needs no OUTPUT. Spark's checkpoint is a temporary directory that is discarded:
the mirror resumes at the position that Kafka committed last.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from store.arrow.batches import BodyLimits
from store.broker_files import read_topic_configs
from store.commitlog.boundary_search import first_stored_after, requested_offset
from store.commitlog.commit_log import CommitLog, was_closed_cleanly
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.planner import UNLIMITED
from store.config import StoreConfig
from store.errors import ConfigError, DamageError
from store.output.resolve_config import open_store_config
from streaming.kafka.client_options import ClientOptions, client_options
from streaming.kafka.cluster import Cluster
from streaming.kafka.mirror_sink import (
    MirrorLink,
    MirrorSettings,
    MirrorSink,
    MirrorStart,
    check_position,
)
from streaming.kafka.oversized import DIVERT, OversizedMessage, OversizedRule, SizeCheck
from streaming.kafka.position import (
    POSITION_TOPIC,
    Position,
    default_name,
    ensure_position_topic,
    read_position,
)
from streaming.kafka.producer import TransactionalProducer
from streaming.kafka.producer_options import check_codec
from streaming.kafka.records import RecordReader
from streaming.kafka.routes import Creation, Router
from streaming.kafka.topic_rules import TopicRules, check_kafka_name
from streaming.queries.log_query import LogQuery, RunningLogQuery
from streaming.queries.query_metrics import DispatchProgress, OnBatch
from streaming.sources.option_values import check_size, spark_interval
from streaming.spark.batch_pace import BY_NEED
from streaming.spark.connect import refuse_connect

_log = logging.getLogger(__name__)

MAX_BYTES_PER_TRIGGER = 128 * 1024 * 1024
TRANSACTION_BYTES = 32 * 1024 * 1024
COMPRESSION = "zstd"
TRANSACTIONAL_ID_PREFIX = "reput-mirror-"
WAIT_FOR_KAFKA_SECONDS = 120.0
# The clients' defaults suit single messages and producers that are never replaced.
_DEFAULTS: Mapping[str, Any] = {
    "batch.size": 512 * 1024,
    "delivery.timeout.ms": 30_000,
    "linger.ms": 100,
    "request.timeout.ms": 15_000,
    "reconnect.backoff.max.ms": 2_000,
}


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """The options of a mirror; the defaults equal those of ``reput mirror``. Sizes in bytes.

    ``from_offset`` and ``from_time`` (epoch ms) require a new name or ``force_position``.
    ``to_time`` (inclusive) ends the run there, or at the current end of the log.
    """

    bootstrap: str
    properties: Mapping[str, str] = field(default_factory=dict)
    rules: TopicRules = field(default_factory=TopicRules)
    creation: Creation = field(default_factory=Creation)
    name: str | None = None
    position_topic: str = POSITION_TOPIC
    compression: str = COMPRESSION
    broker_conf: Path | None = None
    broker_version: str | None = None
    from_offset: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    force_position: bool = False
    available_now: bool = False
    trigger_interval: str = BY_NEED
    max_bytes_per_trigger: int | None = None
    transaction_bytes: int = TRANSACTION_BYTES
    fail_on_data_loss: bool = True
    max_body_bytes: int = BODY_BYTES_MAX
    oversized: OversizedRule = field(default_factory=OversizedRule)
    on_oversized: Callable[[OversizedMessage], None] | None = None
    wait_for_kafka_seconds: float = WAIT_FOR_KAFKA_SECONDS
    on_progress: Callable[[DispatchProgress], None] | None = None
    on_batch: OnBatch | None = None

    @property
    def has_end(self) -> bool:
        """Whether the run ends by itself."""
        return self.available_now or self.to_time is not None


@dataclass(frozen=True, slots=True)
class RunningMirror:
    """A running mirror: Spark's query and the sink it feeds."""

    query: RunningLogQuery
    sink: MirrorSink
    checkpoint: Path

    def close(self) -> None:
        """Stop the query after the batch in flight and close the producer."""
        self.query.stop()
        shutil.rmtree(self.checkpoint, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class PreparedMirror:
    """A mirror that owns its name in Kafka and is ready to start on Spark."""

    store_root: Path
    name: str
    sink: MirrorSink
    config: StoreConfig
    options: MirrorOptions
    begin: int
    until: int
    is_new: bool
    log: CommitLog

    def start(self, spark: SparkSession) -> RunningMirror:
        """Start the query; if that fails, release the name."""
        try:
            return _start_query(spark, self)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the producer."""
        self.sink.close()


def start_mirror(
    spark: SparkSession, store_root: str | Path, options: MirrorOptions
) -> RunningMirror:
    """Start mirroring the commit log of ``store_root`` to Kafka.

    Raises ConfigError, DamageError, KafkaIOError, MirrorInUseError, UnsupportedFormatError before
    anything but the position topic is written. An error found later ends the query. A session of
    Spark Connect is a ConfigError; Kafka is not contacted then.
    """
    refuse_connect(spark, "a mirror", "reput mirror")
    return prepare_mirror(Path(store_root), options).start(spark)


def prepare_mirror(store_root: Path, options: MirrorOptions) -> PreparedMirror:
    """Check everything that can be checked without Spark, and take over the name."""
    spark_interval(options.trigger_interval)
    check_size("max_bytes_per_trigger", options.max_bytes_per_trigger)
    check_size("transaction_bytes", options.transaction_bytes)
    check_codec(options.compression)
    if options.from_offset is not None and options.from_time is not None:
        raise ConfigError("give an offset or a time to begin at, not both")
    check_kafka_name(options.position_topic, "--position-topic")
    broker = options.broker_conf, options.broker_version
    config = open_store_config(store_root, None, *broker, needs_log=options.available_now)
    client = client_options(options.bootstrap, options.properties, _DEFAULTS)
    codec = client.get("compression.type") or options.compression
    check_codec(codec)
    log = CommitLog(config.commit_log_paths(store_root), config)
    name = options.name or default_name(store_root, options.rules.prefix)
    cluster = Cluster(client)
    try:
        return _prepare(store_root, options, (client, codec, cluster), (config, log, name))
    except BaseException:
        cluster.close()
        raise


def _prepare(
    store_root: Path,
    options: MirrorOptions,
    kafka: tuple[ClientOptions, str, Cluster],
    source: tuple[StoreConfig, CommitLog, str],
) -> PreparedMirror:
    client, codec, cluster = kafka
    config, log, name = source
    topic_configs = read_topic_configs(store_root)
    if topic_configs.problem and topic_configs.content is not None:
        _log.warning("%s", topic_configs.problem)
    router = Router(cluster, options.rules, topic_configs.content or {}, options.creation)
    router.prepare()
    if options.oversized.action == DIVERT:
        router.add_target(options.oversized.topic, 1, "--oversized")
    ensure_position_topic(cluster, options.position_topic)
    sizes = SizeCheck(
        router,
        options.oversized,
        codec,
        client.get("max.request.size"),
        options.on_oversized or (lambda message: _log.warning("%s", message)),
    )
    stopping = threading.Event()

    def connect() -> tuple[TransactionalProducer, Position | None]:
        batch_bytes = sizes.batch_bytes(client.get("batch.size"))
        transactional_id = TRANSACTIONAL_ID_PREFIX + name
        producer = TransactionalProducer(client, transactional_id, codec, batch_bytes, stopping)
        try:
            committed = read_position(client, options.position_topic, name)
            return producer, committed.position if committed is not None else None
        except BaseException:
            producer.close()
            raise

    producer, committed = connect()
    try:
        position = _starting_position(log, committed, options, store_root, name)
        until = UNLIMITED
        if options.to_time is not None:
            until = max(first_stored_after(log, options.to_time), position.commit_log_offset)
    except BaseException:
        producer.close()
        raise
    settings = MirrorSettings(
        name=name,
        position_topic=options.position_topic,
        batch_bytes=client.get("batch.size"),
        transaction_bytes=options.transaction_bytes,
        fail_on_data_loss=options.fail_on_data_loss,
        wait_seconds=options.wait_for_kafka_seconds,
        is_clean=lambda: was_closed_cleanly(store_root),
    )
    reader = RecordReader(config, BodyLimits(options.max_body_bytes))
    link = MirrorLink(connect, router, reader, sizes, stopping)
    sink = MirrorSink(log, link, settings, MirrorStart(producer, position, committed))
    return PreparedMirror(
        store_root=store_root,
        name=name,
        sink=sink,
        config=config,
        options=options,
        begin=position.commit_log_offset,
        until=until,
        is_new=committed is None,
        log=log,
    )


def _starting_position(
    log: CommitLog,
    committed: Position | None,
    options: MirrorOptions,
    store_root: Path,
    name: str,
) -> Position:
    """Return the position to start from.

    Raises ConfigError if options and committed position conflict, DamageError if the log changed.
    """
    begin = requested_offset(log, options.from_offset, options.from_time)
    if committed is None or options.force_position:
        if options.force_position and begin is None:
            raise ConfigError("--force-position needs --from-offset or --from-time")
        counted = committed or Position(0)
        at = begin if begin is not None else max(log.min_offset(), 0)
        store = str(store_root.resolve())
        return Position(at, None, 0, store, counted.messages, counted.oversized)
    if begin is not None:
        raise ConfigError(
            f"mirror {name!r} has a position and resumes at offset {committed.commit_log_offset}: "
            "another start would send messages twice or not at all; use another --name, or add "
            "--force-position"
        )
    check_belongs(log, committed, store_root, name)
    return committed


def check_belongs(log: CommitLog, position: Position, store_root: Path, name: str) -> None:
    """Raise ConfigError for the position of another store, DamageError if the log changed."""
    store = str(store_root.resolve())
    try:
        check_position(log, position)
    except DamageError as e:
        if position.store != store:
            raise ConfigError(
                f"mirror {name!r} belongs to {position.store}, not to {store} ({e.reason}): use "
                "another --name"
            ) from e
        raise


def _start_query(spark: SparkSession, prepared: PreparedMirror) -> RunningMirror:
    options = prepared.options
    checkpoint = Path(tempfile.mkdtemp(prefix="reput-mirror-"))
    query = LogQuery(
        name="reput-mirror",
        store_root=str(prepared.store_root.resolve()),
        config=prepared.config,
        begin=prepared.begin,
        max_bytes=options.max_bytes_per_trigger or MAX_BYTES_PER_TRIGGER,
        fail_on_data_loss=options.fail_on_data_loss,
        checkpoint=checkpoint,
        trigger_interval=None if options.has_end else options.trigger_interval,
        options={"until": str(prepared.until)},
        on_progress=options.on_progress,
        on_batch=options.on_batch,
        on_end=lambda: shutil.rmtree(checkpoint, ignore_errors=True),
    )
    try:
        return RunningMirror(query.start(spark, prepared.sink), prepared.sink, checkpoint)
    except BaseException:
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise
