"""``reput mirror``: the messages of a commit log to Kafka, exactly once."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from store.errors import ConfigError, shown
from streaming.cli.kafka_options import KafkaProperties, KafkaProperty
from streaming.cli.long_running import (
    MEGA,
    POLL_SECONDS,
    LineReporter,
    progress_line,
    start_spark,
    stop_signals,
)
from streaming.cli.options import (
    BrokerConf,
    BrokerVersion,
    Json,
    MaxBodyBytes,
    Store,
    body_limit,
    check_seconds,
    flag_option,
    parse_time,
    size_option,
)

if TYPE_CHECKING:
    from streaming.queries.metrics import DispatchProgress
    from streaming.queries.mirror import MirrorOptions, PreparedMirror, RunningMirror


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("mirror")(mirror)


def mirror(  # noqa: PLR0913 - one parameter an option
    store: Store,
    *,
    kafka_bootstrap: Annotated[str, typer.Option(metavar="H:P,…", help="Where Kafka is.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Mirror this topic only; may be given again.", show_default=False),
    ] = None,
    topic_pattern: Annotated[
        str | None, typer.Option(help="Mirror the topics of this pattern.", show_default=False)
    ] = None,
    topic_prefix: Annotated[str, typer.Option(help="Put before each topic's name in Kafka.")] = "",
    topic_map: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM=TO",
            help="Another name for a topic; may be given again.",
            show_default=False,
        ),
    ] = None,
    include_system: Annotated[
        bool, typer.Option("--include-system", help="Half, schedule, timer topics and so on too.")
    ] = False,
    create_topics: Annotated[
        bool,
        typer.Option(
            "--create-topics", help="Make missing topics, with as many partitions as queues."
        ),
    ] = False,
    topic_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A setting of the topics made, such as retention.ms=-1.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The mirror's name [default: from STORE and prefix]", show_default=False),
    ] = None,
    position_topic: Annotated[
        str | None,
        typer.Option(
            help="The topic that holds how far mirrors are [default: reput-mirror-offsets]",
            show_default=False,
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option(metavar="KIND", help="zstd, lz4, snappy, gzip or none.")
    ] = "zstd",
    kafka_property: KafkaProperty = None,
    kafka_properties: KafkaProperties = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Mirror what is there, then stop.")
    ] = False,
    from_offset: Annotated[
        int | None,
        typer.Option(help="Begin at this physical offset (a new name).", show_default=False),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(help="The same by time: epoch ms or ISO 8601.", show_default=False),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(help="Stop behind what was stored at this time.", show_default=False),
    ] = None,
    force_position: Annotated[
        bool,
        typer.Option(
            "--force-position", help="Begin there under an old name too: twice, or not at all."
        ),
    ] = False,
    max_bytes_per_trigger: Annotated[
        str | None,
        typer.Option(help="How much log a batch takes [default: 128m]", show_default=False),
    ] = None,
    max_bytes_per_transaction: Annotated[
        str | None,
        typer.Option(help="How much log a transaction takes [default: 32m]", show_default=False),
    ] = None,
    trigger_interval: Annotated[str, typer.Option(help="How often to look for more.")] = "0s",
    fail_on_data_loss: Annotated[
        str,
        typer.Option(metavar="BOOL", help="false: continue past damage and report the loss."),
    ] = "true",
    max_body_bytes: MaxBodyBytes = None,
    wait_for_kafka: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for a Kafka that went away.", min=0),
    ] = 120,
    master: Annotated[
        str | None, typer.Option(help="Spark master URL [default: local[*]]", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Send messages to Kafka, each exactly once.

    Runs until it is stopped (Ctrl-C or SIGTERM, both clean). How far it is lies in that Kafka, in
    the same transactions as the messages: start it again, and it goes on.
    """
    from streaming.kafka.client_options import read_properties
    from streaming.kafka.position import POSITION_TOPIC
    from streaming.kafka.routes import Creation
    from streaming.kafka.topic_rules import make_rules
    from streaming.queries.mirror import (
        TRANSACTION_BYTES,
        MirrorOptions,
        prepare_mirror,
    )

    reporter = MirrorReporter(is_live=sys.stderr.isatty() and not as_json, as_json=as_json)
    rules = make_rules(
        (topic or [], topic_pattern), topic_prefix, topic_map or [], include_system=include_system
    )
    options = MirrorOptions(
        bootstrap=kafka_bootstrap,
        properties=read_properties(kafka_properties, kafka_property or []),
        rules=rules,
        creation=Creation(create_topics, _topic_settings(topic_config or [])),
        name=name,
        position_topic=position_topic or POSITION_TOPIC,
        compression=compression,
        broker_conf=broker_conf,
        broker_version=broker_version,
        from_offset=from_offset,
        from_time=parse_time("--from-time", from_time),
        to_time=parse_time("--to-time", to_time),
        force_position=force_position,
        available_now=available_now,
        trigger_interval=trigger_interval,
        max_bytes_per_trigger=size_option("--max-bytes-per-trigger", max_bytes_per_trigger),
        transaction_bytes=size_option("--max-bytes-per-transaction", max_bytes_per_transaction)
        or TRANSACTION_BYTES,
        fail_on_data_loss=flag_option("--fail-on-data-loss", fail_on_data_loss),
        max_body_bytes=body_limit(max_body_bytes),
        wait_for_kafka_seconds=check_seconds("--wait-for-kafka", wait_for_kafka),
        on_progress=reporter.report,
    )
    run_mirror(prepare_mirror(store, options), options, reporter, master)


def run_mirror(
    prepared: PreparedMirror,
    options: MirrorOptions,
    reporter: MirrorReporter,
    master: str | None,
) -> None:
    """Run a mirror until it ends or is stopped. Raises what ended it."""
    with stop_signals() as stop:
        reporter.begin(prepared, options)
        try:
            spark = start_spark("reput mirror", master, stop)
        except BaseException:
            prepared.close()
            raise
        try:
            running = prepared.start(spark)
            reporter.start()
            try:
                while running.query.isActive and not stop.wait(POLL_SECONDS):
                    pass
            finally:
                running.close()
                reporter.end(running, prepared)
            error = running.query.failure()
            if error is not None:
                raise error
        finally:
            spark.stop()


class MirrorReporter(LineReporter):
    """Shows a mirror: a live line on a terminal, structured log lines otherwise."""

    def begin(self, prepared: PreparedMirror, options: MirrorOptions) -> None:
        """Say once where it begins, and under which name."""
        how = "begins" if prepared.is_new else "goes on"
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
        self.show_line("starting Spark")

    def report(self, progress: DispatchProgress) -> None:
        """Show one progress report."""
        fields = asdict(progress)
        at = fields.pop("reput_from_offset")
        text = progress_line(progress, self.begin_offset)
        self.show_progress(text, commit_log_offset=at, **fields)

    def end(self, running: RunningMirror, prepared: PreparedMirror) -> None:
        """Say what was done."""
        seconds = self.end_line()
        counts, position = running.sink.counts, running.sink.position
        self.say(
            "stop",
            f"mirrored {counts.messages:,} messages ({counts.bytes / MEGA:,.1f} MB of log) in "
            f"{seconds:.1f} s; mirror {prepared.name!r} is at offset "
            f"{position.commit_log_offset}",
            messages=counts.messages,
            bytes=counts.bytes,
            seconds=round(seconds, 3),
            commit_log_offset=position.commit_log_offset,
            messages_ever=position.messages,
        )
        for lost in running.sink.lost:
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
