"""Feeds: a feed scans a span of the log and applies its stretches to a sink, in log order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from store.commitlog.parallel_scan import scan_in_order
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig
from streaming.sinks.ordered_sink import BatchSink

BATCH_BYTES = 256 * 1024 * 1024  # the most that an interrupted rebuild scans again

# Called with the span of the log, whether the log was closed cleanly, and the sink.
Feed = Callable[[tuple[int, int], bool, BatchSink], None]


def threads_feed(planner: LogPlanner, config: StoreConfig) -> Feed:
    """Return a feed whose scans run in threads of this process."""

    def feed(span: tuple[int, int], _is_clean: bool, sink: BatchSink) -> None:
        begin, _ = span
        with closing(scan_in_order(planner, config, span)) as scanned:
            for end, stretches in scanned:
                if end - begin < BATCH_BYTES:
                    sink.apply_part(stretches)
                else:
                    sink.apply(stretches)
                    begin = end
        sink.apply([])

    return feed
