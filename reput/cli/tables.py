"""Tables that fit the terminal.

A pipe or file gets every column, with times as ISO 8601. On a terminal times are short: the zone,
and the day if all rows share it, are in the heading. Columns that do not fit are omitted, the least
important first, and named below the table. A topic is never truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reput.cli.columns import CELL_MAX, GAP, Cell, Column, Fit, Moment, fit, total_width
from reput.cli.lines import local_time, time_text
from store.printable import printable

_ANY_WIDTH = 10_000  # not a terminal: lines are not truncated
_CARD_BELOW = 110  # columns a terminal needs to show a message as a row
_FITTED_ROWS_MAX = 2_000  # a longer table is not fitted to the terminal
_ZONE_AT = len("2023-11-14T22:13:20")


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """Print rows, each on one line if the terminal is wide enough.

    A long table is printed while it is read, as wide as its first rows need at least.
    """
    terminal, rest = console(), iter(rows)
    kept = list(islice(rest, _FITTED_ROWS_MAX + 1))
    is_long = len(kept) > _FITTED_ROWS_MAX
    if not terminal.is_terminal or is_long:
        _print_title(terminal, title)
        whole = (_cells(columns, row, time_text) for row in chain(kept, rest))
        _print_plain(columns, whole, len(kept), is_framed=not is_long)
        return
    heading, clock = _clock(kept)
    texts = [_cells(columns, row, clock) for row in kept]
    filled = {at for at in range(len(columns)) if any(row[at] for row in texts)}
    needs = {
        at: _width_needed(column, (row[at] for row in texts))
        for at, column in enumerate(columns)
        if at in filled or not column.rank
    }
    widths = fit(columns, needs, terminal.width)
    shown = [columns[at] for at in widths]
    _print_title(terminal, title, heading)
    parts = ([row[at] for at in widths] for row in texts)
    terminal.print(_fitted_table(shown, parts, list(widths.values()), terminal.width))
    hidden = [columns[at].name for at in sorted(filled - widths.keys())]
    if hidden:
        text = f"not shown for lack of room: {', '.join(hidden)}"
        terminal.print(Text(text, style="dim"), soft_wrap=True)


def print_records(columns: Sequence[Column], rows: Iterable[Sequence[Cell]]) -> None:
    """Print rows as a table; on a narrow terminal, as blocks of names and values.

    A column that may be cut, such as a body, ends a block on a line of its own; without one, the
    last column does.
    """
    terminal = console()
    if not terminal.is_terminal or terminal.width >= _CARD_BELOW:
        print_table(columns, rows)
        return
    kept = list(rows)
    heading, clock = _clock(kept)
    _print_title(terminal, "", heading)
    own_line = _cut_at(columns)
    for row in kept:
        texts = _cells(columns, row, clock)
        last = texts.pop(own_line)
        names = [c.name for at, c in enumerate(columns) if at != own_line]
        pairs = [(name, text) for name, text in zip(names, texts, strict=True) if text]
        for line in _flow(pairs, terminal.width):
            terminal.print(line, soft_wrap=True)
        if last:
            line = Text("  " + last)
            line.truncate(terminal.width, overflow="ellipsis")
            terminal.print(line, soft_wrap=True)


def _cut_at(columns: Sequence[Column]) -> int:
    """Return the position of the column that may be cut, of the last one if there is none."""
    return next((at for at, c in enumerate(columns) if c.fit is Fit.CUT), len(columns) - 1)


class RowPrinter:
    """Prints rows as they arrive, below one heading; a column is as wide as its widest cell so far.

    A narrow terminal gets no column with a rank. A line that is wider than the terminal is cut,
    before the columns that follow the one that may be cut.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        terminal = console()
        is_narrow = terminal.is_terminal and terminal.width < _CARD_BELOW
        self._shown = [at for at, c in enumerate(columns) if not (is_narrow and c.rank)]
        self._columns = [columns[at] for at in self._shown]
        self._widths = [cell_len(c.name) for c in self._columns]
        self._clock = _short_time if terminal.is_terminal else time_text
        self._width = terminal.width
        self._has_heading = False

    def print(self, row: Sequence[Cell]) -> None:
        """Print a row."""
        cells = _cells(self._columns, [row[at] for at in self._shown], self._clock)
        self._widths = list(map(max, self._widths, map(cell_len, cells)))
        if not self._has_heading:
            self._print_line([c.name for c in self._columns])
            self._has_heading = True
        self._print_line(cells)

    def _print_line(self, cells: Sequence[str]) -> None:
        at = _cut_at(self._columns) + 1
        rest = _padded(self._columns[at:], self._widths[at:], cells[at:]).rstrip()
        room = self._width - (cell_len(rest) + GAP if rest else 0)
        line = Text(_padded(self._columns[:at], self._widths[:at], cells[:at]).rstrip())
        line.truncate(room, overflow="ellipsis")
        gap = min(total_width(self._widths[:at]), room) - line.cell_len + GAP
        print(f"{line.plain}{' ' * gap}{rest}" if rest else line.plain, flush=True)


