"""Rebuild: dispatch the log into a new OUTPUT, then swap its queues and index for the old ones.

The sink is the same as in ``streaming.queries.dispatch_query``; threads of this process or a Spark
query feed it. OUTPUT does not change until the swap (``checkpoints.rebuild``).
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints.commit import queue_key
from checkpoints.output import DispatchOutput
from checkpoints.rebuild import NewOutput
from store.commitlog.commit_log import ReportProgress
from store.commitlog.parallel_scan import cannot_derive
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import Damage
from store.consumequeue.names import list_queues
from store.consumequeue.writer import QueueDrops, QueueKey
from store.errors import StoreError
from store.output.progress import LostRange
from store.output.resolve_config import open_store_config
from streaming.queries.feed import Feed, threads_feed
from streaming.sinks.dispatch_sink import DispatchSink, DurableBatch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """The result of a rebuild. Offsets are physical offsets of the log."""

    begin_offset: int
    resumed_from: int  # the end of an interrupted rebuild, else ``begin_offset``
    end_offset: int
    messages: int
    queues: int
    index_files: int
    stages: dict[str, float] = field(default_factory=dict)  # seconds of "dispatch" and "swap"
    drops: dict[QueueKey, QueueDrops] = field(default_factory=dict)
    lost: tuple[LostRange, ...] = ()  # skipped, as OUTPUT had lost them before
    damage: Damage | None = None  # at ``end_offset``, beyond which the log cannot be read


def take_output(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> DispatchOutput:
    """Lock OUTPUT for a rebuild. Raises as ``DispatchOutput.replacing``."""
    config = open_store_config(store_root, output, broker_conf, broker_version, needs_log=True)
    return DispatchOutput.replacing(output.absolute(), store_root.absolute(), config)


def rebuild_output(
    output: DispatchOutput, feed: Feed | None = None, report: ReportProgress | None = None
) -> RebuildResult:
    """Rebuild an OUTPUT locked by ``DispatchOutput.replacing``; close it, also after an error.

    ``feed`` scans the log; by default, threads of this process do. Ranges that the progress of
    OUTPUT names as lost are skipped where the log is still damaged. If there are none, and the log
    is damaged, the part before the damage is built and swapped in, and the caller raises
    ``RebuildResult.damage``. Raises ConfigError, DamageError for other damage than the lost ranges
    or if the log changes meanwhile, UnsupportedFormatError, StoreIOError; then OUTPUT is
    unchanged, and the next rebuild resumes.
    """
    is_done = False
    try:
        rebuilt = _rebuild(output, feed, report)
        is_done = True
    finally:
        output.close(clean=is_done)
    return rebuilt


def _rebuild(
    output: DispatchOutput, feed: Feed | None, report: ReportProgress | None
) -> RebuildResult:
    began, rebuild = time.perf_counter(), _Rebuild(output, feed, report)
    built, resumed_from = rebuild.build()
    if rebuild.damage is not None and output.known_losses:
        raise cannot_derive(rebuild.damage)
    dispatched = time.perf_counter()
    rebuild.new.swap_in(built)
    progress = built.progress
    return RebuildResult(
        begin_offset=progress.begin_offset,
        resumed_from=resumed_from,
        end_offset=progress.reput_from_offset,
        messages=progress.messages,
        queues=sum(1 for _ in list_queues(output.path)),
        index_files=progress.index_files,
        stages={"dispatch": dispatched - began, "swap": time.perf_counter() - dispatched},
        drops={
            queue_key(name): QueueDrops(d["repeated"], d["gaps"])
            for name, d in sorted(progress.drops.items())
        },
        lost=progress.lost,
        damage=rebuild.damage,
    )


class _Rebuild:
    """The dispatch of the log into a new OUTPUT."""

    def __init__(
        self, output: DispatchOutput, feed: Feed | None, report: ReportProgress | None
    ) -> None:
        self.new = NewOutput(output)
        self.damage: Damage | None = None
        self._is_clean = output.is_log_clean(Path(output.progress.store))
        self._planner = LogPlanner(output.log, lambda: self._is_clean)
        self._feed = feed if feed is not None else threads_feed(self._planner, output.log.config)
        self._report = report

    def build(self) -> tuple[DispatchOutput, int]:
        """Dispatch, up to ``damage`` if any; return the new OUTPUT and the offset of the start.

        The start is the end of an interrupted rebuild, or the beginning of the log.
        """
        built = self.new.open()
        resumed_from = built.progress.reput_from_offset
        while not self._dispatch(built):
            _log.info("the beginning of the log expired: the rebuild starts over at its minimum")
            built = self.new.begin()
            resumed_from = built.progress.reput_from_offset
        return built, resumed_from

    def _dispatch(self, built: DispatchOutput) -> bool:
        """Dispatch into the new OUTPUT; return False if the part of the log to read has expired.

        Raises StoreError, except for damage of the log.
        """
        first, end = built.progress.begin_offset, built.log.likely_end()

        def report_end(batch: DurableBatch) -> None:
            if self._report is not None and batch.requests:
                at = batch.requests[-1].end
                self._report(at - first, max(at, end) - first)

        sink = DispatchSink(built, built.log.config, listeners=(report_end,))
        try:
            self._dispatch_to(UNLIMITED, built, sink)
            # The end of the log takes a walk of its last file, so it is found after most is done.
            self._dispatch_to(self._planner.end(sink.applied_to()), built, sink)
        except StoreError:
            if self._has_expired(built):
                return False
            if sink.damage is None:
                raise
        finally:
            sink.close()
        self.damage = sink.damage
        return True

    def _dispatch_to(self, stop: int, built: DispatchOutput, sink: DispatchSink) -> None:
        """Feed the sink up to an offset; a feed ends at each loss that the sink skips."""
        losses = -1
        while sink.applied_to() < stop and len(built.progress.lost) > losses:
            losses = len(built.progress.lost)
            self._feed((sink.applied_to(), stop), self._is_clean, sink)

    def _has_expired(self, built: DispatchOutput) -> bool:
        """Return whether the log now begins after the last record dispatched."""
        built.log.refresh()
        return built.log.min_offset() > built.progress.reput_from_offset
