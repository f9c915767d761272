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

from store.errors import ConfigError, SparkError
from store.io.user_path import given_output, given_path
from streaming.cli.kafka_options import KafkaProperties, KafkaProperty
from streaming.cli.long_running import (
    MEGA,
    POLL_SECONDS,
    LineReporter,
    progress_line,
    start_spark,
    stop_signals,
)
from streaming.cli.metrics import MetricsOptions, metrics_endpoint, show_dispatch
from streaming.cli.option_groups import add_command
from streaming.cli.options import (
    BrokerOptions,
    StuckAfter,
    check_seconds,
    describe_settings,
    flag_option,
    size_option,
)
from streaming.cli.recover import recovered_json, recovered_line, recovery_progress
from streaming.cli.show import drops_line
from streaming.sources.option_values import TIME_FORMS, parse_time
from streaming.spark.settings import SparkSettings

if TYPE_CHECKING:
    from streaming.kafka.arrivals import ArrivalCounts, KafkaArrivals
    from streaming.queries.dispatch import PreparedDispatch, RunningDispatch
    from streaming.queries.metrics import DispatchProgress
    from streaming.sinks.dispatch import ArrivalListener

_log = logging.getLogger("reput.dispatch")


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
        str, typer.Option(help="how often to check for new messages, e.g. 5s or 1m")
    ] = "0s"
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
    store: Annotated[
        Path,
        typer.Argument(metavar="STORE", parser=given_path, help="the broker's storePathRootDir"),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="PATH", parser=given_output, help="where consumequeue/ and index/ are built"
        ),
    ],
    log: LogOptions,
    notify: NotifyOptions,
    session: RunOptions,
) -> None:
    """Build ConsumeQueue and IndexFile, and keep them built.

    Runs until it is stopped (Ctrl-C or SIGTERM, both clean); the next start resumes from there.
    """
    from streaming.queries.dispatch import DispatchOptions, prepare_dispatch
    from streaming.web.metrics.query import BatchDurations

    as_json = session.as_json
    reporter = Reporter(is_live=sys.stderr.isatty() and not as_json, as_json=as_json)
    durations = BatchDurations()
    stuck_after = check_seconds("--stuck-after", session.stuck_after)
    settings = session.spark_settings()
    options = DispatchOptions(
        broker_conf=log.broker_conf,
        broker_version=log.broker_version,
        from_offset=log.from_offset,
        from_time=parse_time("--from-time", log.from_time),
        available_now=log.available_now,
        trigger_interval=log.trigger_interval,
        max_bytes_per_trigger=size_option("--max-bytes-per-trigger", log.max_bytes_per_trigger),
        fail_on_data_loss=flag_option("--fail-on-data-loss", log.fail_on_data_loss),
        keep_expired=log.keep_expired,
        on_progress=reporter.report,
        on_batch=durations.observe,
    )
    with (
        metrics_endpoint(session, reporter) as endpoint,
        notifying(notify, reporter) as listeners,
    ):
        options = replace(options, listeners=listeners)
        with recovery_progress(is_shown=reporter.is_live) as report:
            prepared = prepare_dispatch(store, output, replace(options, on_recovery=report))
        if endpoint is not None:
            show_dispatch(endpoint, prepared, durations, reporter.arrivals, stuck_after)
        run_dispatch(prepared, reporter, settings=settings)


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
                reporter.end_line()
                at = prepared.root.progress.reput_from_offset
                text = f"{prepared.root.path}: stopped before the query started, at offset {at}"
                reporter.say("stop", text, reput_from_offset=at)
                return
            running = prepared.start(spark)
            reporter.start()
            try:
                (meanwhile or _wait)(running, stop)
                has_ended = not running.query.isActive
            finally:
                running.close()
                reporter.end(running)
            error = running.query.failure()
            is_expected = prepared.options.available_now or stop.is_set()
            if error is None and has_ended and not is_expected:
                error = SparkError("Spark ended the query without giving a reason")
            if error is not None:
                raise error
        finally:
            spark.stop()


def _wait(running: RunningDispatch, stop: threading.Event) -> None:
    while running.query.isActive and not stop.wait(POLL_SECONDS):
        pass


@dataclass
class Reporter(LineReporter):
    """Reports a dispatch: a live line on a terminal, structured log lines otherwise."""

    arrivals: KafkaArrivals | None = None

    def begin(self, prepared: PreparedDispatch) -> None:
        """Report the assumed settings, recoveries, and the start offset."""
        config, root = prepared.config, prepared.root
        self.say(
            "start",
            describe_settings(config),
            version=str(config.version),
            mappedFileSizeCommitLog=config.mapped_file_size_commit_log,
            mappedFileSizeConsumeQueue=config.mapped_file_size_consume_queue,
            messageIndexEnable=config.message_index_enable,
            reput_from_offset=root.progress.reput_from_offset,
            output=str(root.path),
        )
        for recovered in root.recovered:
            fields = recovered_json(recovered)
            self.say("recovered", recovered_line(recovered), **fields | fields.pop("cut"))
        at, is_new = prepared.begin, root.progress.is_untouched
        how = text = "starts" if is_new else "resumes"
        if at < root.progress.reput_from_offset:
            how, text = "replays", "replays, which changes nothing,"
        self.say("position", f"{root.path}: {text} at offset {at:,}", begin_offset=at, how=how)
        self.begin_offset = at
        if not root.log.files:
            where = " and ".join(map(str, root.log.directories))
            self.say("warning", f"no commit log file in {where} yet", empty=where)
        self.show_line("starting Spark")

    def report(self, progress: DispatchProgress) -> None:
        """Show one progress report."""
        text, fields = progress_line(progress, self.begin_offset), asdict(progress)
        if self.arrivals is not None:
            counts = self.arrivals.counts
            if counts.waiting or counts.dropped:
                text += f"\narrivals waiting {counts.waiting:,}, dropped {counts.dropped:,}"
            fields |= {f"arrivals_{name}": value for name, value in asdict(counts).items()}
        self.show_progress(text, **fields)

    def end(self, running: RunningDispatch) -> None:
        """Report the result; later progress is not shown."""
        from checkpoints.progress import queue_key

        seconds = self.end_line()
        counts, progress = running.sink.counts, running.root.progress
        self.say(
            "stop",
            f"dispatched {counts.messages:,} messages ({counts.bytes / MEGA:,.1f} MB of log) in "
            f"{seconds:.1f} s; {running.root.path} is at offset {progress.reput_from_offset}",
            messages=counts.messages,
            bytes=counts.bytes,
            seconds=round(seconds, 3),
            reput_from_offset=progress.reput_from_offset,
        )
        if counts.expired_files:
            text = f"deleted {counts.expired_files:,} expired queue and index files"
            self.say("expired", text, files=counts.expired_files)
        for queue, drops in progress.drops.items():
            topic, queue_id = queue_key(queue)
            text = drops_line(topic, queue_id, repeated=drops["repeated"], gaps=drops["gaps"])
            self.say("rules", text, queue=queue, **drops)
        for lost in progress.lost:
            text = f"lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}"
            self.say("lost", text, **asdict(lost))


def arrivals_line(counts: ArrivalCounts) -> str:
    """Return one line that counts the arrivals by outcome."""
    return (
        f"arrivals: {counts.sent:,} sent to Kafka, {counts.coalesced:,} superseded by newer ones, "
        f"{counts.dropped:,} dropped"
    )
