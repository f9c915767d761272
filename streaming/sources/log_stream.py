"""What every stream over the log shares: planning micro-batches with real admission control.

One offset, ``{"commit_log_offset": N}``: the physical offset up to which the log has been read.
Lives in Spark's planner process on the driver; nothing here goes to executors.

Spark never changes the end of a batch that it has logged. So where damage is to fail a query, a
batch is scanned before its end is returned, and ends in front of the damage: the rows before it are
a batch of their own, and the next one fails before Spark logs it. A batch that was logged before
its part of the log expired is planned up to its old end: what is gone is lost, or left out.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import repeat
from pathlib import Path

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import UNLIMITED, LogPlanner, Plan
from store.commitlog.scanner import Damage, LogRange, Scanner
from store.config import StoreConfig
from store.errors import DamageError, StoreError, UnsupportedFormatError
from streaming.sources.options import OFFSET_KEY

Offset = dict[str, int]

RANGE_BYTES_MIN, RANGE_BYTES_MAX = 4 * 1024 * 1024, 64 * 1024 * 1024
_SETTLE_SECONDS = 0.05
_SCANS = min(os.cpu_count() or 1, 8)  # at once, in the planner

_log = logging.getLogger(__name__)


class DataLoss(Enum):
    """What a stream does about damaged and lost parts of the log."""

    MARK = "mark"  # they are read as markers, in log order
    FAIL = "fail"  # a batch ends in front of them, the next one raises
    SKIP = "skip"  # they are left out, with a warning


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """One range of the log, as an input partition."""

    part: LogRange


class LogStream:
    """Plans the micro-batches of one query, up to offset ``until`` at most."""

    def __init__(  # noqa: PLR0913 - by name all but two
        self,
        store_root: Path,
        config: StoreConfig,
        *,
        is_clean: Callable[[], bool],
        max_bytes: int | None,
        range_bytes: int,
        data_loss: DataLoss = DataLoss.MARK,
        until: int = UNLIMITED,
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self._config = config
        self._max_bytes = max_bytes
        self._planner = LogPlanner(self.log, is_clean, range_bytes=range_bytes)
        self._data_loss = data_loss
        self._until = until
        self._target = until
        self._planned: Plan | None = None
        self._missing_from = -1  # the log ended there, before an offset already read

    def prepare_available_now(self) -> None:
        """Fix the offset the query runs up to: where the log ends now."""
        self._target = min(self._planner.end(), self._until)

    def latest(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan the next batch after ``start`` and return its end.

        Raises the damage or the loss that it would begin with, where these are to fail the query.
        """
        max_bytes = UNLIMITED
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        begin = start[OFFSET_KEY]
        plan = self._planner.plan(begin, max_bytes=max_bytes, until=self._target)
        if not plan.ranges and self._data_loss is not DataLoss.MARK:
            self._check_length(begin)
        if self._data_loss is DataLoss.FAIL:
            plan = self._sound(plan)
        self._planned = plan
        return {OFFSET_KEY: plan.end}

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
        plan = self._planned
        if plan is None or plan.begin != begin or plan.end != stop:
            plan = self.plan_between(begin, stop)
        return self.partitions_of(plan)

    def partitions_of(self, plan: Plan) -> list[LogPartition]:
        """Return the ranges of a plan that are to be read. Raises the loss in it, or warns of it.

        Markers are read by who asked for them.
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
        """Plan exactly ``[begin, stop)``; what the log no longer holds of it is a gap.

        Raises DamageError if the log has no record boundary at ``stop``, unless that is skipped.
        """
        plan, has_waited = Plan(begin, ()), False
        while plan.end < stop:  # damage ends a plan, the span may hold several
            more = self._planner.plan(plan.end, until=stop).ranges
            if not more and not has_waited:  # the last record may be being written
                has_waited = True
                time.sleep(_SETTLE_SECONDS)
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
        """Return whether the log holds a message of one of the topics; None if damage hides it."""
        with ThreadPoolExecutor(_SCANS, "reput-search") as pool:
            at, is_known = max(self.log.min_offset(), 0), True
            while ranges := self._planner.plan(at).ranges:
                for first in range(0, len(ranges), _SCANS):
                    for found in pool.map(
                        self._search, ranges[first : first + _SCANS], repeat(topics)
                    ):
                        if found:
                            return True
                        is_known &= found is not None
                at = ranges[-1].end
        return False if is_known else None

    def _search(self, part: LogRange, topics: frozenset[str]) -> bool | None:
        is_known = True
        for stretch in Scanner(self._config).read(part, skip_damage=True):
            if isinstance(stretch, Damage):
                is_known = False
            elif not topics.isdisjoint(stretch.topics):
                return True
        return False if is_known else None

    def _missing(self, begin: int, end: int) -> LogRange:
        """Return the range that the log has become too short for."""
        path, reason = str(self.log.path_of(begin)), f"the log ends at offset {begin}"
        return LogRange(begin, end, path, begin, reason, is_lost=True)

    def _check_length(self, begin: int) -> None:
        """Raise, or warn once, if the log ends before the offset up to which it was read."""
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

    def _sound(self, plan: Plan) -> Plan:
        """Scan what a plan holds; return it up to the first damage. Raises what it begins with."""
        with ThreadPoolExecutor(_SCANS, "reput-check") as pool:
            for first in range(0, len(plan.ranges), _SCANS):
                some = plan.ranges[first : first + _SCANS]
                for n, (end, error) in enumerate(pool.map(self._scan, some), first):
                    if error is None:
                        continue
                    sound = plan.ranges[:n]
                    if end > plan.ranges[n].begin:
                        sound = (*sound, replace(plan.ranges[n], end=end))
                    if not sound:
                        raise error
                    return Plan(plan.begin, sound)
        return plan

    def _scan(self, part: LogRange) -> tuple[int, StoreError | None]:
        """Return up to where a range can be read, and what is wrong there."""
        end = part.begin
        try:
            for stretch in Scanner(self._config).read(part):
                if isinstance(stretch, Damage):
                    return end, stretch.error()
                end = stretch.end
        except UnsupportedFormatError as e:
            return end, e
        return end, None


def warn_skipped(gap: Damage) -> None:
    """Warn that a part of the log is left out."""
    _log.warning("%s: offsets %d to %d are left out: %s", gap.path, gap.begin, gap.end, gap.reason)


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
