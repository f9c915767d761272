"""Output shared by commands: messages as tables or in detail, progress, empty answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from reput.cli import EXIT_NO
from reput.cli.columns import CELL_MAX, Cell, Column, Fit, Moment
from reput.cli.lines import counted, print_json, say, shows_progress, time_text
from store.commitlog.message_json import body_text, message_json, whole_characters
from store.commitlog.record import Message
from store.errors import BodyTooLargeError
from store.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from store.commitlog.commit_log import ReportProgress
    from store.commitlog.scanner import Damage

# The status for a key, a tag or a commit log offset; queue reads have the broker's statuses.
NOT_FOUND = "NOT_FOUND"
INTERRUPTED = 130  # as a shell reports SIGINT
_HEAD_BYTES = 4 * (CELL_MAX + 1)  # of a body: fills a cell even at 4 bytes per character
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\r"))  # text does not contain these
_ODD_MAX = 0.1  # share of bytes that are not text

BROKER = Column("broker", Fit.WHOLE)  # the last column of a table of several stores
_MESSAGE_COLUMNS = (
    Column("topic", Fit.WHOLE),
    Column("queue", rank=1, is_right=True),
    Column("offset", is_right=True),
    Column("commit log", rank=3, is_right=True),
    Column("stored"),
    Column("tags", Fit.FOLDED),
    Column("keys", Fit.FOLDED),
    Column("unique key", rank=2),
    Column("body", Fit.CUT),
)


def print_messages(messages: Iterable[Message], brokers: Iterable[str] | None = None) -> None:
    """Print messages of one topic, one per row, or as blocks if a row does not fit.

    ``brokers`` adds a column: the broker of each message.
    """
    from reput.cli.tables import print_records

    rows = (_message_row(m)[1:] for m in messages)
    if brokers is None:
        print_records(_MESSAGE_COLUMNS[1:], rows)
        return
    with_broker = ((*row, name) for row, name in zip(rows, brokers, strict=True))
    print_records((*_MESSAGE_COLUMNS[1:], BROKER), with_broker)


def message_printer(*, as_json: bool, has_broker: bool = False) -> Callable[[Message, str], None]:
    """Return a function that prints one message at once: a line of a table, or a JSON object.

    It takes the broker of the message too, which it prints if ``has_broker``.
    """
    if as_json:
        return lambda m, name: print_json(broker_json(message_json(m), name if has_broker else ""))
    from reput.cli.tables import RowPrinter

    if not has_broker:
        rows = RowPrinter(_MESSAGE_COLUMNS)
        return lambda m, _: rows.print(_message_row(m))
    rows = RowPrinter((*_MESSAGE_COLUMNS, BROKER))
    return lambda m, name: rows.print((*_message_row(m), name))


def broker_json(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object of the answer with its broker; "" is the only one, which is not named."""
    return {**fields, "broker": name} if name else fields


def _message_row(m: Message) -> tuple[Cell, ...]:
    return (
        m.topic,
        str(m.queue_id),
        str(m.queue_offset),
        str(m.commit_log_offset),
        Moment(m.store_timestamp),
        m.tags or "",
        m.keys or "",
        m.uniq_key or "",
        message_cell(m),
    )


def print_text(text: str, *, is_bold: bool = False) -> None:
    """Print lines of text with control characters escaped."""
    from rich.text import Text

    from reput.cli.tables import console

    lines = "\n".join(printable(line) for line in text.split("\n"))
    console().print(Text(lines, style="bold" if is_bold else ""), soft_wrap=True)


def print_details(message: Message) -> None:
    """Print one message in full."""
    from rich.text import Text

    from reput.cli.tables import console

    fields = message_json(message)
    properties, body = fields.pop("properties"), fields.pop("body")
    encoding, too_large = fields.pop("body_encoding"), fields.pop("body_error", None)
    content = message.read_body() if too_large is None else b""
    escaped = escaped_text(content) if encoding == "hex" else None
    if escaped is not None:
        body, encoding = escaped, "utf-8 except for some bytes, shown as \\xNN"
    for name in ("store_timestamp", "born_timestamp"):
        fields[name] = f"{time_text(fields[name])}  ({fields[name]})"
    out = console()
    _print_pairs(out, {name: value for name, value in fields.items() if value is not None})
    out.print(Text("\nproperties", style="bold"))
    _print_pairs(out, properties)
    if too_large is not None:
        out.print(Text("\nbody, too large to be shown", style="bold"))
        out.print(Text(printable(too_large)), soft_wrap=True)
        return
    out.print(Text(f"\nbody, {len(content)} bytes, {encoding}", style="bold"))
    out.print(Text("\n".join(printable(line) for line in body.split("\n"))), soft_wrap=True)


def drops_line(topic: str, queue_id: int, *, repeated: int, gaps: int) -> str:
    """Return how many messages of a queue a broker's own rules dropped, and how many misplaced."""
    return (
        f"{topic}/{queue_id}: a broker's own rules dropped {counted(repeated, 'message')} "
        f"(queue offset repeated) and placed {gaps} lower than their queue offset says"
    )


def escaped_text(body: bytes) -> str | None:
    r"""Return a body that is mostly text, other bytes escaped as ``\xNN``; else None.

    At most a tenth of its bytes may be control characters or invalid UTF-8.
    """
    text = body.decode("utf-8", "ignore").encode()
    odd = len(body) - len(text.translate(None, _CONTROLS))
    return body.decode("utf-8", "backslashreplace") if odd <= _ODD_MAX * len(body) else None


def message_cell(message: Message) -> str:
    """Return a message's body for a cell; only the part shown is decompressed."""
    try:
        head = message.body_head(_HEAD_BYTES)
    except BodyTooLargeError as e:
        return f"({e})"
    if len(head) == _HEAD_BYTES:
        head = whole_characters(head)
    return body_cell(head)


def body_cell(body: bytes) -> str:
    """Return a body for a cell: as text if it is mostly text, else as hex."""
    text = body_text(body)
    if text is None:
        text = escaped_text(body)
    return text if text is not None else "0x" + body[:CELL_MAX].hex()


def exit_not_found(
    status: str, reason: str, answer: Mapping[str, Any], *, as_json: bool
) -> NoReturn:
    """Report that nothing was found, and exit; the JSON form is an object with a status."""
    if as_json:
        print_json({"status": status, "reason": reason, **answer})
    else:
        say(reason)
    raise typer.Exit(EXIT_NO)


def raise_damage(damages: Sequence[Damage]) -> None:
    """Raise the DamageError of the first place that was passed; warn of the others."""
    errors = [damage.passed() for damage in damages]
    for error in errors[1:]:
        say(f"warning: {error}")
    if errors:
        raise errors[0]


@contextmanager
def progress_bar(task: str, *, as_json: bool) -> Iterator[ReportProgress | None]:
    """Show how much of the log has been read, on a terminal."""
    if not shows_progress(as_json=as_json):
        yield None
        return
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from reput.cli.bars import progress_on_terminal

    with progress_on_terminal(task, DownloadColumn(), TransferSpeedColumn()) as report:
        yield lambda done, total: report("", done, total)


def _print_pairs(out: Console, pairs: Mapping[str, Any]) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    names = [printable(name) for name in pairs]
    width = max(map(cell_len, names), default=0)
    for name, value in zip(names, pairs.values(), strict=True):
        line = f"{name}{' ' * (width - cell_len(name))}  {printable(str(value))}"
        out.print(Text(line), soft_wrap=True)
