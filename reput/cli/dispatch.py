"""``reput dispatch``: the long-running dispatch query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli.dispatch_report import Board, BrokerReporter, Reporter, arrivals_line
from reput.cli.lines import say, shows_progress
from reput.cli.long_running import LineReporter
from reput.cli.metrics_port import (
    MetricsOptions,
    ShownDispatch,
    metrics_endpoint,
    show_dispatch,
    show_failure,
)
from reput.cli.options import (
    BrokerOptions,
    KafkaProperties,
    KafkaProperty,
    StuckAfter,
    check_seconds,
    flag_option,
    is_from_variable,
    output_option,
    size_option,
)
from reput.cli.query_runner import Query, QueryRunner
from reput.cli.recover import recovery_progress
from reput.cli.stores import (
    Failures,
    LogStores,
    NamedStore,
    log_stores,
    named_log_stores,
)
from store.errors import ConfigError
from store.io.user_path import given_output
from streaming.sources.option_values import TIME_FORMS, parse_time, spark_interval
from streaming.spark.batch_pace import BY_NEED

if TYPE_CHECKING:
    from reput.console.metrics.endpoint import MetricsEndpoint
    from streaming.kafka.arrivals import KafkaArrivals
    from streaming.queries.dispatch_query import DispatchOptions


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
            metavar="DIR", parser=given_output, help="likewise for several stores: below DIR/NAME"
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
        str, typer.Option(metavar="BOOL", help="false: continue past damage and record the loss")
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
    check_seconds("--stuck-after", session.stuck_after)
    as_json = session.as_json
    is_live = shows_progress(as_json=as_json)
    board: LineReporter
    reporters: Sequence[Reporter]
    if place.output_root is not None:
        stores = _several_stores(store, place, log, notify)
        board = Board(is_live, as_json, lines={s.name: "" for s in stores})
        reporters = [BrokerReporter(is_live, as_json, name=s.name, board=board) for s in stores]
    else:
        stores = [_only_store(store, place, log)]
        board = Reporter(is_live, as_json)
        reporters = [board]
    options, settings = _options(log), session.spark_settings()
    failures = Failures()
    with (
        metrics_endpoint(session, board) as endpoint,
        notifying(notify, board) as arrivals,
        QueryRunner(board, failures) as runner,
    ):
        failures.report = partial(_report_failure, board, endpoint)
        for named, reporter in zip(stores, reporters, strict=True):
            with failures.of(named.name):
                reporter.arrivals = arrivals
                shown = _prepare(named, options, reporter)
                runner.queries.append(
                    Query(shown.prepared, reporter, log.available_now, named.name)
                )
                if endpoint is not None:
                    show_dispatch(endpoint, shown, session.stuck_after)
        if runner.queries:
            runner.run("reput dispatch", settings)
    failed = failures.names
    if failed:
        say(f"reput: {len(failed)} of {len(stores)} dispatches failed: {', '.join(failed)}")
    failures.exit()


def _prepare(store: NamedStore, options: DispatchOptions, reporter: Reporter) -> ShownDispatch:
    """Lock the OUTPUT of a dispatch, and recover it."""
    from reput.console.metrics.running_query import BatchDurations
    from streaming.queries.dispatch_query import prepare_dispatch

    assert store.output is not None
    durations, arrivals = BatchDurations(), reporter.arrivals
    with recovery_progress(as_json=reporter.as_json) as report:
        options = replace(
            options,
            on_progress=reporter.report,
            on_batch=durations.observe,
            on_recovery=report,
            listeners=[] if arrivals is None else [arrivals],
        )
        prepared = prepare_dispatch(store.store_root, store.output, options)
    return ShownDispatch(prepared, durations, store, arrivals)


def _report_failure(
    board: LineReporter, endpoint: MetricsEndpoint | None, name: str, error: Exception
) -> None:
    """Report the failure of one of several dispatches, which ends alone."""
    if endpoint is not None:
        show_failure(endpoint, name, error)
    kind = type(error).__name__
    board.say("failed", f"{name}: {error}", error=kind, reason=str(error), broker=name)


def _options(log: LogOptions) -> DispatchOptions:
    """Parse the options. Raises ConfigError."""
    from streaming.queries.dispatch_query import DispatchOptions

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
    assert place.output_root is not None
    stores = named_log_stores(texts, log.broker_conf)
    return [replace(store, output=place.output_root / store.name) for store in stores]


@contextmanager
def notifying(notify: NotifyOptions, board: LineReporter) -> Iterator[KafkaArrivals | None]:
    """Yield the listener that notifies Kafka, None unless configured; close it in bounded time.

    Raises ConfigError.
    """
    if notify.notify_kafka_bootstrap is None:
        if notify != NotifyOptions():
            raise ConfigError("Kafka options need --notify-kafka-bootstrap")
        yield None
        return
    from streaming.kafka.arrivals import ARRIVALS_TOPIC, KafkaArrivals
    from streaming.kafka.client_options import client_options, read_properties

    properties = read_properties(notify.kafka_properties, notify.kafka_property or [])
    client = client_options(notify.notify_kafka_bootstrap, properties)
    arrivals = KafkaArrivals(client, notify.notify_kafka_topic or ARRIVALS_TOPIC)
    try:
        yield arrivals
    finally:
        counts = arrivals.close()
        board.say("arrivals", arrivals_line(counts), **asdict(counts))
