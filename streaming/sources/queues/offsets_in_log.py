"""Where offsets by queue are in the log: resolved by a scan of the log.

Offsets are the messages' own, which their records hold. A message's position in its consume queue
differs from them after a gap or a repeated offset; no consume queue is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.errors import ConfigError
from streaming.sources.queues.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    NO_OFFSET,
    QueueOffsets,
)

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one offset of a queue is in the log.

    ``min`` is the least own offset of the queue's messages, ``max`` the greatest plus 1. ``begin``
    is the commit log offset of the first message, in log order, whose own offset is not below the
    wanted one; ``end`` is the end of the last message below it. None without such a message.
    """

    min: int
    max: int
    begin: int | None = None
    end: int | None = None


class WantedOffsets:
    """One option: the offsets by queue, and what they mean at the ends of a queue."""

    def __init__(self, option: str, given: QueueOffsets, *, missing: int) -> None:
        self.option, self.given = option, given
        self._missing = missing  # for queues without an offset

    def wanted(self, topic: str, queue_id: int) -> int:
        """Return the wanted offset of a queue, NO_OFFSET for its end."""
        offset = self.given.of(topic, queue_id, self._missing)
        return {EARLIEST_OFFSET: 0, LATEST_OFFSET: NO_OFFSET}.get(offset, offset)

    def resolved(self, places: dict[Queue, Place]) -> QueueOffsets:
        """Return the offsets as numbers. Raises ConfigError for one beyond its queue's end."""
        numbers: dict[str, dict[int, int]] = {}
        for topic, offsets in self.given.by_topic.items():
            numbers[topic] = {}
            for queue_id, offset in offsets.items():
                place = places.get((topic, queue_id), Place(0, 0))
                if offset > place.max:
                    raise ConfigError(
                        f"option {self.option!r}: queue {queue_id} of topic {topic!r} has no "
                        f"offset {offset}: it holds {place.min} to {place.max}"
                    )
                ends = {EARLIEST_OFFSET: place.min, LATEST_OFFSET: place.max}
                numbers[topic][queue_id] = ends.get(offset, offset)
        return QueueOffsets(numbers)


def places_in_log(
    stretches: Iterable[DispatchRequests | Damage], offsets: WantedOffsets
) -> dict[Queue, Place]:
    """Return the place of each queue's offset, by all stretches of the log, in order.

    Raises DamageError for a stretch that is damage.
    """
    places: dict[Queue, Place] = {}
    for stretch in stretches:
        if isinstance(stretch, Damage):
            raise stretch.error()
        is_queued = stretch.is_queued
        for n, queue in enumerate(zip(stretch.topics, stretch.queue_ids.tolist(), strict=True)):
            if queue[0] not in offsets.given.by_topic:
                continue
            rows = np.flatnonzero(is_queued & (stretch.queue == n))
            if len(rows):
                found = _place_in_rows(stretch, rows, offsets.wanted(*queue))
                places[queue] = _joined(places[queue], found) if queue in places else found
    return places


def _place_in_rows(stretch: DispatchRequests, rows: np.ndarray, wanted: int) -> Place:
    """Return the place among the records of one queue."""
    offset, at = stretch.queue_offset[rows], stretch.commit_log_offset[rows]
    is_after = offset >= wanted
    begin = int(at[is_after].min()) if is_after.any() else None
    ends = (at + stretch.size[rows])[~is_after]
    end = int(ends.max()) if len(ends) else None
    return Place(int(offset.min()), int(offset.max()) + 1, begin, end)


def _joined(a: Place, b: Place) -> Place:
    """Return the place in two parts of the log, of which ``b`` is the later one."""
    return Place(
        min(a.min, b.min),
        max(a.max, b.max),
        b.begin if a.begin is None else a.begin,
        a.end if b.end is None else b.end,
    )