def _print_plain(
    columns: Sequence[Column], rows: Iterator[Sequence[str]], count: int, *, is_framed: bool
) -> None:
    """Print a table without rich's, which takes about a millisecond per row.

    The columns have the widths of the first ``count`` rows; a wider cell of a later one widens its
    column.
    """
    names, kept = [column.name for column in columns], list(islice(rows, count))
    widths = [max(map(cell_len, column)) for column in zip(names, *kept, strict=True)]
    if is_framed:
        head, *lines = (_padded(columns, widths, row, "   ") for row in (names, *kept))
        blank, rule = (cell_len(head) * character for character in " ─")
        for line in (blank, head, rule, *lines, blank):
            print(f" {line} ")
        return
    for row in (names, ["─" * width for width in widths], *kept):
        print(_padded(columns, widths, row).rstrip())
    for row in rows:
        widths = list(map(max, widths, map(cell_len, row)))
        print(_padded(columns, widths, row).rstrip())


def _padded(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], gap: str = " " * GAP
) -> str:
    return gap.join(
        " " * (width - cell_len(cell)) + cell
        if column.is_right
        else cell + " " * (width - cell_len(cell))
        for column, width, cell in zip(columns, widths, cells, strict=True)
    )


def _width_needed(column: Column, texts: Iterable[str]) -> tuple[int, int]:
    """Return the minimum and the full width of a column; its heading may wrap."""
    cells, name = max(map(cell_len, texts), default=0), cell_len(column.name)
    longest_word = max(map(cell_len, column.name.split()))
    return max(min(cells, column.fit.value), longest_word), max(cells, name)


def console() -> Console:
    """Return a console on stdout: as wide as the terminal, unlimited if stdout is not one."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=_ANY_WIDTH)


def shorten(text: str) -> str:
    """Return text truncated to fit a table cell."""
    line = printable(text[: CELL_MAX + 1])
    return line if len(line) <= CELL_MAX else line[: CELL_MAX - 1] + "…"


def _clock(rows: Iterable[Sequence[Cell]]) -> tuple[str, Callable[[int], str]]:
    """Return the heading for the times of rows, and the function that formats each time."""
    times = {cell.timestamp_ms for row in rows for cell in row if isinstance(cell, Moment)}
    moments = [moment for moment in map(local_time, times) if moment is not None]
    zones = {moment.replace(microsecond=0).isoformat()[_ZONE_AT:] for moment in moments}
    if len(zones) != 1:
        return "", time_text
    days = {moment.date() for moment in moments}
    zone = f"UTC{zones.pop()}"
    has_one_day = len(days) == 1

    def clock(timestamp_ms: int) -> str:
        text = _short_time(timestamp_ms)
        return text.partition(" ")[2] or text if has_one_day else text

    return f"times on {days.pop()}, {zone}" if has_one_day else f"times in {zone}", clock


def _short_time(timestamp_ms: int) -> str:
    """Return a time in the local zone, without the zone."""
    moment = local_time(timestamp_ms)
    if moment is None:
        return str(timestamp_ms)
    return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")


def _cells(
    columns: Sequence[Column], row: Sequence[Cell], clock: Callable[[int], str]
) -> list[str]:
    return [
        clock(cell.timestamp_ms)
        if isinstance(cell, Moment)
        else printable(cell)
        if column.fit is Fit.WHOLE
        else shorten(cell)
        for column, cell in zip(columns, row, strict=True)
    ]


def _fitted_table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], widths: Sequence[int], width: int
) -> Table:
    """Return a table for a terminal; if even the given widths do not fit, all columns wrap."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    has_room = total_width(widths) <= width
    for column, own in zip(columns, widths, strict=True):
        table.add_column(
            column.name,
            justify="right" if column.is_right else "left",
            width=own if has_room else None,
            overflow="fold",
        )
    cut = [column.fit is Fit.CUT and has_room for column in columns]
    for row in rows:
        table.add_row(
            *(
                Text(text, no_wrap=True, overflow="ellipsis") if is_cut else Text(text)
                for text, is_cut in zip(row, cut, strict=True)
            )
        )
    return table


def _flow(pairs: Iterable[tuple[str, str]], width: int) -> Iterator[Text]:
    """Yield names and values on as few lines as possible; all but the first are indented."""
    line, has_any = Text(), False
    for name, value in pairs:
        pair = Text.assemble((f"{name} ", "dim"), value)
        if has_any and line.cell_len + GAP + pair.cell_len > width:
            yield line
            line, has_any = Text("  "), False
        if has_any:
            line.append(" " * GAP)
        line.append_text(pair)
        has_any = True
    yield line


def _print_title(terminal: Console, title: str, heading: str = "") -> None:
    if title:
        line = Text.assemble((f"\n{printable(title)}", "bold"), f"  ({heading})" if heading else "")
    elif heading:
        line = Text(heading)
    else:
        return
    terminal.print(line, soft_wrap=True)
