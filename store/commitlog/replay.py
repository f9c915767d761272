"""Replay of a commit log: its dispatch requests in log order, scanned by threads of this process.

Scanning is the expensive part, and the kernels release the interpreter lock: threads scan ranges
ahead of the caller, who takes them in log order. Memory is bounded by the ranges in flight, one
more than there are threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, LogRange, Scanner, SplitScan
from store.config import StoreConfig
from store.errors import DamageError

BATCH_BYTES = 64 * 1024 * 1024
_THREADS_MAX = 4  # as many scan faster than any caller applies or compares

Scanned = tuple[int, list[DispatchRequests | Damage]]  # the end, and the stretches up to there


class LogReplay:
    """Replays the span ``[begin, end)`` of a log; ``at`` is the offset reached."""

    def __init__(self, log: CommitLog, planner: LogPlanner, span: tuple[int, int]) -> None:
        self.at = span[0]
        self._log = log
        self._planner = planner
        self._span = span

    def batches(self) -> Iterator[DispatchRequests]:
        """Yield the requests of all records before damage. Raises DamageError at the damage."""
        scan = scan_in_order(self._planner, self._log.config, self._span)
        with closing(scan) as scanned:
            for stop, stretches in scanned:
                yield from self._requests(stop, stretches)

    def _requests(
        self, stop: int, stretches: list[DispatchRequests | Damage]
    ) -> Iterator[DispatchRequests]:
        damage = next((s for s in stretches if isinstance(s, Damage)), None)
        requests = [s for s in stretches if isinstance(s, DispatchRequests)]
        self.at = stop if damage is None else damage.begin
        if requests:
            yield concat(requests)
        if damage is not None:
            raise cannot_derive(damage)


def cannot_derive(damage: Damage) -> DamageError:
    """Return the error of damage that a replay cannot pass."""
    return DamageError(
        damage.path,
        damage.begin,
        damage.reason,
        "queues and index cannot be derived beyond this offset; restore the file from a replica "
        "or a backup",
    )


def log_too_short(log: CommitLog, end: int, reason: str) -> DamageError:
    """Return the error of a log that ends at ``end``; ``reason`` says why it must be longer."""
    return DamageError(
        log.path_of(end),
        end,
        f"the log ends here, but {reason}",
        "the log was truncated or is another one; dispatch it into a new OUTPUT",
    )


def scan_in_order(
    planner: LogPlanner,
    config: StoreConfig,
    span: tuple[int, int],
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Generator[Scanned, None, None]:
    """Yield a span in log order: stretches that follow on from one another, and where they end.

    The scan ends at the span's end, at the log's end, or with damage, which is the last stretch.
    Threads scan ranges that are split by bytes (``LogPlanner.splits``). One that does not begin where
    the one before ended is scanned once more; what cannot be scanned so is planned by a walk.

    Raises StoreError as the planner and the scanner do.
    """
    at, end = span
    splits = planner.splits(at, end, batch_bytes)
    with closing(_ScanAhead(config, splits)) as ahead:
        while at < end:
            scan = ahead.take(at)
            if scan is not None and scan.requests and scan.requests[-1].end <= end:
                at = scan.requests[-1].end
                yield at, list(scan.requests)
                if scan.is_whole:
                    continue
            plan = planner.plan(at, max_bytes=batch_bytes, until=end)
            if not plan.ranges:
                return
            stretches = ahead.scanner.read_all(plan.ranges)
            at = plan.end
            yield at, stretches
            if isinstance(stretches[-1], Damage):
                return


class _ScanAhead:
    """Scans splits in threads, a few ahead of who takes them."""

    def __init__(self, config: StoreConfig, splits: Iterator[LogRange]) -> None:
        self.scanner = Scanner(config)  # of the thread that takes
        self._splits = splits
        self._threads = min(len(os.sched_getaffinity(0)), _THREADS_MAX)
        self._idle: SimpleQueue[Scanner] = SimpleQueue()
        for _ in range(self._threads):
            self._idle.put(Scanner(config))
        self._pool = ThreadPoolExecutor(self._threads, "reput-scan")
        self._ahead: deque[tuple[LogRange, Future[SplitScan]]] = deque()

    def take(self, at: int) -> SplitScan | None:
        """Return what follows from ``at`` on, a record's begin; None if no split holds that."""
        while True:
            for split in islice(self._splits, self._threads + 1 - len(self._ahead)):
                self._ahead.append((split, self._pool.submit(self._scan, split)))
            if not self._ahead or at < self._ahead[0][0].begin:
                return None
            split, scanned = self._ahead.popleft()
            if at >= split.end:  # the last record before reaches over all of it
                scanned.cancel()
                continue
            found = scanned.result()
            if found.begin == at:
                return found
            return self.scanner.read_split(replace(split, begin=at, at_record=True))

    def close(self) -> None:
        """End the threads, when each has scanned what it is at."""
        self._pool.shutdown(cancel_futures=True)

    def _scan(self, split: LogRange) -> SplitScan:
        scanner = self._idle.get()
        try:
            return scanner.read_split(split)
        finally:
            self._idle.put(scanner)
