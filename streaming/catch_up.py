"""Applying what a root is far behind before its query begins: scanned and applied in this process.

Through Spark a message's columns go from a worker to the JVM and from there to the sink, which
takes longer than to scan it. Threads scan ahead of the sink instead (kernels need no interpreter
lock), and the sink applies batches as those of the query: each is durable, in log order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from store.config import StoreConfig
from store.log_plan import LogPlanner, Plan
from store.scan import Damage, Scanner
from streaming.batch_sink import BatchSink
from streaming.stretches import Stretch

BATCH_BYTES = 128 * 1024 * 1024
_THREADS_MAX = 4  # as many scan faster than any sink applies; each is a batch ahead, in memory

Report = Callable[[int, int], None]  # bytes of log done, bytes in all


def catch_up(  # noqa: PLR0913 - by name all but four
    sink: BatchSink,
    planner: LogPlanner,
    config: StoreConfig,
    span: tuple[int, int],
    *,
    batch_bytes: int = BATCH_BYTES,
    report: Report | None = None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Apply the log's ``[begin, end)``, or up to damage or a stop; return the offset reached.

    Damage is left for the query, which knows what to do. Raises StoreError as the sink does.
    """
    (begin, end), threads = span, min(len(os.sched_getaffinity(0)), _THREADS_MAX)
    planned, done = begin, begin
    ahead: deque[tuple[Plan, Future[list[Stretch]]]] = deque()
    with ThreadPoolExecutor(threads, "reput-scan") as pool:
        while not is_stopping():
            while planned < end and len(ahead) <= threads:
                plan = planner.plan(planned, max_bytes=batch_bytes, until=end)
                if not plan.ranges:
                    end = planned
                    break
                ahead.append((plan, pool.submit(_scan, plan, config)))
                planned = plan.end
            if not ahead:
                break
            plan, scanned = ahead.popleft()
            stretches = scanned.result()
            if any(isinstance(stretch, Damage) for stretch in stretches):
                break
            sink.apply(stretches)
            done = plan.end
            if report is not None:
                report(done - begin, span[1] - begin)
        for _, waiting in ahead:
            waiting.cancel()
    return done


def _scan(plan: Plan, config: StoreConfig) -> list[Stretch]:
    scanner = Scanner(config)
    return [stretch for part in plan.ranges for stretch in scanner.read(part)]
