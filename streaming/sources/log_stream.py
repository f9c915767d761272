"""The base of all streams over the log: plans micro-batches with real admission control.

The offset is one number, ``{"commit_log_offset": N}``: the physical offset up to which the log has
been read. Planning runs in Spark's planner process on the driver; executors only read partitions.

Spark never changes the end of a batch that it has logged. So if damage must fail a query, a batch
is scanned before its end is returned, and ends before the damage: the rows before the damage are a
batch of their own, and the next batch fails before Spark logs it. A batch that was logged before
its part of the log expired is planned up to its old end: the expired part is lost, or skipped.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import UNLIMITED, LogPlanner, Plan
from store.commitlog.scanner import Damage, LogRange, Scanner, Stretch
from store.config import StoreConfig
from store.errors import DamageError, SparkError, StoreError, UnsupportedFormatError
from streaming.sources.options import OFFSET_KEY
from streaming.sources.workers.calls import called_by_spark
from streaming.spark.batch_pace import BACKLOG_BYTES, Waiting

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise SparkError(
        f"Spark {pyspark.__version__} is not supported: before 4.2, a stream of a Python data "
        "source cannot limit its batches; install pyspark 4.2 or 4.3"
    ) from None

Offset = dict[str, int]

RANGE_BYTES_MIN, RANGE_BYTES_MAX = 4 * 1024 * 1024, 64 * 1024 * 1024
_APPEND_WAIT_SECONDS = 0.05
_SCAN_THREADS = min(os.cpu_count() or 1, 8)  # in the planner

_log = logging.getLogger(__name__)


class DataLoss(Enum):
    """How a stream treats damaged and lost parts of the log."""

    MARK = "mark"  # the stream returns them as markers, in log order
    FAIL = "fail"  # a batch ends before them, the next one raises
    SKIP = "skip"  # the stream skips them, with a warning


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """One range of the log, as an input partition."""

    part: LogRange


class LogStream:
    """Plans the micro-batches of one query, each up to the offset ``limit()`` at most."""

    def __init__(  # noqa: PLR0913 - all but two are keyword-only
        self,
        store_root: Path,
        config: StoreConfig,
        *,
        is_clean: Callable[[], bool],
        max_bytes: int | None,
        range_bytes: int,
        data_loss: DataLoss = DataLoss.MARK,
        limit: Callable[[], int] = lambda: UNLIMITED,
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self._config = config
        self._max_bytes = max_bytes
        self._planner = LogPlanner(self.log, is_clean, range_bytes=range_bytes)
        self._counter = self._planner.with_ranges_of(1)  # a range for each record
        self._data_loss = data_loss
        self._limit = limit
        self._target = UNLIMITED
        self._planned: Plan | None = None
        self._missing_from = -1  # where the log ended when it was shorter than what had been read

    def prepare_available_now(self) -> None:
        """Fix the end of the query: the current end of the log."""
        self._target = min(self._planner.end(), self._limit())

    def latest(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan the next batch after ``start`` and return its end.

        Raises the damage or the loss at its beginning, if these fail the query.
        """
        max_bytes = UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        begin = start[OFFSET_KEY]
        until = min(self._target, self._limit())
        plan = self._planner.plan(begin, max_bytes=max_bytes, until=until)
        if not plan.ranges and self._data_loss is not DataLoss.MARK:
            self._check_length(begin)
        if self._data_loss is DataLoss.FAIL:
            plan = self._readable_part(plan)
        self._planned = plan
        return {OFFSET_KEY: plan.end}

    def waiting(self, start: Offset) -> Waiting:
        """Return what the log holds after ``start``, as far as a pace has to know."""
        backlog = BACKLOG_BYTES if self._max_bytes is None else min(self._max_bytes, BACKLOG_BYTES)
        plan = self._counter.plan(start[OFFSET_KEY], max_bytes=backlog, until=self._limit())
        size = plan.end - plan.begin
        return Waiting(len(plan.ranges), size, is_backlog=size >= backlog)

    def default_limit(self) -> ReadLimit:
        """Return the limit of a batch that the options set."""
        return default_limit(self._max_bytes)

    def report_latest(self) -> Offset:
        """Return the current end of the log, for the query's status."""
        planned = self._planned.end if self._planned is not None else 0
        return {OFFSET_KEY: min(self._planner.end(planned), self._limit())}

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """Return the ranges of a batch; plan them again if it is not the batch planned last."""
        begin, stop = start[OFFSET_KEY], end[OFFSET_KEY]
        plan = self._planned
        if plan is None or plan.begin != begin or plan.end != stop:
            plan = self.plan_between(begin, stop)
        return self.partitions_of(plan)

    def partitions_of(self, plan: Plan) -> list[LogPartition]:
        """Return the ranges of a plan to read. Raises a loss in it, or warns about it.

        With ``DataLoss.MARK`` the reader handles lost ranges itself.
        """
        if self._data_loss is DataLoss.MARK:
            return [LogPartition(part) for part in plan.ranges]
        for part in plan.ranges:
            if part.gap:
                gap = Damage(part.begin, part.end, part.path, part.gap, part.is_lost)
                if self._data_loss is DataLoss.FAIL:
                    raise gap.error()
                warn_skipped(gap)
        return [LogPartition(part) for part in plan.ranges if not part.gap]

    def plan_between(self, begin: int, stop: int) -> Plan:
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

    def holds_topics(self, topics: frozenset[str]) -> bool | None:
        """Return whether the log holds a message of one of the topics; None means inconclusive."""
        with ThreadPoolExecutor(_SCAN_THREADS, "reput-search") as pool:
            at, is_known = max(self.log.min_offset(), 0), True
            while ranges := self._planner.plan(at).ranges:
                for first in range(0, len(ranges), _SCAN_THREADS):
                    for found in pool.map(
                        self._search, ranges[first : first + _SCAN_THREADS], repeat(topics)
                    ):
                        if found:
                            return True
                        is_known &= found is not None
                at = ranges[-1].end
        return False if is_known else None

    def stretches(self) -> Iterator[Stretch]:
        """Yield the stretches of the current log. With ``DataLoss.FAIL``, damage ends its range.

        With ``DataLoss.SKIP``, damage is a warning and left out.
        """
        skip = self._data_loss is DataLoss.SKIP
        with ThreadPoolExecutor(_SCAN_THREADS, "reput-scan") as pool:
            at = max(self.log.min_offset(), 0)
            while ranges := self._planner.plan(at, until=self._limit()).ranges:
                for first in range(0, len(ranges), _SCAN_THREADS):
                    for part in pool.map(self._scan, ranges[first : first + _SCAN_THREADS]):
                        for stretch in part:
                            if skip and isinstance(stretch, Damage):
                                warn_skipped(stretch)
                            else:
                                yield stretch
                at = ranges[-1].end

    def _scan(self, part: LogRange) -> list[Stretch]:
        skip = self._data_loss is not DataLoss.FAIL
        return list(Scanner(self._config).read(part, skip_damage=skip))

    def _search(self, part: LogRange, topics: frozenset[str]) -> bool | None:
        is_known = True
        for stretch in Scanner(self._config).read(part, skip_damage=True):
            if isinstance(stretch, Damage):
                is_known = False
            elif not topics.isdisjoint(stretch.topics):
                return True
        return False if is_known else None

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
        with ThreadPoolExecutor(_SCAN_THREADS, "reput-check") as pool:
            for first in range(0, len(plan.ranges), _SCAN_THREADS):
                some = plan.ranges[first : first + _SCAN_THREADS]
                for n, (end, error) in enumerate(pool.map(self._readable_end, some), first):
                    if error is None:
                        continue
                    readable = plan.ranges[:n]
                    if end > plan.ranges[n].begin:
                        readable = (*readable, replace(plan.ranges[n], end=end))
                    if not readable:
                        raise error
                    return Plan(plan.begin, readable)
        return plan

    def _readable_end(self, part: LogRange) -> tuple[int, StoreError | None]:
        """Return the offset up to which a range can be read, and the error there."""
        end = part.begin
        try:
            for stretch in Scanner(self._config).read(part):
                if isinstance(stretch, Damage):
                    return end, stretch.error()
                end = stretch.end
        except UnsupportedFormatError as e:
            return end, e
        return end, None


