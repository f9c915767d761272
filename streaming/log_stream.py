"""What every stream over the log shares: planning micro-batches with real admission control.

One offset, ``{"commit_log_offset": N}``: the physical offset up to which the log has been read.
Lives in Spark's planner process on the driver; nothing here goes to executors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from store.commit_log import CommitLog
from store.config import StoreConfig
from store.errors import StoreError
from store.log_plan import UNLIMITED, LogPlanner, Plan
from store.log_range import LogRange
from streaming.options import OFFSET_KEY

Offset = dict[str, int]

RANGE_BYTES_MIN = 4 * 1024 * 1024


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """One range of the log, as an input partition."""

    part: LogRange


class LogStream:
    """Plans the micro-batches of one query, up to offset ``until`` at most.

    Up to the offset that ``reached`` returns all has been applied already: nothing of it is read.
    """

    def __init__(  # noqa: PLR0913 - by name all but two
        self,
        store_root: Path,
        config: StoreConfig,
        *,
        is_clean: Callable[[], bool],
        max_bytes: int | None,
        range_bytes: int,
        until: int = UNLIMITED,
        reached: Callable[[], int] | None = None,
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self._max_bytes = max_bytes
        self._planner = LogPlanner(self.log, is_clean, range_bytes=range_bytes)
        self._until = until
        self._target = until
        self._reached = reached
        self._planned: Plan | None = None
        self._skipped = (-1, -1)

    def prepare_available_now(self) -> None:
        """Fix the offset the query runs up to: where the log ends now."""
        self._target = min(self._planner.end(), self._until)

    def latest(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan the next batch after ``start`` and return its end."""
        max_bytes = UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        begin, done = start[OFFSET_KEY], self._done()
        if done > begin:
            self._skipped = (begin, done)
            return {OFFSET_KEY: done}
        self._planned = self._planner.plan(begin, max_bytes=max_bytes, until=self._target)
        return {OFFSET_KEY: self._planned.end}

    def _done(self) -> int:
        """Return up to where nothing of the log is to be read any more."""
        return min(self._reached(), self._target) if self._reached is not None else -1

    def default_limit(self) -> ReadLimit:
        """Return the limit of a batch as the options say."""
        if self._max_bytes is None:
            return ReadAllAvailable()
        return ReadMaxBytes(self._max_bytes)

    def report_latest(self) -> Offset:
        """Return where the log ends now, for the query's status."""
        return {OFFSET_KEY: min(self._planner.end(), self._until)}

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """Return the ranges of a batch: those just planned, or planned again up to its end."""
        begin, stop = start[OFFSET_KEY], end[OFFSET_KEY]
        if (begin, stop) == self._skipped:
            return []
        plan = self._planned
        if plan is None or plan.begin != begin or plan.end != stop:
            plan = self.plan_between(begin, stop)
        return [LogPartition(part) for part in plan.ranges]

    def plan_between(self, begin: int, stop: int) -> Plan:
        """Plan exactly ``[begin, stop)``. Raises StoreError if the log has no boundary there."""
        plan = Plan(begin, ())
        while plan.end < stop:  # damage ends a plan, the span may hold several
            more = self._planner.plan(plan.end, until=stop)
            if not more.ranges:
                break
            plan = Plan(begin, plan.ranges + more.ranges)
        if begin < stop != plan.end:
            raise StoreError(
                f"offset {stop} was to be read up to, but records end at {plan.end}: it is no "
                "record boundary, or the log changed"
            )
        return plan


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark asks of a stream over the log, but for where it begins and how it is read."""

    def open_stream(self) -> LogStream:
        """Return the stream of one query; called once, in the process that plans it."""
        raise NotImplementedError

    @cached_property
    def stream(self) -> LogStream:
        """The stream, opened when it is first needed."""
        return self.open_stream()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch."""
        return self.stream.latest(start, limit)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxBytesPerTrigger`` as a limit."""
        return self.stream.default_limit()

    def reportLatestOffset(self) -> Offset:
        """Return where the log ends."""
        return self.stream.report_latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the offset to run up to."""
        self.stream.prepare_available_now()

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        """Return the ranges of a micro-batch."""
        return self.stream.partitions(start, end)
