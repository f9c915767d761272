"""Columns of a table: how each fits a terminal, and which are omitted if there is no room."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

CELL_MAX = 60  # characters in a cell
GAP = 2  # blanks between two columns
_ANY_WIDTH = 10_000


class Fit(Enum):
    """How a column shrinks on a narrow terminal; the value is its minimum width.

    Spare width goes to the members in this order.
    """

    WHOLE = 40  # a name: wraps, is never truncated
    FOLDED = 20  # wraps
    FIXED = _ANY_WIDTH  # keeps its width; only its heading may wrap
    CUT = 12  # truncated with an ellipsis


@dataclass(frozen=True, slots=True)
class Column:
    """A column. One with a rank is omitted if there is no room, the highest rank first."""

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
    """Return the columns that fit a terminal, as widths by position.

    ``needs`` holds the minimum and the full width of each non-empty column, by position.
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
    """Return the width of a table."""
    return sum(widths) + GAP * (len(widths) - 1)
