"""``reput usage``: what fills the commit log; no JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reput.cli.columns import Cell, Column, Fit
from reput.cli.lines import print_json, say
from reput.cli.options import (
    BrokerOptions,
    Json,
    Store,
    StoredFrom,
    StoredTo,
    opened_store,
)
from reput.cli.show import NOT_FOUND, exit_not_found, progress_bar, raise_damage
from store.errors import ConfigError, shown
from store.printable import size_text
from streaming.sources.option_values import parse_time

if TYPE_CHECKING:
    from store.usage import By, Expiry, Usage

_BAR_WIDTH = 20
_FIGURES = (
    Column("messages", is_right=True),
    Column("bytes", is_right=True),
    Column("share", rank=1, is_right=True),
    Column("", rank=2),
)


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """What to count, and by what."""

    by: Annotated[
        str, typer.Option(metavar="topic|day|queue|tag|host", help="What to count by.")
    ] = "topic"
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic (repeatable).")] = None
    from_time: StoredFrom = None
    to_time: StoredTo = None
    max_rows: Annotated[
        int | None, typer.Option("--max", help="Show only this many rows.", min=1)
    ] = None


def usage(
    store: Store, counted: UsageOptions, broker: BrokerOptions, as_json: Json = False
) -> None:
    """Show what fills the commit log.

    Counts messages and bytes of records by topic, day of the store time (UTC), queue, tag or
    producer host, most bytes first, and shows when files expire (fileReservedTime). Reads the log
    alone. Exits with 1 if no message matches, with 3 if a part of the log is damaged: the rest is
    counted.
    """
    from store.reads.message_filter import MessageFilter
    from store.usage import By, expiries, measure_usage

    if counted.by not in list(By):
        raise ConfigError(f"--by {shown(counted.by)} is not one of {', '.join(By)}")
    by = By(counted.by)
    wanted = MessageFilter(
        topics=frozenset(counted.topic or ()),
        from_time=parse_time("--from-time", counted.from_time),
        to_time=parse_time("--to-time", counted.to_time),
    )
    with opened_store(store, broker) as s:
        with progress_bar("reading", as_json=as_json) as show:
            found = measure_usage(s.store_root, s.config, by, wanted, show)
        expiring = expiries(s.store_root, s.config, broker.broker_conf)
    if found.groups.count:
        _print(found, expiring, by, counted.max_rows, as_json=as_json)
    raise_damage(found.damages)
    if not found.groups.count:
        exit_not_found(NOT_FOUND, "no message matches", {}, as_json=as_json)


def _print(
    found: Usage, expiring: Sequence[Expiry], by: By, max_rows: int | None, *, as_json: bool
) -> None:
    rows = found.groups.rows(count=max_rows)
    if as_json:
        for row in rows:
            print_json({"row": by.value, **row})
        for row in found.kinds:
            print_json({"row": "kind", **row})
        for expiry in expiring:
            print_json({"row": "expiry", **asdict(expiry)})
        return
    from reput.cli.tables import print_table
    from store.usage import KEYS

    total = sum(row["bytes"] for row in found.kinds)
    names = KEYS[by]
    columns = [Column(_title(name), Fit.WHOLE if name == "topic" else Fit.FOLDED) for name in names]
    print_table([*columns, *_FIGURES], _cells(rows, names, total), f"by {by}")
    if max_rows is not None and max_rows < found.groups.count:
        say(f"{found.groups.count - max_rows:,} more rows: --max")
    print_table([Column("topics"), *_FIGURES], _cells(found.kinds, ("kind",), total), "by kind")
    if expiring:
        columns = [Column("expires on"), Column("files", is_right=True), _FIGURES[1]]
        files = ((e.day, f"{e.files:,}", size_text(e.bytes)) for e in expiring)
        print_table(columns, files, "files of the log, by the day on which they expire (UTC)")


def _title(name: str) -> str:
    return {"queue_id": "queue", "day": "day (UTC)"}.get(name, name)


def _cells(
    rows: Iterable[Mapping[str, Any]], names: Sequence[str], total: int
) -> Iterator[list[Cell]]:
    for row in rows:
        share = row["bytes"] / total
        yield [
            *("" if row[name] is None else str(row[name]) for name in names),
            f"{row['messages']:,}",
            size_text(row["bytes"]),
            f"{share:.1%}",
            "█" * round(share * _BAR_WIDTH),
        ]
