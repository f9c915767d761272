"""The whole streaming query, log to durable queues and index, on two cores with CRC and index.

Once in batches of 256 MB, and once with a query that falls behind, in batches of 1 GiB.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from bench.memory import PeakMemory
from streaming.queries.dispatch_query import DispatchOptions, begin_dispatch, query_error
from streaming.queries.query_metrics import DispatchProgress
from streaming.spark.session import build_session

_BATCH_BYTES = 256 * 1024 * 1024  # of the log that is measured there are some batches then


def run(store: Path, work: Path) -> dict[str, float]:
    """Return messages a second after the first batch, and the peak memory of the processes."""
    spark = build_session("bench", "local[2]")
    reports: list[tuple[float, DispatchProgress]] = []
    options = DispatchOptions(
        available_now=True,
        max_bytes_per_trigger=_BATCH_BYTES,
        on_progress=lambda p: reports.append((time.perf_counter(), p)),
    )
    try:
        with PeakMemory() as memory:
            began = time.perf_counter()
            running = begin_dispatch(spark, store, work, options)
            running.query.awaitTermination()
            seconds = time.perf_counter() - began
        error = query_error(running.query)
        if error is not None:
            raise error
        sink = running.sink.counts
        batches = [p for p in running.query.recentProgress if p.numInputRows]
        running.close()
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    after_first = sum(p.durationMs["triggerExecution"] for p in batches[1:]) / 1000
    first_end = reports[0][1].messages
    return {
        "streaming: batches": len(batches),
        "streaming: first batch, seconds": batches[0].durationMs["triggerExecution"] / 1000,
        "streaming: messages/s after the first batch": (sink.messages - first_end) / after_first,
        "streaming: messages/s, first batch included": sink.messages / seconds,
        "streaming: seconds in the sinks": sink.apply_seconds,
        **{f"memory, peak MB: {k}": v / 1e6 for k, v in memory.peaks.items()},
    }


def falls_behind_rate(store: Path, work: Path) -> float:
    """Return the messages a second of a warm query when all files but the first appear at once."""
    files, there = sorted((store / "commitlog").iterdir()), work / "store" / "commitlog"
    there.mkdir(parents=True)
    spark = build_session("bench", "local[*]")
    try:
        running = begin_dispatch(spark, work / "store", work / "output", DispatchOptions())
        rates = []
        for some in (files[:1], files[1:]):
            began, before = time.perf_counter(), running.sink.counts.messages
            for file in some:
                os.link(file, there / file.name)
            running.query.processAllAvailable()
            done = running.sink.counts.messages - before
            rates.append(done / (time.perf_counter() - began))
        running.close()
    finally:
        spark.stop()
        shutil.rmtree(work, ignore_errors=True)
    return rates[-1]
