"""``reput mirror``: the messages of a commit log to Kafka, exactly once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from reput.cli import EXIT_NO
from reput.cli.lines import counted, print_json, print_line, shows_progress, time_text
from reput.cli.long_running import MEGA, LineReporter, progress_line
from reput.cli.metrics_port import MetricsOptions, metrics_endpoint, show_mirror
from reput.cli.options import (
    BrokerOptions,
    KafkaProperties,
    KafkaProperty,
    MaxBodyBytes,
    Store,
    StuckAfter,
    body_limit,
    check_seconds,
    flag_option,
    size_option,
)
from reput.cli.query_runner import Query, QueryRunner
from reput.cli.status import status_text
from store.errors import ConfigError, shown
from store.java import now_ms
from store.output.dispatch_status import status_json
from streaming.sources.option_values import TIME_FORMS, parse_time
from streaming.spark.batch_pace import BY_NEED

if TYPE_CHECKING:
    from pathlib import Path

    from streaming.kafka.oversized import OversizedMessage
    from streaming.kafka.routes import Creation
    from streaming.kafka.topic_rules import TopicRules
    from streaming.queries.mirror_query import MirrorOptions, PreparedMirror
    from streaming.queries.query_metrics import DispatchProgress


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The target cluster, the topics to mirror, and their names and settings there."""

    kafka_bootstrap: Annotated[str, typer.Option(metavar="H:P,…", help="The Kafka brokers.")]
    topic: Annotated[
        list[str] | None, typer.Option(help="Mirror only this topic (repeatable).")
    ] = None
    topic_pattern: Annotated[
        str | None, typer.Option(help="Mirror the topics that match this pattern.")
    ] = None
    topic_prefix: Annotated[str, typer.Option(help="Prefix of topic names in Kafka.")] = ""
    topic_map: Annotated[
        list[str] | None, typer.Option(metavar="FROM=TO", help="Rename a topic (repeatable).")
    ] = None
    include_system: Annotated[
        bool,
        typer.Option("--include-system", help="Also mirror system topics: half, schedule, timer…"),
    ] = False
    create_topics: Annotated[
        bool,
        typer.Option(
            "--create-topics", help="Create missing topics, with one partition per queue."
        ),
    ] = False
    topic_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of created topics, such as retention.ms=-1 (repeatable).",
        ),
    ] = None

    def rules(self) -> TopicRules:
        """Return which topics are mirrored, and their names. Raises ConfigError."""
        from streaming.kafka.topic_rules import make_rules

        return make_rules(
            self.topic or [],
            pattern=self.topic_pattern,
            prefix=self.topic_prefix,
            maps=self.topic_map or [],
            include_system=self.include_system,
        )

    def creation(self) -> Creation:
        """Return whether and how missing topics are created. Raises ConfigError."""
        from streaming.kafka.routes import Creation

        return Creation(self.create_topics, _topic_settings(self.topic_config or []))


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The mirror's name and position topic, and its producer options."""

    name: Annotated[
        str | None, typer.Option(help="The mirror's name [default: from STORE and prefix]")
    ] = None
    position_topic: Annotated[
        str | None,
        typer.Option(help="The topic of mirror positions [default: reput-mirror-offsets]"),
    ] = None
    compression: Annotated[
        str, typer.Option(metavar="KIND", help="zstd, lz4, snappy, gzip or none.")
    ] = "zstd"
    kafka_property: KafkaProperty = None
    kafka_properties: KafkaProperties = None

    def properties(self) -> dict[str, str]:
        """Return the client's properties. Raises ConfigError, StoreIOError."""
        from streaming.kafka.client_options import read_properties

        return read_properties(self.kafka_properties, self.kafka_property or [])


