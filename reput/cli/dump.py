"""``reput dump``: one file of a store, record by record; no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any

import typer

from reput.cli import EXIT_DAMAGE
from reput.cli.columns import Cell, Column, Fit, Moment
from reput.cli.lines import print_json, say, time_text
from reput.cli.options import BrokerOptions, Json, MaxBodyBytes, body_limit
from reput.cli.show import body_cell, message_cell, print_text
from store.commitlog.message_json import message_body_json
from store.commitlog.record import Message, limit_bodies
from store.dump.file import Dump, FileKind, dump_file
from store.dump.rows import DAMAGE, END, Row, Sections

_TABLE_ROWS = 500  # rows per table: a table is laid out once its rows are known
_NOTHING: tuple[object, ...] = (None, "", [])
_LAST = ("body", "note")  # columns of a table; the others are in the order of the fields
# Columns that a narrow terminal omits, by kind of row: the last of these first.
_LESS_IMPORTANT = {
    "record": ("tags", "keys", "queue_offset", "body", "sys_flags", "size", "commit_log_offset"),
    "entry": ("prev_index", "slot", "time_diff_seconds"),
}
_FITS = {
    "topic": Fit.WHOLE, "meaning": Fit.WHOLE,
    "tags": Fit.FOLDED, "keys": Fit.FOLDED, "note": Fit.FOLDED,
}  # fmt: skip
_AT = Column("at", is_right=True)
_HEADINGS = {"queue_id": "queue", "queue_offset": "offset", "commit_log_offset": "commit log"}
# Fields that tables omit for lack of room; --json has them.
_NOT_IN_TABLES = frozenset({
    "magic", "body_crc", "flag", "sys_flag", "born_timestamp", "born_host", "store_host",
    "reconsume_times", "prepared_transaction_offset", "body_at", "body_length", "topic_at",
    "properties_at", "uniq_key", "properties", "bitmap",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartOptions:
    """The kind of the file, and the part to show."""

    kind: Annotated[
        FileKind | None,
        typer.Option(help="The kind of the file, if neither its path nor its content shows it."),
    ] = None
    at: Annotated[
        int, typer.Option(help="Start at this position in the file.", metavar="BYTE", min=0)
    ] = 0
    limit: Annotated[
        int | None,
        typer.Option(help="Maximum number of rows (of an index: of slots, and of entries).", min=1),
    ] = None


def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to show.")],
    part: PartOptions,
    broker: BrokerOptions,
    max_body_bytes: MaxBodyBytes = None,
    as_json: Json = False,
) -> None:
    """Show one store file record by record.

    FILE is a file of a commit log, consume queue, consume queue ext or index, or a checkpoint.
    Each record is shown with its position; a heading explains its fields. Damage is reported where
    it occurs, followed by the next readable record. Exits with 3 if there is any.
    """
    found = dump_file(
        file,
        kind=part.kind,
        start=part.at,
        broker_conf=broker.broker_conf,
        broker_version=broker.broker_version,
    )
    shown = _Shown(found.sections, part.limit, body_limit(max_body_bytes))
    if as_json:
        print_json(_head_json(found))
        for row in shown:
            print_json(_row_json(row))
    else:
        _print_head(found)
        for row_kind, rows in groupby(shown, key=lambda row: row.kind):
            _print_rows(row_kind, rows, found)
    for position in shown.stopped_at:
        say(f"{part.limit} rows are shown (--limit); what follows begins at {position} (--at)")
    if shown.damages:
        places = f"{shown.damages} place{'s' * (shown.damages > 1)}"
        say(f"reput: damaged: {found.path} in {places}, listed above")
        raise typer.Exit(EXIT_DAMAGE)


class _Shown:
    """Iterates over rows, up to a limit per section; records damage and where it stopped."""

    def __init__(self, sections: Sections, limit: int | None, body_bytes: int) -> None:
        self._sections = sections
        self._limit = limit
        self._body_bytes = body_bytes
        self.damages = 0
        self.stopped_at: list[int] = []

    def __iter__(self) -> Iterator[Row]:
        for section in self._sections:
            for count, row in enumerate(section):
                if count == self._limit and row.kind != END:
                    self.stopped_at.append(row.at)
                    break
                self.damages += row.kind == DAMAGE
                message = row.fields.get("body")
                if isinstance(message, Message):
                    limit_bodies((message,), self._body_bytes)
                yield row


def _head_json(found: Dump) -> dict[str, Any]:
    return {
        "row": "file",
        "path": str(found.path),
        "kind": found.kind.value,
        "base": found.base,
        "size": found.size,
        "meanings": {row_kind: dict(fields) for row_kind, fields in found.meanings.items()},
    }


def _row_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON values; a body that is not text is hex."""
    fields = {name: value for name, value in row.fields.items() if value is not None}
    message = fields.pop("body", None)
    if isinstance(message, Message):
        fields |= message_body_json(message)
    return {"row": row.kind, "at": row.at, **fields}


