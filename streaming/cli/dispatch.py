"""``reput dispatch``: the long-running dispatch query."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from store.errors import ConfigError
from store.io.user_path import given_output
from streaming.cli.dispatch_report import Reporter, arrivals_line
from streaming.cli.kafka_options import KafkaProperties, KafkaProperty
from streaming.cli.long_running import (
    POLL_SECONDS,
    start_spark,
    stop_signals,
)
from streaming.cli.metrics import MetricsOptions, ShownDispatch, metrics_endpoint, show_dispatch
from streaming.cli.option_groups import add_command
from streaming.cli.options import (
    BrokerOptions,
    StuckAfter,
    check_seconds,
    flag_option,
    is_from_variable,
    output_option,
    size_option,
)
from streaming.cli.recover import recovery_progress
from streaming.cli.stores import LogStores, NamedStore, log_stores, named_log_stores
from streaming.sources.option_values import TIME_FORMS, parse_time, spark_interval
from streaming.spark.batch_pace import BY_NEED
from streaming.spark.settings import SparkSettings

if TYPE_CHECKING:
    from streaming.queries.dispatch import DispatchOptions, PreparedDispatch, RunningDispatch
    from streaming.sinks.dispatch import ArrivalListener

_log = logging.getLogger("reput.dispatch")


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Where the files are built: of one store, or of several."""

    output: Annotated[
        Path | None,
        output_option("where consumequeue/ and index/ are built"),
    ] = None
    output_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=given_output,
            help="likewise for several stores: below DIR/NAME",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class LogOptions(BrokerOptions):
    """Which part of the log to dispatch, the batch size, and how to handle losses."""

    available_now: Annotated[
        bool, typer.Option("--available-now", help="dispatch the current log, then exit")
    ] = False
    from_offset: Annotated[
        int | None,
        typer.Option(help="start a new OUTPUT at this physical offset, or replay from it"),
    ] = None
    from_time: Annotated[
        str | None, typer.Option(help=f"likewise, by store time: {TIME_FORMS}")
    ] = None
    max_bytes_per_trigger: Annotated[
        str | None, typer.Option(help="maximum amount of log per micro-batch [default: 1g]")
    ] = None
    trigger_interval: Annotated[
        str,
        typer.Option(help="when to begin a batch: auto, by need; 0s, at once; or every 5s, 1m, …"),
    ] = BY_NEED
    fail_on_data_loss: Annotated[
        str,
        typer.Option(metavar="BOOL", help="false: continue past damage and record the loss"),
    ] = "true"
    keep_expired: Annotated[
        bool,
        typer.Option(
            "--keep-expired",
            help="keep queue and index files whose messages have expired from the log",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class NotifyOptions:
    """Which Kafka topic to notify of arrivals, if any, and its client options."""

    notify_kafka_bootstrap: Annotated[
        str | None,
        typer.Option(metavar="H:P,…", help="notify this Kafka of queues with new messages"),
    ] = None
    notify_kafka_topic: Annotated[
        str | None, typer.Option(help="the topic for notifications [default: reput-arrivals]")
    ] = None
    kafka_property: KafkaProperty = None
    kafka_properties: KafkaProperties = None


@dataclass(frozen=True, slots=True)
class RunOptions(MetricsOptions):
    """How to run the dispatch, and when it counts as stuck."""

    stuck_after: StuckAfter = 60.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "dispatch", dispatch)


def dispatch(
    store: LogStores,
    place: PlaceOptions,
    log: LogOptions,
    notify: NotifyOptions,
    session: RunOptions,
) -> None:
    """Build ConsumeQueue and IndexFile, and keep them built.

    Runs until it is stopped (Ctrl-C or SIGTERM, both clean); the next start resumes from there.
    With --output-root, one process dispatches several stores. A broker that fails ends alone, and
    the exit code at the end is that of its failure.
    """
    stuck_after = check_seconds("--stuck-after", session.stuck_after)
    if place.output_root is not None:
        stores = _several_stores(store, place, log, notify)
        from streaming.cli.dispatch_several import Board, SeveralDispatches

        board = Board(sys.stderr.isatty() and not session.as_json, session.as_json)
        several = SeveralDispatches(stores, place.output_root, _options(log), board)
        several.run(session, stuck_after)
        return
    _dispatch_one(_only_store(store, place, log), log, notify, session)


def _dispatch_one(
    store: NamedStore, log: LogOptions, notify: NotifyOptions, session: RunOptions
) -> None:
    from streaming.queries.dispatch import prepare_dispatch
    from streaming.web.metrics.query import BatchDurations

    as_json, output = session.as_json, store.output
    assert output is not None
    reporter = Reporter(is_live=sys.stderr.isatty() and not as_json, as_json=as_json)
    durations = BatchDurations()
    settings = session.spark_settings()
    options = replace(_options(log), on_progress=reporter.report, on_batch=durations.observe)
    with (
        metrics_endpoint(session, reporter) as endpoint,
        notifying(notify, reporter) as listeners,
    ):
        options = replace(options, listeners=listeners)
        with recovery_progress(is_shown=reporter.is_live) as report:
            options = replace(options, on_recovery=report)
            prepared = prepare_dispatch(store.store_root, output, options)
        if endpoint is not None:
            shown_dispatch = ShownDispatch(
                prepared, durations, reporter.arrivals, given=store.given
            )
            show_dispatch(endpoint, shown_dispatch, session.stuck_after)
        run_dispatch(prepared, reporter, settings=settings)


def _options(log: LogOptions) -> DispatchOptions:
    """Parse the options. Raises ConfigError."""
    from streaming.queries.dispatch import DispatchOptions

    spark_interval(log.trigger_interval)
    return DispatchOptions(
        broker_conf=log.broker_conf,
        broker_version=log.broker_version,
        from_offset=log.from_offset,
        from_time=parse_time("--from-time", log.from_time),
        available_now=log.available_now,
        trigger_interval=log.trigger_interval,
        max_bytes_per_trigger=size_option("--max-bytes-per-trigger", log.max_bytes_per_trigger),
        fail_on_data_loss=flag_option("--fail-on-data-loss", log.fail_on_data_loss),
        keep_expired=log.keep_expired,
    )


def _only_store(texts: list[str], place: PlaceOptions, log: LogOptions) -> NamedStore:
    """Return the store of a dispatch into ``--output``. Raises ConfigError."""
    if place.output is None:
        raise ConfigError("give --output PATH, or --output-root DIR for several stores")
    if len(texts) > 1:
        raise ConfigError("--output is for one STORE; --output-root DIR dispatches several")
    (store,) = log_stores(texts, log.broker_conf)
    return replace(store, output=place.output)


def _several_stores(
    texts: list[str], place: PlaceOptions, log: LogOptions, notify: NotifyOptions
) -> list[NamedStore]:
    """Return the stores of a dispatch into ``--output-root``. Raises ConfigError."""
    if place.output is not None and not is_from_variable(place.output):
        raise ConfigError("give either --output or --output-root")
    if log.from_offset is not None:
        raise ConfigError("--from-offset is an offset of one log; --from-time applies to several")
    if notify != NotifyOptions():
        raise ConfigError("an arrival does not name its broker: --notify-kafka-… needs --output")
    return named_log_stores(texts, log.broker_conf)


@contextmanager
def notifying(notify: NotifyOptions, reporter: Reporter) -> Iterator[list[ArrivalListener]]:
    """Yield the listener that notifies Kafka, none unless configured; close it in bounded time.

    Raises ConfigError.
    """
    if notify.notify_kafka_bootstrap is None:
        has_topic, has_file = (
            notify.notify_kafka_topic is not None,
            notify.kafka_properties is not None,
        )
        if has_topic or has_file or notify.kafka_property:
            raise ConfigError("Kafka options need --notify-kafka-bootstrap")
        yield []
        return
    from streaming.kafka.arrivals import ARRIVALS_TOPIC, KafkaArrivals
    from streaming.kafka.client_options import client_options, read_properties

    properties = read_properties(notify.kafka_properties, notify.kafka_property or [])
    client = client_options(notify.notify_kafka_bootstrap, properties)
    arrivals = KafkaArrivals(client, notify.notify_kafka_topic or ARRIVALS_TOPIC)
    reporter.arrivals = arrivals
    try:
        yield [arrivals]
    finally:
        counts = arrivals.close()
        reporter.say("arrivals", arrivals_line(counts), **asdict(counts))


def run_dispatch(
    prepared: PreparedDispatch,
    reporter: Reporter,
    *,
    settings: SparkSettings | None = None,
    meanwhile: Callable[[RunningDispatch, threading.Event], None] | None = None,
) -> None:
    """Run a dispatch until it ends or is stopped, or ``meanwhile`` returns. Raises its failure.

    ``meanwhile`` gets the event that SIGINT and SIGTERM set.
    """
    with stop_signals() as stop:
        reporter.begin(prepared)
        try:
            spark = start_spark("reput dispatch", settings or SparkSettings(), stop)
        except BaseException:
            prepared.close()
            raise
        try:
            if stop.is_set():
                prepared.close()
                reporter.end_early(prepared)
                return
            running = prepared.start(spark)
            reporter.start()
            try:
                (meanwhile or _wait)(running, stop)
                has_ended = not running.query.isActive
            finally:
                running.close()
                reporter.end(running)
            is_expected = prepared.options.available_now or stop.is_set() or not has_ended
            running.raise_failure(is_end_expected=is_expected)
        finally:
            spark.stop()


def _wait(running: RunningDispatch, stop: threading.Event) -> None:
    while running.query.isActive and not stop.wait(POLL_SECONDS):
        pass