@dataclass(frozen=True, slots=True)
class LogOptions(BrokerOptions):
    """Which part of the log to mirror, the batch size, and how to handle losses."""

    available_now: Annotated[
        bool, typer.Option("--available-now", help="Mirror the current log, then exit.")
    ] = False
    from_offset: Annotated[
        int | None, typer.Option(help="Start a new name at this physical offset.")
    ] = None
    from_time: Annotated[
        str | None, typer.Option(help=f"Likewise, by store time: {TIME_FORMS}.")
    ] = None
    to_time: Annotated[
        str | None, typer.Option(help="Stop after the messages stored up to this time.")
    ] = None
    force_position: Annotated[
        bool,
        typer.Option(
            "--force-position",
            help="Start there under an existing name too: messages are sent twice, or not at all.",
        ),
    ] = False
    max_bytes_per_trigger: Annotated[
        str | None, typer.Option(help="Maximum amount of log per batch [default: 128m]")
    ] = None
    max_bytes_per_transaction: Annotated[
        str | None, typer.Option(help="Maximum amount of log per transaction [default: 32m]")
    ] = None
    trigger_interval: Annotated[
        str,
        typer.Option(help="When to begin a batch: auto, by need; 0s, at once; or every 5s, 1m, …"),
    ] = BY_NEED
    fail_on_data_loss: Annotated[
        str, typer.Option(metavar="BOOL", help="false: continue past damage and report the loss.")
    ] = "true"
    max_body_bytes: MaxBodyBytes = None
    oversized: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="A message that is larger than Kafka accepts: fail, skip it, or topic:NAME.",
        ),
    ] = "fail"
    wait_for_kafka: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for an unavailable Kafka.", min=0),
    ] = 120


@dataclass(frozen=True, slots=True)
class RunOptions(MetricsOptions):
    """How to run the mirror, or only to show its status."""

    status: Annotated[
        bool,
        typer.Option(
            "--status", help="Show the mirror's position and lag, and exit; exit 1 if it is stuck."
        ),
    ] = False
    stuck_after: StuckAfter = 60.0


def mirror(
    store: Store,
    target: TargetOptions,
    producer: ProducerOptions,
    log: LogOptions,
    session: RunOptions,
) -> None:
    """Send messages to Kafka, each exactly once.

    Runs until it is stopped (Ctrl-C or SIGTERM, both clean). Its position is stored in that Kafka,
    in the same transactions as the messages; the next start resumes from there.
    """
    from reput.console.metrics.running_query import BatchDurations
    from streaming.kafka.oversized import parse_rule
    from streaming.kafka.position import POSITION_TOPIC
    from streaming.queries.mirror_query import TRANSACTION_BYTES, MirrorOptions, prepare_mirror

    as_json, durations = session.as_json, BatchDurations()
    stuck_after = check_seconds("--stuck-after", session.stuck_after)
    reporter = MirrorReporter(is_live=shows_progress(as_json=as_json), as_json=as_json)
    settings = session.spark_settings()
    options = MirrorOptions(
        bootstrap=target.kafka_bootstrap,
        rules=target.rules(),
        properties=producer.properties(),
        creation=target.creation(),
        name=producer.name,
        position_topic=producer.position_topic or POSITION_TOPIC,
        compression=producer.compression,
        broker_conf=log.broker_conf,
        broker_version=log.broker_version,
        from_offset=log.from_offset,
        from_time=parse_time("--from-time", log.from_time),
        to_time=parse_time("--to-time", log.to_time),
        force_position=log.force_position,
        available_now=log.available_now,
        trigger_interval=log.trigger_interval,
        max_bytes_per_trigger=size_option("--max-bytes-per-trigger", log.max_bytes_per_trigger),
        transaction_bytes=size_option("--max-bytes-per-transaction", log.max_bytes_per_transaction)
        or TRANSACTION_BYTES,
        fail_on_data_loss=flag_option("--fail-on-data-loss", log.fail_on_data_loss),
        max_body_bytes=body_limit(log.max_body_bytes),
        oversized=parse_rule(log.oversized),
        on_oversized=reporter.report_oversized,
        wait_for_kafka_seconds=check_seconds("--wait-for-kafka", log.wait_for_kafka),
        on_progress=reporter.report,
        on_batch=durations.observe,
    )
    if session.status:
        show_status(store, options, stuck_after, as_json=as_json)
        return
    with metrics_endpoint(session, reporter) as endpoint, QueryRunner(reporter) as runner:
        prepared = prepare_mirror(store, options)
        runner.queries.append(Query(prepared, reporter, options.has_end))
        if endpoint is not None:
            show_mirror(endpoint, prepared, durations, stuck_after)
        runner.run("reput mirror", settings)


