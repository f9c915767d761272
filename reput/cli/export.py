"""``reput export``: messages as Parquet or JSON files, by topic and day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from reput.cli.lines import counted, print_json, print_line, say
from reput.cli.options import (
    BrokerOptions,
    Json,
    MaxBodyBytes,
    StoredFrom,
    StoredTo,
    body_limit,
    flag_option,
    output_option,
)
from reput.cli.show import broker_json, exit_not_found, progress_bar
from reput.cli.stores import Failures, LogStores, NamedStore, log_stores, read_stores
from store.errors import StoreError, UnknownTopicError
from streaming.sources.option_values import parse_time

if TYPE_CHECKING:
    from reput.export.not_consumed import NotConsumed
    from reput.export.options import ExportOptions
    from reput.export.run import ExportJob, ExportResult

_NO_MESSAGE = "NO_MESSAGE"
_QUEUES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Which messages to export, and the directory and format of the files."""

    to: Annotated[
        Path, typer.Option(help="The directory for the files: new or empty, unless with --append.")
    ]
    file_format: Annotated[
        str, typer.Option("--format", help="parquet, or jsonl (one JSON object per line).")
    ] = "parquet"
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic (repeatable).")] = None
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
        ),
    ] = None
    output: Annotated[
        Path | None,
        output_option(
            "With --not-consumed-by: the OUTPUT whose queues show where the group's offsets "
            "are, if those of STORE are lost or damaged. For several stores, NAME=STORE:OUTPUT."
        ),
    ] = None
    from_time: StoredFrom = None
    to_time: StoredTo = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="Only these columns; topic and day are in the directory names."
        ),
    ] = None
    compression: Annotated[
        str | None,
        typer.Option(
            help="parquet: snappy (default), zstd, gzip or none; jsonl: none (default), gzip or "
            "zstd."
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


def export(
    store: LogStores,
    files: FileOptions,
    broker: BrokerOptions,
    as_json: Json = False,
) -> None:
    """Write messages to Parquet or JSON files.

    One directory for each topic and day of the store time (UTC): TO/topic=T/day=YYYY-MM-DD; several
    stores have TO/broker=NAME each, and export what the others do not.
    Parquet has the columns of the data source rocketmq-commitlog, jsonl the fields of get --json.
    Exits with 1 if there is no message to export, unless with --append.
    """
    from reput.export.run import open_export

    to, options = files.to, _export_options(files, broker)
    stores = _stores(store, options)
    if len(stores) > 1:
        _export_several(stores, to, options, as_json=as_json)
        return
    options = replace(options, output=stores[0].output)
    with open_export(stores[0].store_root, to, options) as job:
        _say_problem(job, "")
        done = _run(job, as_json=as_json)
    if not done.messages and not options.append:
        _exit_empty(options, as_json=as_json)
    _print_result(to, done, "", as_json=as_json)


def _stores(texts: Sequence[str], options: ExportOptions) -> list[NamedStore]:
    """Return the stores, with an OUTPUT only where it is used. Raises ConfigError."""
    if options.not_consumed_by is None:
        return log_stores(texts, options.broker_conf)
    return read_stores(texts, options.broker_conf, options.output)


def _export_several(
    stores: Sequence[NamedStore],
    to: Path,
    options: ExportOptions,
    *,
    as_json: bool,
) -> None:
    """Export each store into a directory of its own; exit with the code of a failure."""
    from reput.export.directory import broker_directory, several_exports
    from reput.export.run import open_export

    _refuse_inside_logs(stores, to, options)
    failures, exported = Failures(), 0
    with several_exports(to, append=options.append):
        for store in stores:
            target = broker_directory(to, store.name)
            with failures.of(store.name):
                try:
                    own = replace(options, output=store.output)
                    with open_export(store.store_root, target, own) as job:
                        _say_problem(job, f"{store.name}: ")
                        done = _run(job, as_json=as_json)
                except UnknownTopicError as e:  # another store may have the topic
                    say(f"{store.name}: {e}")
                    continue
                if done.messages or options.append:
                    exported += 1
                    _print_result(target, done, store.name, as_json=as_json)
                else:
                    say(f"{store.name}: {_nothing(options)}")
    failures.exit()
    if not exported:
        _exit_empty(options, as_json=as_json)


def _refuse_inside_logs(stores: Sequence[NamedStore], to: Path, options: ExportOptions) -> None:
    """Raise ConfigError for a directory in the log of any store: the others would write there."""
    from reput.export.run import refuse_inside_log
    from store.output.resolve_config import open_store_config

    broker = options.broker_conf, options.broker_version
    for store in stores:
        try:
            config = open_store_config(store.store_root, None, *broker, needs_log=True)
        except StoreError:  # reported when it is exported
            continue
        refuse_inside_log(to, store.store_root, config)


def _say_problem(job: ExportJob, prefix: str) -> None:
    """Say what is wrong with the group's offsets: their file, or their translation."""
    group = job.not_consumed
    if group is not None and group.problem:
        say(f"{prefix}{group.problem}")
    if group is not None and group.untranslated:
        say(f"{prefix}{_untranslated_text(group)}")


def _untranslated_text(group: NotConsumed) -> str:
    names = [f"{topic}/{queue_id}" for topic, queue_id in group.untranslated]
    more = f" and {len(names) - _QUEUES_SHOWN} more" if len(names) > _QUEUES_SHOWN else ""
    return (
        f"messages that {group.group} has consumed may be exported too: no intact queue of STORE "
        "or --output shows where its committed offsets are in "
        f"{', '.join(names[:_QUEUES_SHOWN])}{more}"
    )


def _print_result(to: Path, done: ExportResult, name: str, *, as_json: bool) -> None:
    prefix = f"{name}: " if name else ""
    for topic in done.without_messages:
        say(f"{prefix}topic {topic} has no message in the exported part of the log")
    for lost in done.lost:
        say(f"{prefix}lost: offsets {lost.begin} to {lost.end} of {lost.path}: {lost.reason}")
    if as_json:
        print_json(broker_json({"to": str(to), **asdict(done)}, name))
        return
    print_line(
        f"{prefix}exported to {to}: {counted(done.files, 'file')}, {done.bytes:,} bytes, "
        f"{counted(done.messages, 'message')} of offsets {done.begin_offset:,} to "
        f"{done.end_offset:,}"
    )


def _export_options(files: FileOptions, broker: BrokerOptions) -> ExportOptions:
    """Parse the options. Raises ConfigError."""
    from reput.export.options import ExportOptions

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
        output=files.output,
    )


def _run(job: ExportJob, *, as_json: bool) -> ExportResult:
    with progress_bar("exporting", as_json=as_json) as report:
        return job.run(report)


def _exit_empty(options: ExportOptions, *, as_json: bool) -> NoReturn:
    """Report that there is nothing to export, and exit."""
    exit_not_found(_NO_MESSAGE, _nothing(options), {}, as_json=as_json)


def _nothing(options: ExportOptions) -> str:
    which = f" of topic {' or '.join(options.topics)}" if options.topics else ""
    if options.not_consumed_by is not None:
        which += f" that {options.not_consumed_by} has not consumed"
    timed = options.from_time is not None or options.to_time is not None
    return f"nothing to export: no message{which} in the {'time range' if timed else 'log'}"
