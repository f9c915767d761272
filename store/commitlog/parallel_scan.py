"""Scans of a commit log by threads of this process, in the order of its ranges, or reversed.

Scanning is the expensive part, and the kernels release the interpreter lock: threads scan ranges
ahead of the caller, who takes the results in order (``ScanAhead``). Memory is bounded by the ranges
in flight: one more than the number of threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Generic, TypeVar

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, LogRange, Scanner, SplitScan, Stretch
from store.config import StoreConfig
from store.errors import RESTORE, DamageError

BATCH_BYTES = 32 * 1024 * 1024
SCAN_THREADS = min(len(os.sched_getaffinity(0)), 4)  # outpace a caller that applies or compares

_Scan = TypeVar("_Scan")
Scanned = tuple[int, list[Stretch]]  # the end, and the stretches up to it


class LogReplay:
    """Replays the span ``[begin, end)`` of a log; ``at`` is the offset reached."""

    def __init__(self, log: CommitLog, planner: LogPlanner, span: tuple[int, int]) -> None:
        self.at = span[0]
        self._log = log
        self._planner = planner
        self._span = span

    def batches(self) -> Iterator[DispatchRequests]:
        """Yield the requests of all records before any damage. Raises DamageError at the damage."""
        scan = scan_in_order(self._planner, self._log.config, self._span)
        with closing(scan) as scanned:
            for stop, stretches in scanned:
                yield from self._requests(stop, stretches)

    def _requests(self, stop: int, stretches: list[Stretch]) -> Iterator[DispatchRequests]:
        damage = next((s for s in stretches if isinstance(s, Damage)), None)
        requests = [s for s in stretches if isinstance(s, DispatchRequests)]
        self.at = stop if damage is None else damage.begin
        if requests:
            yield concat(requests)
        if damage is not None:
            raise cannot_derive(damage)


def cannot_derive(damage: Damage) -> DamageError:
    """Return the error for damage that a replay cannot skip."""
    return DamageError(
        damage.path,
        damage.begin,
        damage.reason,
        f"queues and index cannot be derived beyond this offset; {RESTORE}",
    )


def log_too_short(log: CommitLog, end: int, reason: str) -> DamageError:
    """Return the error for a log that ends at ``end``; ``reason`` says why it must be longer."""
    return DamageError(
        log.path_of(end),
        end,
        f"the log ends here, but {reason}",
        "the log was truncated or is a different log; dispatch it into a new OUTPUT",
    )


def scan_in_order(
    planner: LogPlanner,
    config: StoreConfig,
    span: tuple[int, int],
    *,
    batch_bytes: int = BATCH_BYTES,
    skip_damage: bool = False,
) -> Generator[Scanned, None, None]:
    """Yield the adjacent stretches of a span in log order, with the offset where each group ends.

    The scan stops at the span's end, at the log's end, or at damage, which is the last stretch.
    With ``skip_damage``, damage ends before the next valid record, where the scan resumes.

    Threads scan the splits of ``LogPlanner.splits``. A split whose first record does not begin
    where the previous one ended is scanned again from there; parts without a whole split are
    planned by a walk.

    Raises StoreError as the planner and the scanner do.
    """
    at, end = span
    splits = planner.splits(at, end, batch_bytes)
    with closing(ScanAhead(config, splits, Scanner.read_split)) as ahead:
        while at < end:
            scan = _scan_from(ahead, at)
            if scan is not None and scan.is_whole and scan.requests[-1].end <= end:
                at = scan.requests[-1].end
                yield at, list(scan.requests)
                continue
            plan = planner.plan(at, max_bytes=batch_bytes, until=end)
            if not plan.ranges:
                return
            stretches = ahead.scanner.read_all(plan.ranges, skip_damage=skip_damage)
            at = stretches[-1].end
            yield at, stretches
            if isinstance(stretches[-1], Damage) and not skip_damage:
                return


def scan_newest_first(
    planner: LogPlanner, config: StoreConfig, span: tuple[int, int], *, skip_damage: bool = False
) -> Generator[list[Stretch], None, None]:
    """Yield the stretches of each range of a span, from the last range to the first.

    Files are planned one by one, so the planner's ``range_bytes`` bounds each range. The scan does
    not stop at damage: it is the last stretch of its range or, with ``skip_damage``, ends before
    the next valid record.

    Raises StoreError as the planner and the scanner do.
    """
    (begin, end), file_size = span, config.mapped_file_size_commit_log
    bases = reversed(range(begin - begin % file_size, end, file_size))
    files = (_plan_all(planner, max(at, begin), min(at + file_size, end)) for at in bases)
    ranges = (part for parts in files for part in reversed(parts))
    with closing(ScanAhead(config, ranges, partial(_read, skip_damage=skip_damage))) as ahead:
        for _, stretches in ahead:
            yield stretches


def _plan_all(planner: LogPlanner, begin: int, end: int) -> list[LogRange]:
    """Return the ranges of a span: a plan ends after damage that it passes in the last file."""
    ranges: list[LogRange] = []
    while begin < end and (plan := planner.plan(begin, until=end)).ranges:
        ranges += plan.ranges
        begin = plan.end
    return ranges


def _read(scanner: Scanner, part: LogRange, *, skip_damage: bool) -> list[Stretch]:
    return list(scanner.read(part, skip_damage=skip_damage))


def _scan_from(ahead: ScanAhead[SplitScan], at: int) -> SplitScan | None:
    """Return the scan from ``at``, where a record begins; None if no split holds it."""
    while True:
        split = ahead.next_range()
        if split is None or at < split.begin:
            return None
        if at >= split.end:  # a record of the split before spans all of it
            ahead.skip()
            continue
        found = ahead.take()
        if found.begin == at:
            return found
        return ahead.scanner.read_split(replace(split, begin=at, at_record=True))


class ScanAhead(Generic[_Scan]):
    """Scans ranges in threads, a few ahead of the caller, who takes the scans in their order.

    Iteration yields each range with its scan. ``close`` it, also after an error.
    """

    def __init__(
        self,
        config: StoreConfig,
        ranges: Iterable[LogRange],
        scan: Callable[[Scanner, LogRange], _Scan],
        *,
        threads: int = SCAN_THREADS,
    ) -> None:
        self.scanner = Scanner(config)  # used by the calling thread
        self._ranges = iter(ranges)
        self._scan = scan
        self._threads = threads
        self._idle: SimpleQueue[Scanner] = SimpleQueue()
        for _ in range(threads):
            self._idle.put(Scanner(config))
        self._pool = ThreadPoolExecutor(threads, "reput-scan")
        self._ahead: deque[tuple[LogRange, Future[_Scan]]] = deque()

    def __iter__(self) -> Iterator[tuple[LogRange, _Scan]]:
        while (part := self.next_range()) is not None:
            yield part, self.take()

    def next_range(self) -> LogRange | None:
        """Return the range whose scan is next, None after the last one."""
        for part in islice(self._ranges, self._threads + 1 - len(self._ahead)):
            self._ahead.append((part, self._pool.submit(self._run, part)))
        return self._ahead[0][0] if self._ahead else None

    def take(self) -> _Scan:
        """Return the next scan, and remove it."""
        return self._ahead.popleft()[1].result()

    def skip(self) -> None:
        """Remove the next scan."""
        self._ahead.popleft()[1].cancel()

    def close(self) -> None:
        """Stop the threads, each after its current range."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, part: LogRange) -> _Scan:
        scanner = self._idle.get()
        try:
            return self._scan(scanner, part)
        finally:
            self._idle.put(scanner)
