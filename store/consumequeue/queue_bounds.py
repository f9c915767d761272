"""The bounds of a queue: which of its units are valid (promise I8).

In an OUTPUT of this project, units at or beyond the reput offset may be half-written and are
ignored. In a broker's own files, stale units survive a truncation: the queue ends with the last
unit whose record in the log belongs to this queue. Below either end units are in log order, so both
bounds are found by binary search; the result is checked against its neighbours, and a unit that
cannot be there is damage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from store.commitlog.commit_log import CommitLog
from store.consumequeue.files import ConsumeQueue, Unit
from store.layout import PRE_BLANK_SIZE

HasRecord = Callable[[Unit], bool]


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Positions that have a message: ``min`` to ``max`` (exclusive); both 0 without units."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class DispatchLimit:
    """The offset below which a directory's units are valid, and whether its dispatch is idle."""

    reput_from_offset: int
    is_at_rest: Callable[[], bool]


class QueueBounds:
    """Finds the span of one queue. Caches each bound until the units around it change.

    ``has_record`` returns whether the log holds a unit's record and the queue owns it.
    """

    def __init__(self, queue: ConsumeQueue, log: CommitLog, has_record: HasRecord) -> None:
        self._queue = queue
        self._log = log
        self._has_record = has_record
        self._end: tuple[object, int] = (None, 0)
        self._first: tuple[object, int] = (None, 0)

    def find(self, dispatch: DispatchLimit | None) -> QueueSpan:
        """Return the current span. Raises DamageError."""
        end = self._find_end(dispatch)
        first = self._find_first(end)
        return QueueSpan(min(first, end), end)

    def _find_end(self, dispatch: DispatchLimit | None) -> int:
        """Return the position after the last valid unit, 0 without one."""
        queue = self._queue
        if queue.begin == queue.allocated:
            return 0
        if dispatch is None:
            if queue.unit(queue.begin).size <= 0:
                return self._search_end(0, None)
            self._log.refresh()
            return self._search_end(self._log.max_offset(), None)
        limit = dispatch.reput_from_offset
        known, end = self._end
        if known is None or known != self._around_end(limit, end):
            end = self._search_end(limit, dispatch)
            self._end = self._around_end(limit, end), end
        return end

    def _around_end(self, limit: int, end: int) -> object:
        raw = self._queue.raw
        return limit, self._queue.listing, raw(end - 1), raw(end), raw(end + 1)

    def _search_end(self, limit: int, dispatch: DispatchLimit | None) -> int:
        queue = self._queue
        positions = range(queue.begin, queue.stored())
        end = queue.begin + bisect_left(
            positions, True, key=lambda position: not _is_valid(queue.unit(position), limit)
        )
        if dispatch is None:
            while end > queue.begin and not self._is_current(queue.unit(end - 1)):
                end -= 1
        self._check_end(end, limit, dispatch)
        if end == queue.begin or queue.unit(end - 1).size == PRE_BLANK_SIZE:
            return 0  # pre-fill is valid only with a unit after it
        queue.ordered_unit(end - 1, end)
        return end

    def _is_current(self, unit: Unit) -> bool:
        """Return whether a unit at the end of a broker's queue is not stale."""
        has_expired = unit.commit_log_offset < self._log.min_offset()
        return unit.size == PRE_BLANK_SIZE or has_expired or self._has_record(unit)

    def _check_end(self, end: int, limit: int, dispatch: DispatchLimit | None) -> None:
        """Raise DamageError if units after the end show that the queue does not end there.

        The follower is read first: a running broker writes it last.
        """
        queue = self._queue
        if end >= queue.allocated:
            return
        follower = queue.unit(end + 1) if end + 1 < queue.allocated else None
        unit = queue.unit(end)
        is_gap = follower is not None and _is_valid(follower, limit) and not _is_valid(unit, limit)
        if follower is not None and is_gap and self._has_record(follower):
            raise queue.damage(end, "an invalid unit precedes a unit of the log")
        if dispatch is None or not any(unit) or not dispatch.is_at_rest():
            return
        if not self._has_record(unit):
            raise queue.damage(end, "the unit names no record, and no dispatch is writing it")

    def _find_first(self, end: int) -> int:
        """Return the first position whose message is still in the log, else ``end``."""
        min_offset = max(self._log.min_offset(), 0)
        known, first = self._first
        if known is None or first > end or known != self._around_first(min_offset, first):
            first = self._search_first(min_offset, end)
            self._first = self._around_first(min_offset, first), first
        return first

    def _around_first(self, min_offset: int, first: int) -> object:
        raw = self._queue.raw
        return min_offset, self._queue.listing, raw(first - 1), raw(first)

    def _search_first(self, min_offset: int, end: int) -> int:
        queue = self._queue
        first = queue.min_offset(min_offset, end)
        for position in range(max(first - 1, queue.begin), min(first + 1, end)):
            if queue.unit(position).size != PRE_BLANK_SIZE:
                queue.ordered_unit(position, end)
        return first


def _is_valid(unit: Unit, limit: int) -> bool:
    return unit.size > 0 and 0 <= unit.commit_log_offset < limit
