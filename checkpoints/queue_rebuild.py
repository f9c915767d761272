"""Rebuild of queues: built from the log beside the old ones, then swapped for them.

A root of ours that is owned and recovered is dispatched once more, as far as it had been and
without what was skipped then, but only into the queues asked for. Memory is bounded by a batch.
On a log whose beginning has expired a queue begins as a broker's would on that log: with pre-fill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from checkpoints.output import check_queue_directory
from checkpoints.progress import LostRange, Milestone, Progress, queue_name
from checkpoints.root import DispatchRoot
from checkpoints.swap import NEW_DIR, REBUILD_DIR, SwapRecord, finish_swap, write_swap
from store.config import StoreConfig
from store.consume_queue import ConsumeQueue
from store.consume_queue_store import ConsumeQueueStore, QueueDrops, QueueKey
from store.errors import ConfigError, StoreError
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR
from store.log_plan import LogPlanner
from store.log_replay import LogReplay
from store.marks import QueueMark, list_queues

Report = Callable[[int, int], None]  # bytes of log done, bytes in all
Stretch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RebuiltQueue:
    """What became of a queue; ``kept`` says why it was left as it is, "" for a rebuilt one.

    Queue offsets from ``first_offset`` to ``max_offset``, exclusive, have a unit.
    """

    topic: str
    queue_id: int
    first_offset: int = 0
    max_offset: int = 0
    drops: QueueDrops = field(default_factory=QueueDrops)
    kept: str = ""


class Rebuild:
    """Rebuilds the queues of one root of which ``only`` is true; the caller owns the root."""

    def __init__(
        self, root: DispatchRoot, planner: LogPlanner, only: Callable[[QueueKey], bool]
    ) -> None:
        self._root = root
        self._planner = planner
        self._only = only
        self._config: StoreConfig = root.log.config
        self._begin = max(root.log.min_offset(), root.progress.begin_offset)
        self._marks: dict[int, list[QueueMark]] = {}  # by the offset of a milestone

    def run(self, report: Report | None = None) -> list[RebuiltQueue]:
        """Build and swap. Return what became of each queue; none if there is no such queue.

        Raises DamageError where the log cannot be read, ConfigError, StoreIOError; then the old
        queues are in their places, or, if it failed in the swap, the next start finishes that.
        """
        root = self._root
        try:
            store = self._build(report)
            keys = store.ends().keys
            drops = store.take_drops()
            self._add_ext_directories(keys)
            root.disk.sync()
            self._check_devices(keys)
        except BaseException:
            with suppress(StoreError):  # else the next start deletes it
                finish_swap(root.path, root.progress, root.disk)
            raise
        if keys:
            target = self._progress_with(keys, drops)
            changed = target if target != root.progress else None
            write_swap(root.path, SwapRecord(tuple(keys), changed), root.disk)
        root.progress = finish_swap(root.path, root.progress, root.disk) or root.progress
        rebuilt = [self._rebuilt(key, drops.get(key, QueueDrops())) for key in sorted(keys)]
        there = set(filter(self._only, list_queues(root.path / CONSUME_QUEUE_DIR)))
        kept = "the log holds no message of it"
        return rebuilt + [RebuiltQueue(*key, kept=kept) for key in sorted(there - set(keys))]

    def _build(self, report: Report | None) -> ConsumeQueueStore:
        root, end = self._root, self._root.progress.reput_from_offset
        store = ConsumeQueueStore(root.path / NEW_DIR, self._config, root.disk, self._only)
        noted = {milestone.reput_from_offset for milestone in root.progress.milestones}
        reason = f"the root was dispatched up to offset {end}"
        for stretch in _stretches((self._begin, end), root.progress.lost, noted):
            self._note(store, stretch[0])
            replay = LogReplay(root.log, self._planner, [stretch], reason)
            for batch in replay.batches():
                store.put_message_position_info(batch)
                if report is not None:
                    report(replay.at - self._begin, end - self._begin)
            self._note(store, stretch[1])
        self._note(store, end)
        return store

    def _note(self, store: ConsumeQueueStore, offset: int) -> None:
        """Note where the queues end that have been built up to an offset."""
        if any(m.reput_from_offset == offset for m in self._root.progress.milestones):
            self._marks[offset] = store.marks_of(store.ends().keys)

    def _add_ext_directories(self, keys: Sequence[QueueKey]) -> None:
        """See that the ext files of a queue that has none any more are swapped too."""
        root = self._root
        for topic, queue_id in keys:
            ext = Path(CONSUME_QUEUE_EXT_DIR, topic, str(queue_id))
            if self._config.enable_consume_queue_ext and (root.path / ext).is_dir():
                root.disk.make_directory(root.path / NEW_DIR / ext)

    def _check_devices(self, keys: Sequence[QueueKey]) -> None:
        """Refuse to swap what cannot be renamed or holds foreign files, before anything is."""
        root = self._root.path
        for topic, queue_id in keys:
            for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
                new = root / NEW_DIR / kind / topic / str(queue_id)
                place = root / kind / topic / str(queue_id)
                check_queue_directory(place)
                while not place.exists():
                    place = place.parent
                if new.is_dir() and new.stat().st_dev != place.stat().st_dev:
                    raise ConfigError(
                        f"{place} is on another file system than {root / REBUILD_DIR}: dispatch "
                        "the log into a new OUTPUT"
                    )

    def _progress_with(
        self, keys: Sequence[QueueKey], drops: dict[QueueKey, QueueDrops]
    ) -> Progress:
        """Return progress with the milestones' marks of the queues as they are rebuilt.

        They differ from those of before where the log's beginning has expired.
        """
        progress, repeated = self._root.progress, {k for k, d in drops.items() if d.repeated}
        known = {queue_name(*k): {"repeated": d.repeated, "gaps": d.gaps} for k, d in drops.items()}
        milestones = tuple(self._marked(m, set(keys), repeated) for m in progress.milestones)
        return replace(progress, milestones=milestones, drops=known | progress.drops)

    def _marked(
        self, milestone: Milestone, keys: set[QueueKey], repeated: set[QueueKey]
    ) -> Milestone:
        found = self._marks.get(milestone.reput_from_offset)
        if found is None:  # it has expired
            return milestone
        ends = {mark.key: mark for mark in found}
        marks = {mark.key: mark for mark in milestone.marks}
        for key in keys & (repeated | set(marks)):
            marks[key] = ends.get(key, QueueMark(*key))
        return replace(milestone, marks=tuple(marks.values()))

    def _rebuilt(self, key: QueueKey, drops: QueueDrops) -> RebuiltQueue:
        directory = self._root.path / CONSUME_QUEUE_DIR / key[0] / str(key[1])
        queue = ConsumeQueue(directory, self._config.mapped_file_size_consume_queue)
        end = queue.max_offset()
        return RebuiltQueue(*key, queue.min_offset(self._begin, end), end, drops)


def _stretches(span: Stretch, lost: Sequence[LostRange], noted: set[int]) -> list[Stretch]:
    """Return what of a span was not skipped, cut at the offsets to note something at."""
    at, end = span
    kept: list[Stretch] = []
    for gap in sorted(lost, key=lambda r: r.begin):
        kept.append((at, min(gap.begin, end)))
        at = max(at, gap.end)
    pieces = []
    for first, last in [*kept, (at, end)]:
        cuts = [first, *sorted(n for n in noted if first < n < last), last]
        pieces += [(a, b) for a, b in pairwise(cuts) if a < b]
    return pieces
