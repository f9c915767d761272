"""What a running query has done: a dispatch or a mirror."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput.console.metrics import metric_names
from reput.console.metrics.metric_names import Node
from reput.console.metrics.samples import BUCKETS_MS, Samples
from reput.console.metrics.storage import (
    LogReader,
    LogState,
    measure_backlog,
    measure_drops,
    measure_log,
)
from store.errors import StoreError

if TYPE_CHECKING:
    from streaming.sinks.ordered_sink import SinkCounts

DISPATCH, MIRROR = "dispatch", "mirror"


@dataclass(frozen=True, slots=True)
class DispatchCounts:
    """What a dispatch has done; ``lost`` are ranges of the log, in bytes."""

    sink: SinkCounts
    recoveries: int
    lost: Iterable[tuple[int, int]]
    repeated: int
    gaps: int
    arrivals: Mapping[str, int] | None = None  # events by outcome, and those waiting


@dataclass(frozen=True, slots=True)
class MirrorCounts:
    """What a mirror has done; messages and oversized ones under its name, ever."""

    sink: SinkCounts
    messages: int
    oversized: int
    lost: Iterable[tuple[int, int]]


class BatchDurations:
    """The durations of a query's batches by phase, as a histogram. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, int] = {}
        self._lock = threading.Lock()

    def observe(self, durations_ms: Mapping[str, int]) -> None:
        """Add one batch: the milliseconds of each phase."""
        with self._lock:
            for phase, duration in durations_ms.items():
                counts = self._counts.setdefault(phase, [0] * (len(BUCKETS_MS) + 1))
                counts[bisect_left(BUCKETS_MS, duration)] += 1
                self._totals[phase] = self._totals.get(phase, 0) + duration

    def measure(self, samples: Samples, node: Node, query: str) -> None:
        """Add the histogram of each phase."""
        with self._lock:
            for phase, counts in self._counts.items():
                total = self._totals[phase]
                labels = (query, phase)
                samples.add_histogram(metric_names.BATCH_DURATION, node, counts, total, *labels)


@dataclass(frozen=True, slots=True)
class DispatchSource:
    """Measures a dispatch."""

    node: Node
    log: LogReader
    durations: BatchDurations
    counts: Callable[[], DispatchCounts]

    def __call__(self, samples: Samples) -> None:
        """Add the samples of one scrape."""
        node, counts = self.node, self.counts()
        log = _read(samples, node, self.log)
        if log is not None:
            behind_bytes, behind_ms, stuck_ms = log.status.behind_bytes, log.behind_ms, log.stuck_ms
            measure_backlog(
                samples, node, behind_bytes=behind_bytes, behind_ms=behind_ms, stuck_ms=stuck_ms
            )
            measure_log(samples, node, log.used_bytes, log.reserve_ms)
        samples.add(metric_names.DISPATCH_MESSAGES, node, counts.sink.messages)
        samples.add(metric_names.DISPATCH_BYTES, node, counts.sink.bytes)
        _measure_batches(samples, node, DISPATCH, counts.sink, self.durations)
        samples.add(metric_names.LOST_BYTES, node, _length(counts.lost), DISPATCH)
        samples.add(metric_names.RECOVERIES, node, counts.recoveries)
        samples.add(metric_names.EXPIRED_FILES, node, counts.sink.expired_files)
        measure_drops(samples, node, repeated=counts.repeated, gaps=counts.gaps)
        if counts.arrivals is not None:
            _measure_arrivals(samples, node, counts.arrivals)


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """Measures a mirror."""

    node: Node
    name: str
    log: LogReader
    durations: BatchDurations
    counts: Callable[[], MirrorCounts]

    def __call__(self, samples: Samples) -> None:
        """Add the samples of one scrape."""
        node, counts = self.node, self.counts()
        log = _read(samples, node, self.log)
        if log is not None:
            samples.add(metric_names.MIRROR_BEHIND_BYTES, node, log.status.behind_bytes, self.name)
            samples.add(metric_names.MIRROR_BEHIND_MS, node, log.behind_ms, self.name)
            samples.add(metric_names.MIRROR_STUCK_MS, node, log.stuck_ms, self.name)
        samples.add(metric_names.MIRROR_MESSAGES, node, counts.messages, self.name)
        samples.add(metric_names.MIRROR_BYTES, node, counts.sink.bytes, self.name)
        samples.add(metric_names.MIRROR_OVERSIZED, node, counts.oversized, self.name)
        _measure_batches(samples, node, MIRROR, counts.sink, self.durations)
        samples.add(metric_names.LOST_BYTES, node, _length(counts.lost), MIRROR)


def _read(samples: Samples, node: Node, log: LogReader) -> LogState | None:
    """Read the log's state; None, and a sample that shows it, if that fails."""
    try:
        state = log.read()
    except StoreError:  # the query itself reports what is wrong with the store
        samples.add(metric_names.STORE_READ_FAILED, node, 1)
        return None
    samples.add(metric_names.STORE_READ_FAILED, node, 0)
    return state


def _measure_batches(
    samples: Samples, node: Node, query: str, sink: SinkCounts, durations: BatchDurations
) -> None:
    samples.add(metric_names.BATCHES, node, sink.batches, query)
    durations.measure(samples, node, query)


def _measure_arrivals(samples: Samples, node: Node, arrivals: Mapping[str, int]) -> None:
    for outcome in ("sent", "coalesced", "dropped", "failures"):
        samples.add(metric_names.ARRIVALS, node, arrivals[outcome], outcome)
    samples.add(metric_names.ARRIVALS_WAITING, node, arrivals["waiting"])


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)
