"""Progress bars on stderr, in 80 columns: percentage and time left if the total is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from reput.cli.lines import seconds_text
from store.printable import printable

if TYPE_CHECKING:
    from checkpoints.recovery.adoption import RecoveryReporter

_BAR_WIDTH = 16
_WHAT_MAX = 30


@contextmanager
def progress_on_terminal(what: str, *figures: ProgressColumn) -> Iterator[RecoveryReporter]:
    """Show a bar while inside; ``figures`` are shown next to the percentage.

    The function yielded takes the current activity, "" for the one before.
    """
    name = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=_WHAT_MAX)
    )
    columns = name, BarColumn(_BAR_WIDTH), TaskProgressColumn(), *figures, _TimeLeft()
    # If stdout is the terminal too, lines printed while inside appear above the bar.
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task(printable(what), total=None)

        def report(what: str, done: int, total: int) -> None:
            name = printable(what.partition(";")[0]) or None  # None: as before
            bar.update(task, completed=done, total=total, description=name)

        yield report


class _TimeLeft(ProgressColumn):
    """Estimates the time left from the rate so far."""

    max_refresh = 0.5  # seconds

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        return Text("" if left is None else f"{seconds_text(left)} left")
