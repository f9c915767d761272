"""Replay of a commit log: its dispatch requests in log order, scanned by threads of this process.

Scanning is the expensive part, and the kernels release the interpreter lock: threads scan ranges
ahead of the caller, who consumes them in log order. Memory is bounded by the ranges in flight: one
more than the number of threads.
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
from store.commitlog.scanner import Damage, LogRange, Scanner, SplitScan, Stretch
from store.config import StoreConfig
from store.errors import DamageError

BATCH_BYTES = 64 * 1024 * 1024
_THREADS_MAX = 4  # enough to outpace any caller that applies or compares

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
        "queues and index cannot be derived beyond this offset; restore the file from a replica "
        "or a backup",
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
) -> Generator[Scanned, None, None]:
    """Yield the adjacent stretches of a span in log order, with the offset where each group ends.

    The scan stops at the span's end, at the log's end, or at damage, which is the last stretch.
    Threads scan the splits of ``LogPlanner.splits``. A split whose first record does not begin
    where the previous one ended is scanned again from there; parts without a usable split are
    planned by a walk.

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
    """Scans splits in threads, a few ahead of the caller."""

    def __init__(self, config: StoreConfig, splits: Iterator[LogRange]) -> None:
        self.scanner = Scanner(config)  # used by the calling thread
        self._splits = splits
        self._threads = min(len(os.sched_getaffinity(0)), _THREADS_MAX)
        self._idle: SimpleQueue[Scanner] = SimpleQueue()
        for _ in range(self._threads):
            self._idle.put(Scanner(config))
        self._pool = ThreadPoolExecutor(self._threads, "reput-scan")
        self._ahead: deque[tuple[LogRange, Future[SplitScan]]] = deque()

    def take(self, at: int) -> SplitScan | None:
        """Return the scan from ``at``, where a record begins; None if no split holds it."""
        while True:
            for split in islice(self._splits, self._threads + 1 - len(self._ahead)):
                self._ahead.append((split, self._pool.submit(self._scan, split)))
            if not self._ahead or at < self._ahead[0][0].begin:
                return None
            split, scanned = self._ahead.popleft()
            if at >= split.end:  # a record of the split before spans all of it
                scanned.cancel()
                continue
            found = scanned.result()
            if found.begin == at:
                return found
            return self.scanner.read_split(replace(split, begin=at, at_record=True))

    def close(self) -> None:
        """Stop the threads, each after its current split."""
        self._pool.shutdown(cancel_futures=True)

    def _scan(self, split: LogRange) -> SplitScan:
        scanner = self._idle.get()
        try:
            return scanner.read_split(split)
        finally:
            self._idle.put(scanner)
