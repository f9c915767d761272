"""``reput export``: messages as Parquet or JSON files, by topic and day."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from streaming.cli.lines import print_json, print_line, say
from streaming.cli.option_groups import add_command
from streaming.cli.options import (
    BrokerOptions,
    Json,
    MaxBodyBytes,
    ScanOptions,
    Store,
    StoredFrom,
    StoredTo,
    body_limit,
    flag_option,
)
from streaming.cli.show import exit_not_found, progress_bar
from streaming.sources.option_values import parse_time

if TYPE_CHECKING:
    from streaming.export.export import ExportJob, ExportOptions, ExportResult
    from streaming.spark.settings import SparkSettings

_NO_MESSAGE = "NO_MESSAGE"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Which messages to export, and the directory and format of the files."""

    to: Annotated[
        Path,
        typer.Option(
            help="The directory for the files: new or empty, unless with --append.",
            show_default=False,
        ),
    ]
    file_format: Annotated[
        str, typer.Option("--format", help="parquet, or jsonl (one JSON object per line).")
    ] = "parquet"
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only this topic (repeatable).", show_default=False),
    ] = None
    exclude_system: Annotated[
        bool,
        typer.Option(
            "--exclude-system",
            help="Omit the broker's own topics, such as SCHEDULE_TOPIC_XXXX and rmq_sys_…",
        ),
    ] = False
    not_consumed_by: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="Only what this consumer group has not consumed, by STORE/config/"
            "consumerOffset.json: of its topics and its retry topic, or of those in --topic.",
            show_default=False,
        ),
    ] = None
    from_time: StoredFrom = None
    to_time: StoredTo = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help="Only these columns; topic and day are in the directory names.",
            show_default=False,
        ),
    ] = None
    compression: Annotated[
        str | None,
        typer.Option(
            help="parquet: snappy (default), zstd, gzip or none; jsonl: none (default), gzip or "
            "zstd.",
            show_default=False,
        ),
    ] = None
    append: Annotated[
        bool,
        typer.Option("--append", help="Resume where the last export into the directory ended."),
    ] = False
    fail_on_data_loss: Annotated[
        str, typer.Option(metavar="BOOL", help="false: omit records that cannot be read")
    ] = "true"
    max_body_bytes: MaxBodyBytes = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "export", export_messages)


def export_messages(
    store: Store,
    files: FileOptions,
    scan: ScanOptions,
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Write messages to Parquet or JSON files.

    One directory for each topic and day of the store time (UTC): TO/topic=T/day=YYYY-MM-DD.
    Parquet has the columns of the data source rocketmq-commitlog, jsonl the fields of get --json.
    Exits with 1 if there is no message to export, unless with --append.
    """
    from streaming.export.export import open_export

    to, options = files.to, _export_options(files, broker)
    settings = scan.spark_settings()
    with open_export(store, to, options) as job:
        if job.not_consumed is not None and job.not_consumed.problem:
            say(job.not_consumed.problem)
        done = _run(job, settings, is_shown=sys.stderr.isatty() and not as_json)
    if not done.messages and not options.append:
        _exit_empty(options, as_json=as_json)
    for name in done.without_messages:
        say(f"topic {name} has no message in the exported part of the log")
    for lost in done.lost:
        say(f"lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}")
    if as_json:
        print_json({"to": str(to), **asdict(done)})
        return
    print_line(
        f"exported to {to}: {done.files:,} files, {done.bytes:,} bytes, "
        f"{done.messages:,} messages of offsets {done.begin_offset:,} to {done.end_offset:,}"
    )


def _export_options(files: FileOptions, broker: BrokerOptions) -> ExportOptions:
    """Parse the options. Raises ConfigError."""
    from streaming.export.export import ExportOptions

    columns = files.columns
    return ExportOptions(
        file_format=files.file_format,
        topics=tuple(files.topic or ()),
        from_time=parse_time("--from-time", files.from_time),
        to_time=parse_time("--to-time", files.to_time),
        broker_conf=broker.broker_conf,
        broker_version=broker.broker_version,
        fail_on_data_loss=flag_option("--fail-on-data-loss", files.fail_on_data_loss),
        max_body_bytes=body_limit(files.max_body_bytes),
        compression=files.compression,
        columns=tuple(c.strip() for c in columns.split(",")) if columns is not None else None,
        exclude_system=files.exclude_system,
        append=files.append,
        not_consumed_by=files.not_consumed_by,
    )


def _run(job: ExportJob, settings: SparkSettings | None, *, is_shown: bool) -> ExportResult:
    """Run an export in threads, or as a Spark job if a master is given."""
    from streaming.export.run import SparkRunner, run_in_threads

    with progress_bar("exporting", is_shown=is_shown) as report:
        if settings is None or not job.ranges:
            return job.run(run_in_threads, report)
        from streaming.spark.session import build_session

        spark = build_session("reput export", settings.master, settings.conf)
        try:
            return job.run(SparkRunner(spark.sparkContext), report)
        finally:
            spark.stop()


def _exit_empty(options: ExportOptions, *, as_json: bool) -> NoReturn:
    """Report that there is nothing to export, and exit."""
    which = f" of topic {' or '.join(options.topics)}" if options.topics else ""
    if options.not_consumed_by is not None:
        which += f" that {options.not_consumed_by} has not consumed"
    timed = options.from_time is not None or options.to_time is not None
    reason = f"nothing to export: no message{which} in the {'time range' if timed else 'log'}"
    exit_not_found(_NO_MESSAGE, reason, {}, as_json=as_json)
