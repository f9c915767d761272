"""Trickle latency: from a record complete in the log to its unit readable in the queue.

In the first seconds Spark's code is not compiled yet: they are told apart.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

from bench.log import templates
from store.commitlog.writer import CommitLogWriter, numbered
from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue
from streaming.queries.dispatch import DispatchOptions, begin_dispatch
from streaming.spark.session import build_session

RATE = 100  # messages a second
COLD_SECONDS, SECONDS = 10.0, 40.0
_POLL_SECONDS = 0.002


def run(_store: Path, work: Path) -> dict[str, float]:
    """Write at a trickle while the query runs; poll the queue's end as a reader would."""
    config = StoreConfig()
    store, output = work / "store", work / "output"
    template = templates()[0]
    written: list[float] = []
    seen: list[float] = []
    spark = build_session("bench", "local[2]")
    try:
        with CommitLogWriter(store, config) as writer:
            for n in range(RATE):  # warms the query up
                writer.append(numbered(template, n))
            running = begin_dispatch(spark, store, output, DispatchOptions())
            running.query.processAllAvailable()
            stop = threading.Event()
            reader = threading.Thread(target=_watch, args=(config, output, seen, stop))
            reader.start()
            began = time.perf_counter()
            while (elapsed := time.perf_counter() - began) < SECONDS:
                if len(written) < elapsed * RATE:
                    writer.append(numbered(template, len(written)))
                    written.append(time.perf_counter())
                else:
                    time.sleep(_POLL_SECONDS)
            running.query.processAllAvailable()
            stop.set()
            reader.join()
            running.close()
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    delays = [b - a for a, b in zip(written, seen, strict=True)]
    cold = int(COLD_SECONDS * RATE)
    return {
        **_figures(delays[cold:], "latency"),
        **_figures(delays[:cold], f"latency, first {COLD_SECONDS:g} s"),
    }


def _figures(delays: list[float], name: str) -> dict[str, float]:
    delays = sorted(delays)
    return {
        f"{name}: messages": len(delays),
        f"{name}: p50, ms": delays[len(delays) // 2] * 1000,
        f"{name}: p99, ms": delays[len(delays) * 99 // 100] * 1000,
        f"{name}: largest, ms": delays[-1] * 1000,
    }


def _watch(config: StoreConfig, output: Path, seen: list[float], stop: threading.Event) -> None:
    """Note when each unit after the warm-up's becomes readable."""
    directory = output / "consumequeue" / templates()[0].topic / "0"
    while True:
        is_last = stop.is_set()
        end = ConsumeQueue(directory, config.mapped_file_size_consume_queue).max_offset()
        now = time.perf_counter()
        seen.extend([now] * (end - RATE - len(seen)))
        if is_last:
            return
        time.sleep(_POLL_SECONDS)
