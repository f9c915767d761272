"""Some queues of a root, to be rebuilt: which, from which parts of the log, and what they change.

They are dispatched up to the root's progress, without the ranges that it lost. The dispatch stops
at each milestone of the root, because a milestone holds where the queues ended.
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
        """The selection as text: no other one has the same."""
        return f"{self.topic}/{'*' if self.queue_id is None else self.queue_id}"

    @property
    def milestones(self) -> frozenset[int]:
        """The offsets of the root's milestones."""
        return frozenset(m.reput_from_offset for m in self.output.milestones)

    def includes(self, key: QueueKey) -> bool:
        """Return whether a queue is one of them."""
        return key[0] == self.topic and self.queue_id in (None, key[1])

    def stops(self) -> list[tuple[int, Damage | None]]:
        """Return the offsets to dispatch to, ascending, and what to skip from there, if anything.

        The last is the end of the root.
        """
        stops: dict[int, Damage | None] = dict.fromkeys(self.milestones)
        stops[self.output.reput_from_offset] = None
        for lost in self.output.lost:
            stops[lost.begin] = Damage(lost.begin, lost.end, lost.path, lost.reason)
        return sorted(stops.items(), key=lambda stop: stop[0])

    def is_lost(self, offset: int) -> bool:
        """Return whether a range that the root lost begins at an offset."""
        return any(lost.begin == offset for lost in self.output.lost)

    def is_begun_by(self, built: Progress) -> bool:
        """Return whether a dispatch that was interrupted skipped and stopped as this one would.

        Otherwise the root was rolled back and dispatched again since.
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
        """Return the root's progress with the drops and marks of queues as they were rebuilt.

        They differ from those before where the beginning of the log has expired. Milestones in
        front of it remain as they are: nothing can be rolled back to them.
        """
        known = {m.reput_from_offset: m for m in built.milestones}
        milestones = []
        for milestone in self.output.milestones:
            rebuilt = known.get(milestone.reput_from_offset)
            if rebuilt is not None:
                ends = tuple(end for end in milestone.marks if end.key not in keys)
                milestone = _with_drops(milestone, rebuilt, keys)  # noqa: PLW2901 - the same one
                milestone = replace(milestone, marks=ends + rebuilt.marks)  # noqa: PLW2901
            milestones.append(milestone)
        return replace(_with_drops(self.output, built, keys), milestones=tuple(milestones))


def _with_drops(end: _End, rebuilt: _End, keys: Collection[QueueKey]) -> _End:
    others = {name: drops for name, drops in end.drops.items() if queue_key(name) not in keys}
    return replace(end, drops=others | rebuilt.drops)