def default_limit(max_bytes: int | None) -> ReadLimit:
    """Return the limit of a batch."""
    return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)


def warn_skipped(gap: Damage) -> None:
    """Warn that a part of the log is skipped."""
    _log.warning("%s: offsets %d to %d are left out: %s", gap.path, gap.begin, gap.end, gap.reason)


class PlannedStream(Protocol):
    """What plans the micro-batches of one query, and defines the form of their offsets."""

    def latest(self, start: Any, limit: ReadLimit) -> Any:
        """Return the end of the next batch."""

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return the ranges of a batch."""

    def default_limit(self) -> ReadLimit:
        """Return the limit of a batch that the options set."""

    def report_latest(self) -> Any:
        """Return the current end, for the query's status."""

    def prepare_available_now(self) -> None:
        """Fix the end of the query."""


_Stream = TypeVar("_Stream", bound=PlannedStream)


@called_by_spark
class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[_Stream]):
    """Spark's interface to a stream over the log; subclasses define its start and its rows."""

    def open_stream(self) -> _Stream:
        """Open the stream of one query. Called once, in the process that plans it."""
        raise NotImplementedError

    @cached_property
    def stream(self) -> _Stream:
        """The stream, opened on first use."""
        return self.open_stream()

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        """Return the end of the next micro-batch."""
        return self.stream.latest(start, limit)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxBytesPerTrigger`` as a limit."""
        return self.stream.default_limit()

    def reportLatestOffset(self) -> Any:
        """Return the current end of the log."""
        return self.stream.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query."""
        self.stream.prepare_available_now()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Return the ranges of a micro-batch."""
        return self.stream.partitions(start, end)
