"""Messages for people and for machines: tables, details, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from store.record import Message, offset_msg_id

_CELL_MAX = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDE = 10_000  # not a terminal: no line is cut


def say(text: str) -> None:
    """Print a line for people beside the answer, on stderr."""
    typer.echo(text, err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object as a line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def message_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON values; times are epoch ms, a body that is no text is hex."""
    text = body_text(message.body)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "size": message.size,
        "msg_id": offset_msg_id(message),
        "tags": message.tags,
        "keys": message.keys,
        "uniq_key": message.uniq_key,
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "properties": message.properties,
        "body_encoding": "hex" if text is None else "utf-8",
        "body": message.body.hex() if text is None else text,
    }


def print_messages(messages: Iterable[Message]) -> None:
    """Print messages as a table, one a row."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("queue", "offset", "commit log"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("stored (UTC)", no_wrap=True)
    for name in ("tags", "keys", "unique key"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    table.add_column("body", overflow="ellipsis", no_wrap=True, ratio=1)
    for m in messages:
        cells = (
            str(m.queue_id),
            str(m.queue_offset),
            str(m.commit_log_offset),
            time_text(m.store_timestamp),
            shorten(m.tags or ""),
            shorten(m.keys or ""),
            shorten(m.uniq_key or ""),
            _body_cell(m.body),
        )
        table.add_row(*(Text(cell) for cell in cells))
    _console().print(table)


def print_details(message: Message) -> None:
    """Print all of one message."""
    fields = message_json(message)
    properties, body = fields.pop("properties"), fields.pop("body")
    encoding = fields.pop("body_encoding")
    for name in ("store_timestamp", "born_timestamp"):
        fields[name] = f"{time_text(fields[name])}  ({fields[name]})"
    console = _console()
    _print_pairs(console, {name: value for name, value in fields.items() if value is not None})
    console.print(Text("\nproperties", style="bold"))
    _print_pairs(console, properties)
    console.print(Text(f"\nbody, {len(message.body)} bytes, {encoding}", style="bold"))
    console.print(Text("\n".join(printable(line) for line in body.split("\n"))), soft_wrap=True)


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, as a number where it is beyond the calendar."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_text(body: bytes) -> str | None:
    """Return a body as text, None if it is none: not UTF-8, or with zero bytes."""
    try:
        return None if b"\0" in body else body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def printable(text: str) -> str:
    """Return text as one line, with escapes for what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shorten(text: str) -> str:
    """Return text as it fits a cell of a table."""
    line = printable(text[: _CELL_MAX + 1])
    return line if len(line) <= _CELL_MAX else line[: _CELL_MAX - 1] + "…"


def _body_cell(body: bytes) -> str:
    text = body_text(body)
    return shorten(text if text is not None else "0x" + body[:_CELL_MAX].hex())


def _print_pairs(console: Console, pairs: Mapping[str, Any]) -> None:
    names = [printable(name) for name in pairs]
    width = max(map(cell_len, names), default=0)
    for name, value in zip(names, pairs.values(), strict=True):
        line = f"{name}{' ' * (width - cell_len(name))}  {printable(str(value))}"
        console.print(Text(line), soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)
