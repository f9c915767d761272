"""The writer of consume queues: appends the log position of each message to its queue's files.

The append follows a broker's ``ConsumeQueue.putMessagePositionInfo`` (format notes §5.3): records
at or below a queue's ``max_physic_offset`` are skipped as duplicates, so that replay changes
nothing. A queue's state is loaded from its files on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.consumequeue.extension import ConsumeQueueExtWriter
from store.consumequeue.files import QueueTail, queue_tail
from store.consumequeue.names import check_topic, queue_directory
from store.consumequeue.queue_ends import QueueEnd
from store.errors import DamageError
from store.io.disk import Disk
from store.io.mapped_file import file_name
from store.kernels.consume_queue import AppendedUnits, NewUnits, Queues, append_units
from store.layout import (
    CONSUME_QUEUE_DIR,
    CQ_UNIT,
    CQ_UNIT_SIZE,
    NO_QUEUE_YET,
    PRE_BLANK_SIZE,
    QUEUE_OFFSET_MAX,
)

QueueKey = tuple[str, int]


@dataclass(slots=True)
class QueueDrops:
    """The effects of the broker's rules on a queue's messages, which no broker reports."""

    repeated: int = 0  # dropped: queue offset below the queue's end
    gaps: int = 0  # kept, but placed below their queue offset

    def add(self, repeated: int, gaps: int) -> None:
        """Add to the counts."""
        self.repeated += repeated
        self.gaps += gaps


@dataclass(slots=True)
class _TouchedQueues:
    """The state of all queues touched so far, as arrays that grow."""

    numbers: dict[QueueKey, int] = field(default_factory=dict)
    max_physic_offset: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    end: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    allocated: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    ext_count: NDArray[np.int64] = field(default_factory=lambda: np.empty(16, np.int64))
    directories: list[Path] = field(default_factory=list)
    last_files: list[Path | None] = field(default_factory=list)  # written last in each queue

    def add(self, key: QueueKey, directory: Path, tail: QueueTail | None, ext_count: int) -> int:
        number = len(self.numbers)
        if number == len(self.end):
            for name in ("max_physic_offset", "end", "allocated", "ext_count"):
                setattr(self, name, np.resize(getattr(self, name), 2 * number))
        self.numbers[key] = number
        self.max_physic_offset[number] = tail.max_physic_offset if tail else -1
        self.end[number] = tail.end if tail else NO_QUEUE_YET
        self.allocated[number] = tail.allocated if tail else NO_QUEUE_YET
        self.ext_count[number] = ext_count
        self.directories.append(directory)
        self.last_files.append(None)
        return number

    def file(self, number: int, base: int) -> Path:
        """Return the path of a queue's file; building it for every write is slow."""
        name, last = file_name(base), self.last_files[number]
        if last is None or last.name != name:
            last = self.last_files[number] = self.directories[number] / name
        return last


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The ends of queues at one moment: ``keys`` and, in their order, the fields of QueueEnd."""

    keys: list[QueueKey]
    end: NDArray[np.int64]
    allocated: NDArray[np.int64]
    ext_count: NDArray[np.int64]


class ConsumeQueueStore:
    """Appends to the consume queues of one OUTPUT."""

    def __init__(self, output: Path, config: StoreConfig, disk: Disk) -> None:
        self.directory = output / CONSUME_QUEUE_DIR
        self.drops: dict[QueueKey, QueueDrops] = {}
        self._file_size = config.mapped_file_size_consume_queue
        self._disk = disk
        self._state = _TouchedQueues()
        self._ext = (
            ConsumeQueueExtWriter(output, config, disk) if config.enable_consume_queue_ext else None
        )

    def put_message_position_info(self, requests: DispatchRequests) -> None:
        """Append the units of these requests (only ordinary and committed messages have one).

        Raises DamageError for a topic that cannot name a directory, StoreIOError.
        """
        units, keys, store_timestamp = units_of(requests)
        if not len(units.queue):
            return
        numbers = np.array([self._number(key, requests) for key in keys], np.int64)
        state, ext, count = self._state, self._ext, len(keys)
        queues = Queues(
            max_physic_offset=state.max_physic_offset[numbers],
            end=state.end[numbers],
            allocated=state.allocated[numbers],
            ext_count=state.ext_count[numbers],
            repeated=np.zeros(count, np.int64),
            gaps=np.zeros(count, np.int64),
        )
        self._check_offsets(units, keys)
        placed = append_units(
            units, queues, self._file_size, ext.shape if ext is not None else (0, 0)
        )
        if ext is not None:
            ext.put(keys, units, placed.ext_at, store_timestamp)
        for q, number in enumerate(numbers.tolist()):
            files = int(state.allocated[number]), int(queues.allocated[q])
            self._create_files(number, *files, first=int(placed.first[q]))
            self._write_queue(number, q, placed)
        for q in np.flatnonzero(queues.repeated + queues.gaps).tolist():
            drops = self.drops.setdefault(keys[q], QueueDrops())
            drops.add(int(queues.repeated[q]), int(queues.gaps[q]))
        state.max_physic_offset[numbers] = queues.max_physic_offset
        state.end[numbers] = queues.end
        state.allocated[numbers] = queues.allocated
        state.ext_count[numbers] = queues.ext_count

    def ends_touched_by(self, requests: DispatchRequests) -> list[QueueEnd]:
        """Return the current ends of the queues that these requests touch."""
        keys = queues_of(requests)
        for key in keys:
            self._number(key, requests)
        return self.ends_of(keys)

    def ends_of(self, keys: Iterable[QueueKey]) -> list[QueueEnd]:
        """Return the current ends of those of ``keys`` that have been touched since the start."""
        numbers, state = self._state.numbers, self._state
        known = [(key, numbers[key]) for key in keys if key in numbers]
        return [
            QueueEnd(*key, int(state.end[n]), int(state.allocated[n]), int(state.ext_count[n]))
            for key, n in known
        ]

    def tails_of(self, keys: Iterable[QueueKey]) -> dict[QueueKey, QueueTail]:
        """Return the tails of those of ``keys`` that have been touched and have units."""
        numbers, state = self._state.numbers, self._state
        return {
            key: QueueTail(
                max_physic_offset=int(state.max_physic_offset[n]),
                end=int(state.end[n]),
                allocated=int(state.allocated[n]),
            )
            for key in keys
            if (n := numbers.get(key, -1)) >= 0 and state.end[n] >= 0
        }

    def ends(self) -> QueueEnds:
        """Return the current ends of all queues touched since the start."""
        state, count = self._state, len(self._state.numbers)
        arrays = (state.end, state.allocated, state.ext_count)
        return QueueEnds(list(state.numbers), *(array[:count].copy() for array in arrays))

    def take_drops(self) -> dict[QueueKey, QueueDrops]:
        """Return what the broker's rules dropped or displaced since the last call, and reset it."""
        drops, self.drops = self.drops, {}
        return drops

    def _number(self, key: QueueKey, requests: DispatchRequests) -> int:
        number = self._state.numbers.get(key)
        if number is None:
            check_topic(key[0], self.directory, requests.begin)
            directory = queue_directory(self.directory, *key)
            tail = queue_tail(directory, self._file_size)
            ext_count = self._ext.load(key) if self._ext is not None else 0
            number = self._state.add(key, directory, tail, ext_count)
        return number

    def _check_offsets(self, units: NewUnits, keys: list[QueueKey]) -> None:
        """Reject a queue offset beyond any possible file (the scan rejects it first)."""
        is_bad = (units.queue_offset < 0) | (units.queue_offset > QUEUE_OFFSET_MAX)
        for u in np.flatnonzero(is_bad)[:1]:
            raise DamageError(
                queue_directory(self.directory, *keys[units.queue[u]]),
                int(units.commit_log_offset[u]),
                f"the message's queue offset {units.queue_offset[u]} is out of range",
            )

    def _create_files(self, number: int, begin: int, end: int, *, first: int) -> None:
        """Create a queue's files for bytes ``begin`` to ``end``; ``first`` is its first unit.

        A new queue (``begin`` is NO_QUEUE_YET) starts with the file that holds its first unit,
        pre-filled up to it.
        """
        is_new = begin == NO_QUEUE_YET
        if is_new:
            begin = first - first % self._file_size
        for base in range(begin, end, self._file_size):
            self._disk.create(self._state.file(number, base), self._file_size)
        if is_new and first > begin:  # Java parity: ConsumeQueue.fillPreBlank
            fill = pre_fill((first - begin) // CQ_UNIT_SIZE)
            self._disk.write(self._state.file(number, begin), 0, fill)

    def _write_queue(self, number: int, q: int, placed: AppendedUnits) -> None:
        """Write the accepted units of one queue, file by file."""
        begin = int(placed.group_end[q - 1]) * CQ_UNIT_SIZE if q else 0
        data = memoryview(placed.data.data)[begin : int(placed.group_end[q]) * CQ_UNIT_SIZE]
        at = int(placed.first[q])
        while data:
            in_file = at % self._file_size
            part = data[: self._file_size - in_file]
            self._disk.write(self._state.file(number, at - in_file), in_file, part)
            data, at = data[len(part) :], at + len(part)


def pre_fill(count: int) -> bytes:
    """Return ``count`` units of the pre-fill of a queue's first file."""
    fill = np.zeros(count, CQ_UNIT)
    fill["size"] = PRE_BLANK_SIZE
    return fill.tobytes()


def queues_of(requests: DispatchRequests) -> list[QueueKey]:
    """Return the queues that requests append units to or drop them from."""
    is_used = np.zeros(len(requests.topics), np.bool_)
    is_used[requests.queue[requests.is_queued]] = True
    is_used[requests.multi_queue] = True
    used = np.flatnonzero(is_used)
    return list(dict.fromkeys((requests.topics[n], int(requests.queue_ids[n])) for n in used))


def units_of(requests: DispatchRequests) -> tuple[NewUnits, list[QueueKey], NDArray[np.int64]]:
    """Return the units of requests, the queues they refer to, and each unit's store time.

    Units are in log order; a message's own unit comes before its multi-dispatch units.
    """
    rows = np.flatnonzero(requests.is_queued)
    is_main = np.ones(len(rows), np.uint8)
    queue, queue_offset = requests.queue[rows], requests.queue_offset[rows]
    if len(requests.multi_row):
        order = np.argsort(np.concatenate([rows, requests.multi_row]), kind="stable")
        is_main = np.concatenate([is_main, np.zeros(len(requests.multi_row), np.uint8)])[order]
        queue = np.concatenate([queue, requests.multi_queue])[order]
        queue_offset = np.concatenate([queue_offset, requests.multi_offset])[order]
        rows = np.concatenate([rows, requests.multi_row])[order]
    used, numbers = np.unique(queue, return_inverse=True)
    keys: dict[QueueKey, int] = {}
    renumber = np.array(
        [
            keys.setdefault((requests.topics[n], int(requests.queue_ids[n])), len(keys))
            for n in used
        ],
        np.int32,
    )
    units = NewUnits(
        queue=renumber[numbers] if len(used) else np.empty(0, np.int32),
        commit_log_offset=requests.commit_log_offset[rows],
        size=requests.size[rows],
        tags_code=requests.tags_code[rows],
        queue_offset=queue_offset,
        is_main=is_main,
    )
    return units, list(keys), requests.store_timestamp[rows]
