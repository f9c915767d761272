"""Verify: derive the queues and the index from the log, and compare them with the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from checkpoints.recovery.fingerprint import check_unchanged
from store.commitlog.commit_log import CommitLog, ReportProgress, was_closed_cleanly
from store.commitlog.parallel_scan import log_too_short
from store.commitlog.planner import LogPlanner
from store.compare.store import ComparisonPolicy, Counts, Difference, StoreComparison
from store.config import StoreConfig, check_shape
from store.consumequeue.extension import refuse_filter_bitmaps
from store.consumequeue.writer import QueueDrops, QueueKey
from store.errors import ConfigError, DamageError
from store.io.mapped_file import intact
from store.layout import ABORT_FILE
from store.output.progress import LostRange, Progress, read_progress
from store.output.resolve_config import other_store_error
from store.rocksdb import require_queue_files
from store.unsupported import (
    refuse_controller_mode,
    refuse_unsupported_store,
    require_log_files,
)
from streaming.queries.feed import Feed, threads_feed
from streaming.sinks.compare_sink import CompareSink


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification. Offsets are physical offsets of the log."""

    store: Path
    output: Path
    is_dispatched: bool  # reput wrote the files, else a broker
    begin_offset: int  # of the part of the log that was compared
    end_offset: int
    log_end_offset: int  # the end of the log when the verification started
    messages: int
    differences: tuple[Difference, ...]  # the first one of each part of each file
    counts: Counts
    drops: dict[QueueKey, QueueDrops]  # messages that a broker's own rules drop or misplace
    lost: tuple[LostRange, ...]  # skipped by the dispatch, so not compared

    @property
    def is_equal(self) -> bool:
        """Whether there is no difference."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of the log to derive, and how to compare it."""

    end: int
    policy: ComparisonPolicy
    lost: tuple[LostRange, ...] = ()
    must_reach_end: str = ""  # the reason, "" if it need not

    def parts(self) -> list[tuple[int, int]]:
        """Return the parts of the span between the lost ranges, in order."""
        at, parts = self.policy.begin, []
        for lost in sorted(self.lost, key=lambda r: r.begin):
            parts.append((at, min(lost.begin, self.end)))
            at = max(at, lost.end)
        return [(begin, end) for begin, end in [*parts, (at, self.end)] if begin < end]


@intact()
def verify(
    store_root: Path,
    output: Path,
    config: StoreConfig,
    report: ReportProgress | None = None,
    feed: Feed | None = None,
) -> Verification:
    """Compare the queues and the index of ``output`` with the log of ``store_root``.

    What reput wrote is compared up to its progress, a broker's files up to the log's end.
    Nothing is written. ``feed`` scans the log and feeds the comparison; by default, threads of this
    process scan.

    Raises ConfigError if the settings do not match OUTPUT's, DamageError if the log is damaged or
    has changed, UnsupportedFormatError, StoreIOError.
    """
    for path in (store_root, output):
        if not path.is_dir():
            raise ConfigError(f"{path} is not a directory")
    refuse_unsupported_store(store_root, config)
    progress = read_progress(output)
    if progress is None:
        require_log_files(store_root, config)
        refuse_controller_mode(store_root, config)
        require_queue_files(store_root, output, config.rocksdb_queues)
        refuse_filter_bitmaps(output)
    log = CommitLog(config.commit_log_paths(store_root), config)
    if progress is not None:
        hint = "give the broker.conf and version it was made with"
        check_shape(progress.shape, config, output, hint)
        _check_log(progress, log, store_root, output)
    is_clean = was_closed_cleanly(store_root)
    if progress is not None and progress.log_was_clean is not None:
        is_clean = progress.log_was_clean
    planner = LogPlanner(log, lambda: is_clean)
    log_end = planner.end()
    span = _span_of(output, progress, (max(log.min_offset(), 0), log_end))
    comparison = StoreComparison(output, config, span.policy)
    sink = CompareSink(comparison, (span.policy.begin, span.end), report)
    feed = feed if feed is not None else threads_feed(planner, config)
    for begin, end in span.parts():
        sink.begin(begin)
        feed((begin, end), is_clean, sink)
        if sink.applied_to() < end and span.must_reach_end:
            raise log_too_short(log, sink.applied_to(), span.must_reach_end)
    compared_to = sink.applied_to()
    if span.must_reach_end:
        compared_to = max(compared_to, span.end)
    differences = comparison.finish(compared_to)
    return Verification(
        store=store_root,
        output=output,
        is_dispatched=progress is not None,
        begin_offset=span.policy.begin,
        end_offset=compared_to,
        log_end_offset=max(log_end, compared_to),
        messages=sink.counts.messages,
        differences=differences,
        counts=comparison.counts,
        drops=comparison.take_drops(),
        lost=span.lost,
    )


def _span_of(output: Path, progress: Progress | None, log_span: tuple[int, int]) -> _Span:
    """Choose the part of the log to derive; ``log_span``: the log's minimum offset and its end."""
    log_min, log_end = log_span
    if progress is None:
        is_aged = log_min > 0
        policy = ComparisonPolicy(begin=log_min, is_aged=is_aged, may_be_ahead=True, by_broker=True)
        return _Span(max(log_end, log_min), policy)
    is_aged = log_min > progress.begin_offset
    policy = ComparisonPolicy(
        begin=max(log_min, progress.begin_offset),
        is_aged=is_aged,
        may_be_ahead=(output / ABORT_FILE).exists(),
    )
    end = progress.reput_from_offset
    return _Span(end, policy, progress.lost, f"OUTPUT was dispatched up to offset {end}")


def _check_log(progress: Progress, log: CommitLog, store_root: Path, output: Path) -> None:
    """Raise ConfigError if the log is another store's, DamageError if it has changed."""
    try:
        check_unchanged(log, progress.last_record)
    except DamageError as e:
        other = other_store_error(output, progress.store, store_root, e.reason)
        if other is not None:
            raise other from e
        raise
