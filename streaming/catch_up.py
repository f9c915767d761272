"""Applying what a root is far behind before its query begins: scanned and applied in this process.

Through Spark a message's columns go from a worker to the JVM and from there to the sink, which
takes longer than to scan it. Threads scan ahead of the sink instead (kernels need no interpreter
lock), and the sink applies batches as those of the query: each is durable, in log order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from store.config import StoreConfig
from store.log_plan import LogPlanner
from store.log_replay import scan_in_order
from store.scan import Damage
from streaming.batch_sink import BatchSink

BATCH_BYTES = 128 * 1024 * 1024

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
    begin, end = span
    done = begin
    with closing(scan_in_order(planner, config, span, batch_bytes=batch_bytes)) as scanned:
        for stop, stretches in scanned:
            if is_stopping() or any(isinstance(stretch, Damage) for stretch in stretches):
                break
            sink.apply(stretches)
            done = stop
            if report is not None:
                report(done - begin, end - begin)
    return done
