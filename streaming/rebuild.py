"""Rebuild: the log is dispatched into a new root, which is swapped for the old queues and index.

The same sink as that of ``streaming.query``, fed by threads of this process or by a Spark query
that ends with the log. OUTPUT is as it was until the swap (``checkpoints.rebuild``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from checkpoints.progress import queue_key
from checkpoints.rebuild import NewRoot
from checkpoints.root import DispatchRoot
from checkpoints.settings import resolve_config
from store.consume_queue_store import QueueDrops, QueueKey
from store.dispatch_request import DispatchRequests
from store.errors import ConfigError, StoreError
from store.foreign import refuse_foreign_store, require_log_files
from store.layout import CONSUME_QUEUE_DIR
from store.log_plan import LogPlanner
from store.marks import list_queues
from store.scan import Damage
from streaming.dispatchers import DispatchSink
from streaming.feed import Feed, threads_feed

Report = Callable[[int, int], None]  # bytes of log done, bytes in all

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild came to. Offsets are physical offsets of the log."""

    begin_offset: int
    resumed_from: int  # where an interrupted rebuild had come to, else ``begin_offset``
    end_offset: int
    messages: int
    queues: int
    index_files: int
    stages: dict[str, float] = field(default_factory=dict)  # seconds of "dispatch" and "swap"
    drops: dict[QueueKey, QueueDrops] = field(default_factory=dict)
    damage: Damage | None = None  # at ``end_offset``: where the log cannot be read


def take_root(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> DispatchRoot:
    """Take the root of a rebuild. Raises as ``DispatchRoot.replacing``."""
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    config = resolve_config(store_root, output, broker_conf, broker_version)
    refuse_foreign_store(store_root, config)
    require_log_files(store_root, config)
    return DispatchRoot.replacing(output.absolute(), store_root.absolute(), config)


def rebuild_root(
    root: DispatchRoot, feed: Feed | None = None, report: Report | None = None
) -> Rebuilt:
    """Rebuild a root that ``DispatchRoot.replacing`` took, and give it back, also after an error.

    ``feed`` scans the log; by default threads of this process do. What lies before damage is built
    and swapped in: ``Rebuilt.damage`` is for the caller to raise. Raises ConfigError, DamageError
    if the log changes meanwhile, UnsupportedFormatError, StoreIOError; then the root is as it was,
    and the next rebuild resumes.
    """
    is_done = False
    try:
        rebuilt = _Rebuild(root, feed, report).run()
        is_done = True
    finally:
        root.close(clean=is_done)
    return rebuilt


class _Rebuild:
    def __init__(self, root: DispatchRoot, feed: Feed | None, report: Report | None) -> None:
        self._root = root
        self._is_clean = root.is_log_clean(Path(root.progress.store))
        self._planner = LogPlanner(root.log, lambda: self._is_clean)
        self._feed = feed if feed is not None else threads_feed(self._planner, root.log.config)
        self._report = report
        self._damage: Damage | None = None

    def run(self) -> Rebuilt:
        """Dispatch the log up to its end as it is now, or up to damage, and swap."""
        began, new = time.perf_counter(), NewRoot(self._root)
        built = new.open()
        resumed_from = built.progress.reput_from_offset
        while not self._dispatch(built):
            _log.info("the beginning of the log expired: the rebuild starts over at its minimum")
            built = new.begin()
            resumed_from = built.progress.reput_from_offset
        dispatched = time.perf_counter()
        new.swap_in(built)
        progress = built.progress
        return Rebuilt(
            begin_offset=progress.begin_offset,
            resumed_from=resumed_from,
            end_offset=progress.reput_from_offset,
            messages=progress.messages,
            queues=sum(1 for _ in list_queues(self._root.path / CONSUME_QUEUE_DIR)),
            index_files=progress.index_files,
            stages={"dispatch": dispatched - began, "swap": time.perf_counter() - dispatched},
            drops={
                queue_key(name): QueueDrops(d["repeated"], d["gaps"])
                for name, d in sorted(progress.drops.items())
            },
            damage=self._damage,
        )

    def _dispatch(self, built: DispatchRoot) -> bool:
        """Dispatch into the new root; return whether the log was there to be read.

        Raises StoreError, but not for damage of the log.
        """
        begin, end = built.progress.reput_from_offset, self._planner.end()
        first = built.progress.begin_offset

        def tell(requests: DispatchRequests) -> None:
            if self._report is not None:
                self._report(requests.end - first, end - first)

        sink = DispatchSink(built, built.log.config, listeners=(tell,))
        try:
            self._feed((begin, end), self._is_clean, sink)
        except StoreError:
            if self._has_expired(built):
                return False
            if sink.damage is None:
                raise
        finally:
            sink.close()
        self._damage = sink.damage
        return True

    def _has_expired(self, built: DispatchRoot) -> bool:
        """Return whether the log begins behind what has been dispatched."""
        built.log.refresh()
        return built.log.min_offset() > built.progress.reput_from_offset
