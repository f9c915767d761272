"""The batches of a reader that follows a log: ranges up to ends that, once chosen, never move.

Spark never changes the end of a batch that it has logged. So if damage must fail the reader, a
batch is scanned before its end is returned, and ends before the damage: the records before the
damage are a batch of their own, and the next batch fails before Spark logs it. A batch that was
logged before its part of the log expired is planned up to its old end: the expired part is lost, or
skipped.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from enum import Enum
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.parallel_scan import ScanAhead, scan_in_order
from store.commitlog.planner import UNLIMITED, LogPlanner, Plan
from store.commitlog.scanner import Damage, LogRange, Scanner, Stretch
from store.config import StoreConfig
from store.errors import DamageError, StoreError, UnsupportedFormatError

_APPEND_WAIT_SECONDS = 0.05
_CHECK_THREADS = min(os.cpu_count() or 1, 8)  # a batch waits for them

_log = logging.getLogger(__name__)


class DataLoss(Enum):
    """How a reader treats damaged and lost parts of the log."""

    MARK = "mark"  # it takes them as markers, in log order
    FAIL = "fail"  # a batch ends before them, the next one raises
    SKIP = "skip"  # it skips them, with a warning


class LogBatches:
    """Plans the batches of one reader, each up to the offset ``limit()`` at most.

    All offsets are physical offsets of the log. One thread calls at a time.
    """

    def __init__(  # noqa: PLR0913 - all but two are keyword-only
        self,
        store_root: Path,
        config: StoreConfig,
        *,
        is_clean: Callable[[], bool],
        range_bytes: int,
        data_loss: DataLoss = DataLoss.MARK,
        limit: Callable[[], int] = lambda: UNLIMITED,
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self._config = config
        self._planner = LogPlanner(self.log, is_clean, range_bytes=range_bytes)
        self._counter = self._planner.with_ranges_of(1)  # a range for each record
        self._data_loss = data_loss
        self._limit = limit
        self._target = UNLIMITED
        self._planned: Plan | None = None
        self._missing_from = -1  # where the log ended when it was shorter than what had been read

    def fix_end(self) -> None:
        """Plan no batch beyond the current end of the log."""
        self._target = min(self._planner.end(), self._limit())

    def next_end(self, begin: int, max_bytes: int = UNLIMITED) -> int:
        """Plan the batch after ``begin``, of about ``max_bytes``, and return its end.

        Raises the damage or the loss at its beginning, if these fail the reader.
        """
        until = min(self._target, self._limit())
        plan = self._planner.plan(begin, max_bytes=max_bytes, until=until)
        if not plan.ranges and self._data_loss is not DataLoss.MARK:
            self._check_length(begin)
        if self._data_loss is DataLoss.FAIL:
            plan = self._readable_part(plan)
        self._planned = plan
        return plan.end

    def records_after(self, begin: int, max_bytes: int) -> Plan:
        """Return the records after ``begin``, a range for each, of about ``max_bytes``."""
        return self._counter.plan(begin, max_bytes=max_bytes, until=self._limit())

    def end(self) -> int:
        """Return the current end of the log."""
        planned = self._planned.end if self._planned is not None else 0
        return min(self._planner.end(planned), self._limit())

    def ranges(self, begin: int, stop: int) -> list[LogRange]:
        """Return the ranges of a batch to read. Raises a loss in it, or warns about it.

        They are planned again if it is not the batch planned last. With ``DataLoss.MARK`` the
        scanner handles lost ranges itself.
        """
        plan = self._planned
        if plan is None or plan.begin != begin or plan.end != stop:
            plan = self._plan_between(begin, stop)
        if self._data_loss is DataLoss.MARK:
            return list(plan.ranges)
        for part in plan.ranges:
            if part.gap:
                gap = Damage(part.begin, part.end, part.path, part.gap, part.is_lost)
                if self._data_loss is DataLoss.FAIL:
                    raise gap.error()
                warn_skipped(gap)
        return [part for part in plan.ranges if not part.gap]

    def stretches(self) -> Generator[Stretch]:
        """Yield the stretches of the current log. With ``DataLoss.FAIL``, damage is the last one.

        With ``DataLoss.SKIP``, damage is a warning and left out.
        """
        for stretch in self._scan(skip_damage=self._data_loss is not DataLoss.FAIL):
            if self._data_loss is DataLoss.SKIP and isinstance(stretch, Damage):
                warn_skipped(stretch)
            else:
                yield stretch

    def holds_topics(self, topics: frozenset[str]) -> bool | None:
        """Return whether the log holds a message of one of the topics; None means inconclusive."""
        is_known = True
        with closing(self._scan(skip_damage=True)) as stretches:
            for stretch in stretches:
                if isinstance(stretch, Damage):
                    is_known = False
                elif not topics.isdisjoint(stretch.topics):
                    return True
        return False if is_known else None

    def _scan(self, *, skip_damage: bool) -> Generator[Stretch]:
        span = max(self.log.min_offset(), 0), self._limit()
        scan = scan_in_order(self._planner, self._config, span, skip_damage=skip_damage)
        with closing(scan):
            for _, stretches in scan:
                yield from stretches

    def _plan_between(self, begin: int, stop: int) -> Plan:
        """Plan exactly ``[begin, stop)``; what the log no longer holds becomes a gap.

        Raises DamageError if ``stop`` is not a record boundary, except with ``DataLoss.SKIP``.
        """
        plan, has_waited = Plan(begin, ()), False
        while plan.end < stop:  # damage ends a plan, so a span may take several plans
            more = self._planner.plan(plan.end, until=stop).ranges
            if not more and not has_waited:  # the broker may still be writing the last record
                has_waited = True
                time.sleep(_APPEND_WAIT_SECONDS)
                continue
            plan = Plan(begin, plan.ranges + (more or (self._missing(plan.end, stop),)))
        if plan.end <= stop:
            return plan
        if self._data_loss is DataLoss.SKIP:
            return Plan(begin, (*plan.ranges[:-1], replace(plan.ranges[-1], end=stop)))
        raise DamageError(
            self.log.path_of(stop),
            stop,
            f"records were read up to here, but one now ends at {plan.end}: the log changed",
        )

    def _missing(self, begin: int, end: int) -> LogRange:
        """Return a lost range for the part that the log no longer reaches."""
        path, reason = str(self.log.path_of(begin)), f"the log ends at offset {begin}"
        return LogRange(begin, end, path, begin, reason, is_lost=True)

    def _check_length(self, begin: int) -> None:
        """Raise, or warn once, if the log ends before the offset up to which it has been read."""
        end = self._planner.end()
        if end >= begin:
            self._missing_from = -1
            return
        missing = self._missing(end, begin)
        gap = Damage(end, begin, missing.path, missing.gap, is_lost=True)
        if self._data_loss is DataLoss.FAIL:
            raise gap.error()
        if self._missing_from != end:
            self._missing_from = end
            warn_skipped(gap)

    def _readable_part(self, plan: Plan) -> Plan:
        """Scan a plan; return the part before the first damage. Raises damage at its beginning."""
        readable: list[LogRange] = []
        checks = ScanAhead(self._config, plan.ranges, _readable_end, threads=_CHECK_THREADS)
        with closing(checks):
            for part, (end, error) in checks:
                if end > part.begin:
                    readable.append(replace(part, end=end))
                if error is None:
                    continue
                if not readable:
                    raise error
                return Plan(plan.begin, tuple(readable))
        return plan


def warn_skipped(gap: Damage) -> None:
    """Warn that a part of the log is skipped."""
    _log.warning("%s: offsets %d to %d are left out: %s", gap.path, gap.begin, gap.end, gap.reason)


def _readable_end(scanner: Scanner, part: LogRange) -> tuple[int, StoreError | None]:
    """Return the offset up to which a range can be read, and the error there."""
    end = part.begin
    try:
        for stretch in scanner.read(part):
            if isinstance(stretch, Damage):
                return end, stretch.error()
            end = stretch.end
    except UnsupportedFormatError as e:
        return end, e
    return end, None
