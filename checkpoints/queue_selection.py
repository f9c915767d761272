"""The queues of a root that a partial rebuild selects, and their effect on the root's progress.

They are dispatched up to the root's progress, without the ranges that the root lost. The dispatch
stops at each rollback point of the root, because a rollback point records the ends of queues.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from checkpoints.progress import Progress, RollbackPoint, queue_key
from store.commitlog.scanner import Damage
from store.consumequeue.writer import QueueKey

_End = TypeVar("_End", Progress, RollbackPoint)


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The queues of a topic, or the one of ``queue_id``; ``output``: the progress of their root."""

    topic: str
    queue_id: int | None
    output: Progress

    @property
    def name(self) -> str:
        """The selection as text, unique to it."""
        return f"{self.topic}/{'*' if self.queue_id is None else self.queue_id}"

    @property
    def rollback_offsets(self) -> frozenset[int]:
        """The offsets of the root's rollback points."""
        return frozenset(m.reput_from_offset for m in self.output.milestones)

    def includes(self, key: QueueKey) -> bool:
        """Return whether a queue is selected."""
        return key[0] == self.topic and self.queue_id in (None, key[1])

    def stops(self) -> list[tuple[int, Damage | None]]:
        """Return the offsets to stop at, ascending, each with the lost range that begins there.

        The last one is the end of the root.
        """
        stops: dict[int, Damage | None] = dict.fromkeys(self.rollback_offsets)
        stops[self.output.reput_from_offset] = None
        for lost in self.output.lost:
            stops[lost.begin] = Damage(lost.begin, lost.end, lost.path, lost.reason)
        return sorted(stops.items(), key=lambda stop: stop[0])

    def is_lost(self, offset: int) -> bool:
        """Return whether a lost range of the root begins at an offset."""
        return any(lost.begin == offset for lost in self.output.lost)

    def can_resume(self, built: Progress) -> bool:
        """Return whether an interrupted rebuild has stopped and skipped where this one would.

        If not, the root has been rolled back and dispatched again since.
        """
        begin, end, output = built.begin_offset, built.reput_from_offset, self.output
        lost = [(max(r.begin, begin), r.end) for r in output.lost if begin < r.end <= end]
        known = {m.reput_from_offset for m in built.milestones}
        needed = {
            m.reput_from_offset
            for m in output.milestones
            if m.last_record.offset >= begin and m.reput_from_offset <= end
        }
        is_same = [(r.begin, r.end) for r in built.lost] == lost and needed <= known
        return is_same and end <= output.reput_from_offset

    def merge(self, built: Progress, keys: Collection[QueueKey]) -> Progress:
        """Return the root's progress with the drops and ends of the rebuilt queues.

        They differ from the previous ones if the log's oldest messages have expired. Rollback
        points before the log's minimum offset are unchanged: nothing can be rolled back to them.
        """
        known = {m.reput_from_offset: m for m in built.milestones}
        points = []
        for point in self.output.milestones:
            rebuilt = known.get(point.reput_from_offset)
            if rebuilt is not None:
                ends = tuple(end for end in point.marks if end.key not in keys)
                point = _with_drops(point, rebuilt, keys)  # noqa: PLW2901 - the same one
                point = replace(point, marks=ends + rebuilt.marks)  # noqa: PLW2901
            points.append(point)
        return replace(_with_drops(self.output, built, keys), milestones=tuple(points))


def _with_drops(end: _End, rebuilt: _End, keys: Collection[QueueKey]) -> _End:
    others = {name: drops for name, drops in end.drops.items() if queue_key(name) not in keys}
    return replace(end, drops=others | rebuilt.drops)
