"""``reput export``: messages as Parquet or JSON files, by topic and day."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streaming.cli.options import BrokerConf, BrokerVersion, Json, Store, flag_option, parse_time
from streaming.cli.show import print_json, printable, task_bar


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export_messages)


def export_messages(  # noqa: PLR0913, PLR0917 - one parameter an option
    store: Store,
    to: Annotated[Path, typer.Option(help="A new or empty directory for the files.")],
    file_format: Annotated[
        str, typer.Option("--format", help="parquet, or jsonl: one JSON object a line.")
    ] = "parquet",
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only this topic (may be given again).", show_default=False),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(help="Stored at or after: epoch ms or ISO 8601.", show_default=False),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(help="Stored at or before: epoch ms or ISO 8601.", show_default=False),
    ] = None,
    fail_on_data_loss: Annotated[
        str, typer.Option(metavar="BOOL", help="false: leave out what cannot be read")
    ] = "true",
    master: Annotated[
        str | None, typer.Option(help="Spark's master URL (local[*]).", show_default=False)
    ] = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Write the log's messages as files that Spark, DuckDB and others read as one table.

    A directory a topic and a day of the store time (UTC): TO/topic=T/day=YYYY-MM-DD. Columns are
    those of the data source rocketmq-commitlog; in JSON bodies are base64.
    """
    from streaming.export import ExportOptions, check_target, export
    from streaming.session import build_session

    options = ExportOptions(
        file_format=file_format,
        topics=tuple(topic or ()),
        from_time=parse_time("--from-time", from_time),
        to_time=parse_time("--to-time", to_time),
        broker_conf=broker_conf,
        broker_version=broker_version,
        fail_on_data_loss=flag_option("--fail-on-data-loss", fail_on_data_loss),
    )
    check_target(store, to, options)
    spark = build_session("reput export", master, runs_hot=True)
    try:
        with task_bar("exporting", is_shown=sys.stderr.isatty() and not as_json) as report:
            export(spark, store, to, options, report)
    finally:
        spark.stop()
    files = [path for path in to.rglob("part-*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if as_json:
        print_json({"to": str(to), "files": len(files), "bytes": size})
    else:
        typer.echo(printable(f"exported to {to}: {len(files):,} files, {size:,} bytes"))
