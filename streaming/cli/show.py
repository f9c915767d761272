"""Messages for people and for machines: tables, details, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from store.record import Message, offset_msg_id

Report = Callable[[int, int], None]  # bytes of log done, bytes in all

_CELL_MAX = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WIDE = 10_000  # not a terminal: no line is cut
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\r"))  # in what is meant as text there are none
_ODD_MAX = 0.1


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
    columns = [">queue", ">offset", ">commit log", "=stored", "tags", "keys", "unique key", "body"]
    rows = (
        (
            str(m.queue_id),
            str(m.queue_offset),
            str(m.commit_log_offset),
            time_text(m.store_timestamp),
            m.tags or "",
            m.keys or "",
            m.uniq_key or "",
            body_cell(m.body),
        )
        for m in messages
    )
    print_table(columns, rows)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows of texts, each on one line.

    A column whose name begins with ``>`` (numbers, to the right) or ``=`` keeps its width; the
    others share what the terminal has left.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        side: Literal["left", "right"] = "right" if name[0] == ">" else "left"
        table.add_column(name.lstrip(">="), justify=side, no_wrap=name[0] in ">=")
    for row in rows:
        cells = (Text(shorten(cell), no_wrap=True, overflow="ellipsis") for cell in row)
        table.add_row(*cells)
    if title:
        print_text(f"\n{title}", is_bold=True)
    _console().print(table)


def print_text(text: str, *, is_bold: bool = False) -> None:
    """Print lines of text; a terminal obeys nothing of it."""
    lines = "\n".join(printable(line) for line in text.split("\n"))
    _console().print(Text(lines, style="bold" if is_bold else ""), soft_wrap=True)


def print_details(message: Message) -> None:
    """Print all of one message."""
    fields = message_json(message)
    properties, body = fields.pop("properties"), fields.pop("body")
    encoding = fields.pop("body_encoding")
    escaped = escaped_text(message.body) if encoding == "hex" else None
    if escaped is not None:
        body, encoding = escaped, "utf-8 but for some bytes, which are shown as \\xNN"
    for name in ("store_timestamp", "born_timestamp"):
        fields[name] = f"{time_text(fields[name])}  ({fields[name]})"
    console = _console()
    _print_pairs(console, {name: value for name, value in fields.items() if value is not None})
    console.print(Text("\nproperties", style="bold"))
    _print_pairs(console, properties)
    console.print(Text(f"\nbody, {len(message.body)} bytes, {encoding}", style="bold"))
    console.print(Text("\n".join(printable(line) for line in body.split("\n"))), soft_wrap=True)


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601, local and with its zone; as a number if beyond the calendar."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=timestamp_ms)).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds")


def duration_text(milliseconds: int) -> str:
    """Return a span of time in its two largest units, as ``1d 02h``, ``3m 07s`` or ``0.250s``."""
    seconds = milliseconds // 1000
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days:
        return f"{days}d {hours % 24:02d}h"
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    if minutes:
        return f"{minutes}m {seconds % 60:02d}s"
    return f"{milliseconds / 1000:.3f}s"


def drops_line(topic: str, queue_id: int, drops: tuple[int, int]) -> str:
    """Say what a broker's own rules did to a queue's messages: dropped, and misplaced, so many."""
    return (
        f"{topic}/{queue_id}: a broker's own rules dropped {drops[0]} messages (queue offset "
        f"repeated) and placed {drops[1]} lower than their queue offset says"
    )


def body_text(body: bytes) -> str | None:
    """Return a body as text, None if it is none: not UTF-8, or with zero bytes."""
    try:
        return None if b"\0" in body else body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def escaped_text(body: bytes) -> str | None:
    r"""Return a body that is almost text, its other bytes as ``\xNN``, for people; else None.

    At most a tenth of it may be bytes that are no UTF-8, and control characters.
    """
    text = body.decode("utf-8", "ignore").encode()
    odd = len(body) - len(text.translate(None, _CONTROLS))
    return body.decode("utf-8", "backslashreplace") if odd <= _ODD_MAX * len(body) else None


def printable(text: str) -> str:
    """Return text as one line, with escapes for what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shorten(text: str) -> str:
    """Return text as it fits a cell of a table."""
    line = printable(text[: _CELL_MAX + 1])
    return line if len(line) <= _CELL_MAX else line[: _CELL_MAX - 1] + "…"


def body_cell(body: bytes) -> str:
    """Return a body for a cell: as text where it is text or almost, else as hex."""
    text = body_text(body)
    if text is None:
        text = escaped_text(body)
    return text if text is not None else "0x" + body[:_CELL_MAX].hex()


@contextmanager
def progress_bar(what: str, *, is_shown: bool) -> Iterator[Report | None]:
    """Show a bar of the log read, if a person looks on."""
    if not is_shown:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = what, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def task_bar(what: str, *, is_shown: bool) -> Iterator[Report | None]:
    """Show a bar of the tasks done, if a person looks on."""
    if not is_shown:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_pairs(console: Console, pairs: Mapping[str, Any]) -> None:
    names = [printable(name) for name in pairs]
    width = max(map(cell_len, names), default=0)
    for name, value in zip(names, pairs.values(), strict=True):
        line = f"{name}{' ' * (width - cell_len(name))}  {printable(str(value))}"
        console.print(Text(line), soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)
