"""Where offsets by queue are in the log: resolved through queues, or by a scan of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.errors import ConfigError
from store.reads.message_store import MessageStore
from store.rocksdb import require_queue_files
from streaming.sources.queues.offsets import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    NO_OFFSET,
    QueueOffsets,
)

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A queue and one of its offsets.

    ``min`` and ``max`` are the offsets of its first message and of the next one. ``begin`` is the
    commit log offset of the message at the offset or after it, None without one; ``end`` is the end
    of the last message before it, None without one.
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


def places_in_output(store: MessageStore, offsets: WantedOffsets) -> dict[Queue, Place]:
    """Return the place of each queue's offset, through the queues of a root."""
    return {
        (topic, queue_id): _place_in_queue(
            store, (topic, queue_id), offsets.wanted(topic, queue_id)
        )
        for topic in offsets.given.by_topic
        for queue_id in store.queue_ids(topic)
    }


def _place_in_queue(store: MessageStore, queue: Queue, wanted: int) -> Place:
    low, high = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
    at = min(max(wanted, low), high)
    begin = end = None
    if at < high:
        begin = _message_at(store, queue, at)[0]
    if at > low:
        end = _message_at(store, queue, at - 1)[1]
    return Place(low, high, begin, end)


def _message_at(store: MessageStore, queue: Queue, offset: int) -> tuple[int, int]:
    """Return begin and end in the log of the message at an offset of a queue."""
    (message,) = store.get_message(*queue, offset, max_count=1).messages
    return message.commit_log_offset, message.commit_log_offset + message.size


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


def open_output(root: str, output: str, conf: str | None, version: str | None) -> MessageStore:
    """Open the queues of a root.

    Raises ConfigError, DamageError, StoreIOError, UnsupportedFormatError.
    """
    if not Path(output).is_dir():
        raise ConfigError(f"option 'output': {output} is not a directory")
    store = MessageStore.open(root, output, conf, version)
    if store.reput_from_offset() is None:
        require_queue_files(Path(root), Path(output), store.config.rocksdb_queues)
    return store
