"""Units laid in their queues by position, part by part, and what the parts say of each queue.

A unit's place follows from its record (``queueOffset * 20``) as long as a queue is *continuous*:
each unit of it lies right behind the one before. Then its parts can be written in any order. That
it is continuous is known when all parts have been joined. What is not (gaps, repeats, a topic that
was deleted and created again) has to be done in log order, as a broker does (format notes §5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.config import StoreConfig
from store.consume_queue_store import QueueKey, pre_fill, units_of
from store.disk import Disk
from store.dispatch_request import DispatchRequests, concat
from store.kernels.consume_queue import NO_QUEUE_YET, Placed, Queues, Units, place
from store.layout import CONSUME_QUEUE_DIR, CQ_UNIT_SIZE
from store.mapped_file import file_name
from store.queue_name import check_topic

_NO_EXT = (0, 0)


@dataclass(frozen=True, slots=True)
class PartQueues:
    """The queues of one part and where its units lie in them, in bytes, one element a queue."""

    keys: list[QueueKey]
    first: NDArray[np.int64]
    end: NDArray[np.int64]
    is_continuous: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """The units of a part, grouped by queue."""

    queues: PartQueues
    placed: Placed

    def pieces(self, file_size: int) -> Iterator[tuple[QueueKey, int, memoryview]]:
        """Yield (queue, position in the queue, units) of continuous queues, cut at their files."""
        data, queues = memoryview(self.placed.data.data), self.queues
        ends = (self.placed.group_end * CQ_UNIT_SIZE).tolist()
        begins, firsts = [0, *ends[:-1]], queues.first.tolist()
        for q in np.flatnonzero(queues.is_continuous).tolist():
            key, at, begin, end = queues.keys[q], firsts[q], begins[q], ends[q]
            while begin < end:
                size = min(file_size - at % file_size, end - begin)
                yield key, at, data[begin : begin + size]
                begin, at = begin + size, at + size


def place_part(requests: Sequence[DispatchRequests], file_size: int) -> PlacedPart:
    """Place the units of one part as if nothing lay before it."""
    units, keys = _units(requests)
    count = len(keys)
    queues = Queues(
        max_physic_offset=np.full(count, -1, np.int64),
        end=np.full(count, NO_QUEUE_YET, np.int64),
        allocated=np.full(count, NO_QUEUE_YET, np.int64),
        ext_count=np.zeros(count, np.int64),
        repeated=np.zeros(count, np.int64),
        gaps=np.zeros(count, np.int64),
    )
    placed: Placed = place(units, queues, file_size, _NO_EXT)
    # A unit whose queue offset is 0 is appended wherever the queue ends (Java parity).
    zeros = np.bincount(units.queue[units.queue_offset == 0], minlength=count)
    begins_anew = (zeros > 1) | ((zeros == 1) & (placed.first != 0))
    is_continuous = (queues.repeated == 0) & (queues.gaps == 0) & ~begins_anew
    return PlacedPart(PartQueues(keys, placed.first, queues.end, is_continuous), placed)


def lay_units(part: PlacedPart, root: Path, config: StoreConfig, disk: Disk) -> None:
    """Write the units of a part's continuous queues below ``root``, each by its position.

    Raises DamageError for a topic that cannot be a directory, StoreIOError.
    """
    directory, size = root / CONSUME_QUEUE_DIR, config.mapped_file_size_consume_queue
    for topic in {topic for topic, _ in part.queues.keys}:
        check_topic(topic, directory, 0)
    for (topic, queue_id), at, data in part.pieces(size):
        path = f"{directory}/{topic}/{queue_id}/{file_name(at - at % size)}"
        disk.lay(path, size, at % size, data)


@dataclass(slots=True)
class JoinedQueues:
    """What the parts joined so far, in log order, say of all queues."""

    _numbers: dict[QueueKey, int] = field(default_factory=dict)
    _first: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    _end: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    _is_continuous: NDArray[np.bool_] = field(default_factory=lambda: np.empty(16, np.bool_))

    def add(self, part: PartQueues) -> None:
        """Join the next part in log order."""
        known, ours = len(self._numbers), self._numbers
        numbers = np.array([ours.setdefault(k, len(ours)) for k in part.keys], np.int64)
        if not len(numbers):
            return
        self._make_room(len(ours))
        is_new = numbers >= known
        self._first[numbers[is_new]] = part.first[is_new]
        self._is_continuous[numbers[is_new]] = True
        follows = is_new | (self._end[numbers] == part.first)
        self._is_continuous[numbers] &= follows & part.is_continuous
        self._end[numbers] = part.end

    @property
    def count(self) -> int:
        """How many queues there are."""
        return len(self._numbers)

    def keys(self, *, continuous: bool) -> list[QueueKey]:
        """Return the queues that are continuous, or those that are not."""
        wanted = self._is_continuous[: len(self._numbers)] == continuous
        return [key for key, is_wanted in zip(self._numbers, wanted, strict=True) if is_wanted]

    def spans(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Yield (queue, first byte, end in bytes) of each continuous queue."""
        for key, number in self._numbers.items():
            if self._is_continuous[number]:
                yield key, int(self._first[number]), int(self._end[number])

    def _make_room(self, count: int) -> None:
        if count > len(self._end):
            for name in ("_first", "_end", "_is_continuous"):
                setattr(self, name, np.resize(getattr(self, name), 2 * count))


def lay_pre_fill(root: Path, key: QueueKey, first: int, config: StoreConfig, disk: Disk) -> None:
    """Fill the file of a queue's first unit up to that unit (``ConsumeQueue.fillPreBlank``)."""
    size = config.mapped_file_size_consume_queue
    path = root / CONSUME_QUEUE_DIR / key[0] / str(key[1]) / file_name(first - first % size)
    disk.lay(str(path), size, 0, pre_fill(first % size // CQ_UNIT_SIZE))


def _units(requests: Sequence[DispatchRequests]) -> tuple[Units, list[QueueKey]]:
    if not requests:
        none = np.empty(0, np.int64)
        narrow = np.empty(0, np.int32)
        return Units(narrow, none, narrow, none, none, np.empty(0, np.uint8)), []
    units, keys, _ = units_of(concat(list(requests)))
    return units, keys
