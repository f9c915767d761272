"""Columns of a table: how each fits a terminal, and which are left out where there is no room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

CELL_MAX = 60  # characters of a cell
GAP = 2  # columns of the terminal between those of a table
_ANY_WIDTH = 10_000


class Fit(Enum):
    """What becomes of a column on a terminal that is too narrow: its least width.

    Room that is left goes to the first of these first.
    """

    WHOLE = 40  # a name: continues on further lines, is never cut
    FOLDED = 20  # continues on further lines
    FIXED = _ANY_WIDTH  # keeps its width; only its name may take several lines
    CUT = 12  # ends in an ellipsis


@dataclass(frozen=True, slots=True)
class Column:
    """A column; one with a rank is left out where there is no room, the highest rank first."""

    name: str
    fit: Fit = Fit.FIXED
    rank: int = 0
    is_right: bool = False


class Moment(NamedTuple):
    """A time as a cell, in epoch milliseconds."""

    timestamp_ms: int


Cell = str | Moment


def fit(
    columns: Sequence[Column], needs: Mapping[int, tuple[int, int]], width: int
) -> dict[int, int]:
    """Return which columns a terminal has room for, and how wide each is, by position.

    ``needs`` = by position the least and the full width of each that is not empty.
    """
    widths = {at: least for at, (least, _) in needs.items()}
    for at in sorted(needs, key=lambda at: -columns[at].rank):
        if not columns[at].rank or total_width(widths.values()) <= width:
            break
        del widths[at]
    spare = max(width - total_width(widths.values()), 0)
    for at in sorted(widths, key=lambda at: list(Fit).index(columns[at].fit)):
        more = min(needs[at][1] - widths[at], spare)
        widths[at] += more
        spare -= more
    return widths


def total_width(widths: Collection[int]) -> int:
    """Return how wide a table is."""
    return sum(widths) + GAP * (len(widths) - 1)