def _print_head(found: Dump) -> None:
    """Print what the file is, and what the columns of each kind of row mean."""
    print_text(f"{found.path}: {found.kind}, {found.size:,} bytes, from offset {found.base:,} on")
    for row_kind, fields in found.meanings.items():
        if row_kind in (DAMAGE, END):
            continue
        print_text(f"\n{_label(row_kind)}", is_bold=True)
        shown = {name: text for name, text in fields.items() if name not in _NOT_IN_TABLES}
        width = max(map(len, shown))
        print_text(f"  {'at':{width}}  position in the file")
        for name, text in shown.items():
            print_text(f"  {name:{width}}  {text}")
        hidden = [name for name in fields if name not in shown]
        if hidden:
            print_text(f"  with --json also: {', '.join(hidden)}")


def _print_rows(row_kind: str, rows: Iterator[Row], found: Dump) -> None:
    if row_kind == DAMAGE:
        for row in rows:
            print_text(_damage_text(row), is_bold=True)
        return
    if row_kind == END:
        for row in rows:
            size = row.fields["size"]
            print_text(f"at {row.at}: {size:,} bytes left: {row.fields['reason']}")
        return
    from reput.cli.tables import print_table

    names = [name for name in found.meanings[row_kind] if name not in _NOT_IN_TABLES]
    names.sort(key=_LAST.__contains__)
    while chunk := list(islice(rows, _TABLE_ROWS)):
        kept = [n for n in names if any(row.fields[n] not in _NOTHING for row in chunk)]
        columns = [_AT, *(_column(row_kind, name, chunk[0].fields[name]) for name in kept)]
        cells = ([str(row.at), *(_cell(name, row.fields) for name in kept)] for row in chunk)
        print_table(columns, cells, _label(row_kind))


def _column(row_kind: str, name: str, value: object) -> Column:
    """Return the column of a field; ``value`` is an example."""
    ranked = _LESS_IMPORTANT.get(row_kind, ())
    rank = ranked.index(name) + 1 if name in ranked else 0
    if name.endswith("_timestamp"):
        return Column(_label(name.removesuffix("_timestamp")), rank=rank)
    is_number = isinstance(value, int)
    fit = Fit.FIXED if is_number else _FITS.get(name, Fit.CUT)
    return Column(_HEADINGS.get(name, _label(name)), fit, rank, is_right=is_number)


def _cell(name: str, fields: Mapping[str, Any]) -> Cell:
    value = fields[name]
    if value is None:
        return ""
    if name == "value" and fields["field"].endswith("_timestamp") and value:
        return f"{value} ({time_text(value)})"
    if name.endswith("_timestamp"):
        return Moment(value)
    if isinstance(value, Message):
        return message_cell(value)
    if isinstance(value, bytes):
        return body_cell(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


def _damage_text(row: Row) -> str:
    fields = row.fields
    after = "nothing readable follows"
    if fields["next_at"] is not None:
        after = f"the next readable one begins at {fields['next_at']}"
    return (
        f"damaged: {fields['path']} at {row.at} (offset {fields['offset']}): {fields['reason']}; "
        f"{after}"
    )


def _label(name: str) -> str:
    return name.replace("_", " ")
