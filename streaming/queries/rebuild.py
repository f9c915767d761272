"""Rebuild: dispatch the log into a new root, then swap its queues and index for the old ones.

The sink is the same as in ``streaming.queries.dispatch``; threads of this process or a Spark query
feed it. OUTPUT does not change until the swap (``checkpoints.rebuild``). A rebuild of some queues
works the same way and leaves out the rest (``checkpoints.rebuild``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints.progress import queue_key, queue_name
from checkpoints.rebuild import NewRoot, QueueSelection
from checkpoints.root import DispatchRoot
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.replay import cannot_derive, log_too_short
from store.commitlog.scanner import Damage
from store.consumequeue.files import ConsumeQueue
from store.consumequeue.names import list_queues, queue_directory
from store.consumequeue.writer import QueueDrops, QueueKey
from store.errors import StoreError
from store.layout import CONSUME_QUEUE_DIR
from store.root.config import open_store_config
from streaming.queries.feed import Feed, threads_feed
from streaming.sinks.dispatch import DispatchSink, DurableBatch
from streaming.sinks.ordered_sink import ReportProgress

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
    damage: Damage | None = None  # at ``end_offset``, beyond which the log cannot be read


@dataclass(frozen=True, slots=True)
class RebuiltQueue:
    """The result for one queue; ``kept`` is the reason why it was not rebuilt, "" if it was.

    The queue has units from ``first_offset`` up to ``max_offset``, exclusive.
    """

    topic: str
    queue_id: int
    first_offset: int = 0
    max_offset: int = 0
    drops: QueueDrops = field(default_factory=QueueDrops)
    kept: str = ""


def take_root(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> DispatchRoot:
    """Lock OUTPUT for a rebuild. Raises as ``DispatchRoot.replacing``."""
    config = open_store_config(store_root, output, broker_conf, broker_version, needs_log=True)
    return DispatchRoot.replacing(output.absolute(), store_root.absolute(), config)


def rebuild_root(
    root: DispatchRoot, feed: Feed | None = None, report: ReportProgress | None = None
) -> RebuildResult:
    """Rebuild a root that ``DispatchRoot.replacing`` locked, and close it, also after an error.

    ``feed`` scans the log; by default, threads of this process do. If the log is damaged, the part
    before the damage is built and swapped in, and the caller raises ``RebuildResult.damage``.
    Raises ConfigError, DamageError if the log changes meanwhile, UnsupportedFormatError,
    StoreIOError; then the root is unchanged, and the next rebuild resumes.
    """
    is_done = False
    try:
        rebuilt = _rebuild(root, feed, report)
        is_done = True
    finally:
        root.close(clean=is_done)
    return rebuilt


def _rebuild(root: DispatchRoot, feed: Feed | None, report: ReportProgress | None) -> RebuildResult:
    began, rebuild = time.perf_counter(), _Rebuild(root, feed, report)
    built, resumed_from = rebuild.build()
    dispatched = time.perf_counter()
    rebuild.new.swap_in(built)
    progress = built.progress
    return RebuildResult(
        begin_offset=progress.begin_offset,
        resumed_from=resumed_from,
        end_offset=progress.reput_from_offset,
        messages=progress.messages,
        queues=sum(1 for _ in list_queues(root.path)),
        index_files=progress.index_files,
        stages={"dispatch": dispatched - began, "swap": time.perf_counter() - dispatched},
        drops={
            queue_key(name): QueueDrops(d["repeated"], d["gaps"])
            for name, d in sorted(progress.drops.items())
        },
        damage=rebuild.damage,
    )


def rebuild_queues(
    root: DispatchRoot,
    selection: QueueSelection,
    feed: Feed | None = None,
    report: ReportProgress | None = None,
) -> list[RebuiltQueue]:
    """Rebuild some queues of a root that ``DispatchRoot.open`` opened; close it, also on error.

    The queues are dispatched up to the root's progress. Return the result for each queue; nothing
    if no queue is selected. Raises DamageError if the log cannot be read, and as ``rebuild_root``.
    """
    try:
        rebuild = _Rebuild(root, feed, report, selection)
        built, _ = rebuild.build()
        if rebuild.damage is not None:
            raise cannot_derive(rebuild.damage)
        keys = rebuild.new.swap_queues_in(built, selection)
        progress, directory = built.progress, root.path / CONSUME_QUEUE_DIR
        queues = []
        for topic, queue_id in keys:
            path = queue_directory(directory, topic, queue_id)
            queue = ConsumeQueue(path, root.log.config.mapped_file_size_consume_queue)
            drops = progress.drops.get(queue_name(topic, queue_id), {"repeated": 0, "gaps": 0})
            end = queue.max_offset()
            first = queue.min_offset(progress.begin_offset, end)
            queues.append(RebuiltQueue(topic, queue_id, first, end, QueueDrops(**drops)))
        others = set(filter(selection.includes, list_queues(root.path))) - set(keys)
        kept = "the log holds no message of it"
        return queues + [RebuiltQueue(*key, kept=kept) for key in sorted(others)]
    finally:
        root.close(clean=not root.is_in_swap())


class _Rebuild:
    """The dispatch of the log into a new root: all queues and the index, or a selection."""

    def __init__(
        self,
        root: DispatchRoot,
        feed: Feed | None,
        report: ReportProgress | None,
        selection: QueueSelection | None = None,
    ) -> None:
        self.new = NewRoot(root, selection)
        self.damage: Damage | None = None
        self._is_clean = root.is_log_clean(Path(root.progress.store))
        self._planner = LogPlanner(root.log, lambda: self._is_clean)
        self._feed = feed if feed is not None else threads_feed(self._planner, root.log.config)
        self._report = report
        self._selection = selection

    def build(self) -> tuple[DispatchRoot, int]:
        """Dispatch, up to ``damage`` if any; return the new root and the offset of the start.

        The start is the end of an interrupted rebuild, or the beginning of the log.
        """
        built = self.new.open()
        resumed_from = built.progress.reput_from_offset
        while not self._dispatch(built):
            _log.info("the beginning of the log expired: the rebuild starts over at its minimum")
            built = self.new.begin()
            resumed_from = built.progress.reput_from_offset
        return built, resumed_from

    def _dispatch(self, built: DispatchRoot) -> bool:
        """Dispatch into the new root; return False if the part of the log to read has expired.

        Raises StoreError, except for damage of the log.
        """
        selection, first = self._selection, built.progress.begin_offset
        end = built.log.likely_end() if selection is None else selection.stops()[-1][0]

        def report_end(batch: DurableBatch) -> None:
            if self._report is not None and batch.requests:
                at = batch.requests[-1].end
                self._report(at - first, max(at, end) - first)

        sink = DispatchSink(built, built.log.config, listeners=(report_end,), selection=selection)
        try:
            for stop, lost in self._stops(sink):
                self._dispatch_to(stop, built, sink)
                if lost is not None:
                    sink.apply([lost])
        except StoreError:
            if self._has_expired(built):
                return False
            if sink.damage is None:
                raise
        finally:
            sink.close()
        self.damage = sink.damage
        return True

    def _stops(self, sink: DispatchSink) -> Iterator[tuple[int, Damage | None]]:
        """Yield the offsets up to which to dispatch, each with a range to count as lost.

        The end of the log takes a walk of its last file, so it is found after most is dispatched.
        """
        if self._selection is not None:
            yield from self._selection.stops()
        else:
            yield UNLIMITED, None
            yield self._planner.end(sink.applied_to()), None

    def _dispatch_to(self, stop: int, built: DispatchRoot, sink: DispatchSink) -> None:
        begin = sink.applied_to()
        if begin < stop:
            self._feed((begin, stop), self._is_clean, sink)
        if self._selection is not None and sink.applied_to() < stop:
            end = self._selection.output.reput_from_offset
            reason = f"the root was dispatched up to offset {end}"
            raise log_too_short(built.log, sink.applied_to(), reason)

    def _has_expired(self, built: DispatchRoot) -> bool:
        """Return whether the log now begins after the last record dispatched."""
        built.log.refresh()
        return built.log.min_offset() > built.progress.reput_from_offset
