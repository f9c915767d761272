"""Replay of a commit log: its dispatch requests in log order, scanned by threads of this process.

Scanning is the expensive part, and the kernels release the interpreter lock: threads scan batches
ahead of the caller, who takes them in log order. Memory is bounded by the batches in flight, one
more than there are threads.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue

from store.commit_log import CommitLog
from store.config import StoreConfig
from store.dispatch_request import DispatchRequests, concat
from store.errors import DamageError
from store.log_plan import LogPlanner, Plan
from store.scan import Damage, Scanner

BATCH_BYTES = 64 * 1024 * 1024
_THREADS_MAX = 4  # as many scan faster than any caller applies or compares

Scanned = tuple[Plan, list[DispatchRequests | Damage]]


class LogReplay:
    """Replays the spans ``[begin, end)`` of a log in order; ``at`` is the offset reached.

    ``reason``, if given, says why the log must reach the last span's end.
    """

    def __init__(
        self,
        log: CommitLog,
        planner: LogPlanner,
        spans: Sequence[tuple[int, int]],
        reason: str = "",
    ) -> None:
        self.at = spans[0][0] if spans else 0
        self._log = log
        self._planner = planner
        self._spans = spans
        self._reason = reason

    def batches(self) -> Iterator[DispatchRequests]:
        """Yield the requests of all records before damage. Raises DamageError at the damage."""
        for begin, end in self._spans:
            self.at = begin
            scan = scan_in_order(self._planner, self._log.config, (begin, end))
            with closing(scan) as scanned:
                for plan, stretches in scanned:
                    yield from self._requests(plan, stretches)
            if self.at < end:
                self._check_end()
                return

    def _requests(
        self, plan: Plan, stretches: list[DispatchRequests | Damage]
    ) -> Iterator[DispatchRequests]:
        damage = next((s for s in stretches if isinstance(s, Damage)), None)
        requests = [s for s in stretches if isinstance(s, DispatchRequests)]
        self.at = plan.end if damage is None else damage.begin
        if requests:
            yield concat(requests)
        if damage is not None:
            raise cannot_derive(damage)

    def _check_end(self) -> None:
        if self._reason:
            raise log_too_short(self._log, self.at, self._reason)


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
    """Yield the plans of a span in log order, each with the stretches scanned from its ranges.

    The scan ends at the span's end, at the log's end, or with the plan that contains damage, whose
    last stretch is the Damage. Raises StoreError as the planner and the scanner do.
    """
    (begin, end), threads = span, min(len(os.sched_getaffinity(0)), _THREADS_MAX)
    idle: SimpleQueue[Scanner] = SimpleQueue()
    for _ in range(threads):
        idle.put(Scanner(config))
    ahead: deque[tuple[Plan, Future[list[DispatchRequests | Damage]]]] = deque()
    with ThreadPoolExecutor(threads, "reput-scan") as pool:
        try:
            while True:
                while begin < end and len(ahead) <= threads:
                    plan = planner.plan(begin, max_bytes=batch_bytes, until=end)
                    if not plan.ranges:
                        end = begin
                        break
                    ahead.append((plan, pool.submit(_scan, plan, idle)))
                    begin = plan.end
                if not ahead:
                    return
                plan, scanned = ahead.popleft()
                stretches = scanned.result()
                yield plan, stretches
                if stretches and isinstance(stretches[-1], Damage):
                    return
        finally:
            for _, scanning in ahead:
                scanning.cancel()


def _scan(plan: Plan, idle: SimpleQueue[Scanner]) -> list[DispatchRequests | Damage]:
    """Scan the ranges of a plan up to damage, with a scanner that no other thread uses."""
    scanner = idle.get()
    try:
        stretches: list[DispatchRequests | Damage] = []
        for part in plan.ranges:
            stretches += scanner.read(part)
            if isinstance(stretches[-1], Damage):
                break
        return stretches
    finally:
        idle.put(scanner)
