"""Verify: derive queues and index again from the log, and compare them with what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkpoints.bulk.prove import Proof, can_prove, prove
from checkpoints.bulk.tasks import Run
from checkpoints.fingerprint import check_fingerprint
from checkpoints.progress import LostRange, Progress, read_progress
from store.commit_log import CommitLog
from store.compare import Counts, Difference, StoreComparison, Terms
from store.config import StoreConfig, other_setting
from store.consume_queue_store import QueueDrops, QueueKey
from store.derivation import Derivation
from store.errors import ConfigError, DamageError
from store.foreign import refuse_foreign_store
from store.layout import ABORT_FILE
from store.log_plan import LogPlanner
from store.made_root import other_store

Report = Callable[[int, int], None]  # bytes of log done, bytes in all


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification found. Offsets are physical offsets of the log."""

    store: Path
    output: Path
    is_ours: bool  # a dispatch of ours made the root, else a broker
    begin_offset: int  # the log was derived from here
    end_offset: int  # to here
    log_end_offset: int  # where the log ended when this began
    messages: int
    differences: tuple[Difference, ...]  # the first of each part of each file
    counts: Counts
    drops: dict[QueueKey, QueueDrops]  # what a broker's own rules drop or misplace
    lost: tuple[LostRange, ...]  # skipped by the dispatch, so not compared

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Span:
    """What of the log is derived, and how it is compared."""

    end: int
    terms: Terms
    lost: tuple[LostRange, ...] = ()
    must_reach_end: str = ""  # why

    def stretches(self) -> list[tuple[int, int]]:
        """Return the stretches of the span that were not lost, in order."""
        at, stretches = self.terms.begin, []
        for lost in sorted(self.lost, key=lambda r: r.begin):
            stretches.append((at, min(lost.begin, self.end)))
            at = max(at, lost.end)
        return [(a, b) for a, b in [*stretches, (at, self.end)] if a < b]


def verify(
    store_root: Path,
    output: Path,
    config: StoreConfig,
    report: Report | None = None,
    run: Run | None = None,
) -> Verification:
    """Compare the queues and the index of ``output`` with the log of ``store_root``.

    A root of ours is compared up to its progress, one a broker made up to the log's end. Nothing
    is written. With ``run`` many tasks see first whether all is equal, where that can be seen so;
    if it is not, the comparison in log order says where.

    Raises ConfigError for settings that do not fit the root, DamageError for a log that is
    damaged or has changed, UnsupportedFormatError, StoreIOError.
    """
    for path in (store_root, output):
        if not path.is_dir():
            raise ConfigError(f"{path} is not a directory")
    refuse_foreign_store(store_root, config)
    log = CommitLog(config.commit_log_paths(store_root), config)
    progress = read_progress(output)
    if progress is not None:
        _check_shape(progress, config, output)
        _check_log(progress, log, store_root, output)
    is_clean = not (store_root / ABORT_FILE).exists()
    if progress is not None and progress.log_was_clean is not None:
        is_clean = progress.log_was_clean
    planner = LogPlanner(log, lambda: is_clean)
    log_end = planner.end()
    span = _span_of(output, progress, (max(log.min_offset(), 0), log_end))
    if run is not None and progress is not None and can_prove(output, progress, log):
        proof = prove(output, progress, log, planner, run, report=report)
        if proof is not None:
            return _proved(proof, (store_root, output), span, log_end)
    comparison = StoreComparison(output, config, span.terms)
    derivation = Derivation(log, planner, span.stretches(), span.must_reach_end)
    messages = 0
    for batch in derivation.batches():
        comparison.put(batch)
        messages += len(batch)
        if report is not None:
            report(derivation.at - span.terms.begin, span.end - span.terms.begin)
    at = max(derivation.at, span.terms.begin)
    if span.must_reach_end:
        at = max(at, span.end)
    differences = comparison.finish(at)
    return Verification(
        store=store_root,
        output=output,
        is_ours=progress is not None,
        begin_offset=span.terms.begin,
        end_offset=at,
        log_end_offset=max(log_end, at),
        messages=messages,
        differences=differences,
        counts=comparison.counts,
        drops=comparison.take_drops(),
        lost=span.lost,
    )


def _proved(proof: Proof, roots: tuple[Path, Path], span: _Span, log_end: int) -> Verification:
    """Return the result of a comparison that found all equal; ``roots`` = (STORE, OUTPUT)."""
    return Verification(
        store=roots[0],
        output=roots[1],
        is_ours=True,
        begin_offset=span.terms.begin,
        end_offset=span.end,
        log_end_offset=max(log_end, span.end),
        messages=proof.messages,
        differences=(),
        counts=Counts(units=proof.units, entries=proof.entries),
        drops={},
        lost=(),
    )


def _span_of(output: Path, progress: Progress | None, log_span: tuple[int, int]) -> _Span:
    """Choose what to derive; ``log_span`` = the log's least offset and its end."""
    least, log_end = log_span
    if progress is None:
        terms = Terms(begin=least, is_aged=least > 0, may_be_ahead=True, by_broker=True)
        return _Span(max(log_end, least), terms)
    is_aged = least > progress.begin_offset
    terms = Terms(
        begin=max(least, progress.begin_offset),
        is_aged=is_aged,
        may_be_ahead=(output / ABORT_FILE).exists(),
    )
    end = progress.reput_from_offset
    return _Span(end, terms, progress.lost, f"the root was dispatched up to offset {end}")


def _check_log(progress: Progress, log: CommitLog, store_root: Path, output: Path) -> None:
    """Raise ConfigError for the log of another store, DamageError for one that has changed."""
    try:
        check_fingerprint(log, progress.last_record)
    except DamageError as e:
        other = other_store(output, progress.store, store_root, e.reason)
        if other is not None:
            raise other from e
        raise


def _check_shape(progress: Progress, config: StoreConfig, output: Path) -> None:
    """Raise ConfigError if a root was made with other settings."""
    other = other_setting(progress.shape, config)
    if other is not None:
        name, made_with, now = other
        raise ConfigError(
            f"{output} was made with {name}={made_with}, now it is {now}; give the broker.conf and "
            "version it was made with"
        )