def show_status(store: Path, options: MirrorOptions, stuck_after: float, *, as_json: bool) -> None:
    """Show the status of a mirror, whether it is running or not; exit 1 if it is stuck."""
    from streaming.queries.mirror_status import read_mirror_status

    mirror = read_mirror_status(store, options)
    now = now_ms()
    is_stuck = mirror.progress.stuck_ms(now) > stuck_after * 1000
    if as_json:
        print_json(
            {
                "name": mirror.name,
                "commit_log_offset": mirror.progress.reput_from_offset,
                **status_json(mirror.progress, now, is_stuck=is_stuck),
                "messages": mirror.messages,
                "oversized": mirror.oversized,
            }
        )
    else:
        text = status_text("mirrored", mirror.progress, now, is_stuck=is_stuck)
        last = f"; last transaction at {time_text(mirror.progress.progress_timestamp)}"
        oversized = f"; {mirror.oversized:,} oversized messages" if mirror.oversized else ""
        print_line(f"mirror {mirror.name!r}: {text}{last}{oversized}")
    if is_stuck:
        raise typer.Exit(EXIT_NO)


class MirrorReporter(LineReporter):
    """Reports a mirror: a live line on a terminal, structured log lines otherwise."""

    def begin(self, prepared: PreparedMirror) -> None:
        """Report the mirror's name and its start offset."""
        options = prepared.options
        how = "starts" if prepared.is_new else "resumes"
        self.say(
            "position",
            f"mirror {prepared.name!r} {how} at offset {prepared.begin:,}, to Kafka at "
            f"{options.bootstrap}",
            name=prepared.name,
            begin_offset=prepared.begin,
            how=how,
            kafka=options.bootstrap,
            version=str(prepared.config.version),
        )
        self.begin_offset = prepared.begin
        if not prepared.log.files:
            where = " and ".join(map(str, prepared.log.directories))
            self.say("warning", f"no commit log file in {where} yet", empty=where)

    def report(self, progress: DispatchProgress) -> None:
        """Show one progress report."""
        fields = asdict(progress)
        at = fields.pop("reput_from_offset")
        text = progress_line(progress, self.begin_offset)
        self.show_progress(text, commit_log_offset=at, **fields)

    def report_oversized(self, message: OversizedMessage) -> None:
        """Report a message that was skipped, or sent to another topic."""
        self.say("oversized", str(message), **asdict(message))

    def end_early(self, prepared: PreparedMirror) -> None:
        """Report that nothing was mirrored."""
        self.end(prepared)

    def end(self, prepared: PreparedMirror) -> None:
        """Report the result."""
        seconds = self.end_line()
        counts, position = prepared.sink.counts, prepared.sink.position
        self.say(
            "stop",
            f"mirrored {counted(counts.messages, 'message')} "
            f"({counts.bytes / MEGA:,.1f} MB of log) in {seconds:.1f} s; "
            f"mirror {prepared.name!r} is at offset {position.commit_log_offset}",
            messages=counts.messages,
            bytes=counts.bytes,
            seconds=round(seconds, 3),
            commit_log_offset=position.commit_log_offset,
            messages_ever=position.messages,
            oversized_ever=position.oversized,
        )
        for lost in prepared.sink.lost:
            text = f"lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}"
            self.say("lost", text, **asdict(lost))


def _topic_settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--topic-config {shown(pair)} is not KEY=VALUE")
        settings[key] = value
    return settings
