"""One ConsumeQueue for reads: where it begins and ends, and its units with their messages.

What is on disk is not all that counts. On a root of ours the units at or beyond the reput offset
may be half-written. On a broker's root stale units survive a truncation: the queue ends with the
last unit whose record in the log is one of this queue (promise I8).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from store import java
from store.consume_queue import ConsumeQueue
from store.errors import DamageError
from store.layout import (
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    CQ_UNIT_SIZE,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_UNIT,
    EXT_UNIT_SIZE,
    PRE_BLANK_SIZE,
)
from store.log_reader import LogReader
from store.mapped_file import MappedFileQueue
from store.record import Message

_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # the property that names further queues
_CONF_HINT = "pass the broker.conf that these queues were made with (--broker-conf)"
_REBUILD_HINT = "consume queues can be rebuilt from the log"


class Unit(NamedTuple):
    """A unit, fields in on-disk order; the tags code may be an ext address."""

    commit_log_offset: int
    size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Queue offsets that have a message: ``min`` to ``max``, exclusive; both 0 without units."""

    min: int
    max: int


class QueueReader:
    """A queue of a root, named by topic and id; its ``span`` is as of the last ``refresh``."""

    def __init__(self, root: Path, queue: tuple[str, int], log: LogReader) -> None:
        self.directory = queue_directory(root / CONSUME_QUEUE_DIR, *queue)
        self.span = QueueSpan(0, 0)
        self._topic, self._queue_id = queue
        self._log = log
        config = log.config
        self._queue = ConsumeQueue(self.directory, config.mapped_file_size_consume_queue)
        self._ext_directory = queue_directory(root / CONSUME_QUEUE_EXT_DIR, *queue)
        self._ext: MappedFileQueue | None = None

    def refresh(self, reput_from: int | None) -> None:
        """See what was appended and deleted since. Raises DamageError, StoreIOError.

        ``reput_from`` is the reput offset of the root, None on a broker's.
        """
        self._queue.refresh()
        self._check_files()
        begin = self.file_begins()[0] if self._queue.files else 0
        end = self._find_end((begin, self._queue.max_offset()), reput_from)
        first = self._queue.min_offset(max(self._log.min_offset(), 0))
        self.span = QueueSpan(min(first, end), end)

    def file_begins(self) -> list[int]:
        """Return the first queue offset of each file."""
        return [file.base // CQ_UNIT_SIZE for file in self._queue.files]

    def unit(self, offset: int) -> Unit:
        """Return the unit at a queue offset between the first file's begin and the end."""
        return Unit(*self._queue.unit(offset).tolist())

    def units(self, offset: int, count: int) -> list[Unit]:
        """Return up to ``count`` units from ``offset`` on, to the end of that file."""
        units = self._queue.get_index_buffer(offset)
        if units is None:
            return []
        return [Unit(*u) for u in units[: min(count, self.span.max - offset)].tolist()]

    def message(self, offset: int, unit: Unit | None = None) -> Message | None:
        """Return the message of the unit at ``offset``, None if the log has expired there.

        Raises DamageError if the unit does not name a record of this queue.
        """
        unit = unit if unit is not None else self.unit(offset)
        if unit.commit_log_offset < self._log.min_offset() or unit.size == PRE_BLANK_SIZE:
            return None
        if unit.size <= 0 or unit.commit_log_offset < 0:
            raise self._damage(offset, f"the unit names {unit.size} bytes")
        message = self._log.message(unit.commit_log_offset, unit.size)
        if not self._owns(message):
            owner = f"queue {message.queue_id} of topic {message.topic!r}"
            raise self._damage(offset, f"the unit's record is one of {owner}")
        return message

    def tags_code(self, unit: Unit) -> int | None:
        """Return a unit's tags code, None for an ext address that leads nowhere (§6)."""
        if unit.tags_code > EXT_ADDRESS_MAX:
            return unit.tags_code
        at = unit.tags_code - EXT_ADDRESS_BASE
        if self._ext is None or self._ext.find(at) is None:
            size = self._log.config.mapped_file_size_consume_queue_ext
            self._ext = MappedFileQueue([self._ext_directory], size)
        file = self._ext.find(at)
        if file is None or at - file.base + EXT_UNIT_SIZE > file.length:
            return None
        view = file.view()[at - file.base : at - file.base + EXT_UNIT_SIZE]
        size, tags_code, *_ = view.view(EXT_UNIT)[0].tolist()
        return int(tags_code) if size > 0 else None

    def roll_next_file(self, offset: int) -> int:
        """Return the first queue offset of the next file."""
        return self._queue.roll_next_file(offset)

    def _find_end(self, written_span: tuple[int, int], reput_from: int | None) -> int:
        """Return the queue offset behind the last unit that counts, 0 if none does."""
        begin, written = written_span
        limit = reput_from
        if limit is None:
            limit = self._log.max_offset() if written > begin else 0
        low, high = begin, written
        while low < high:  # units lie in log order, but for stale ones at the end
            middle = (low + high) // 2
            if self.unit(middle).commit_log_offset >= limit:
                high = middle
            else:
                low = middle + 1
        if reput_from is None:
            while low > begin and not self._is_of_log(self.unit(low - 1)):
                low -= 1
        if low == begin or self.unit(low - 1).size == PRE_BLANK_SIZE:
            return 0  # pre-fill counts with the unit behind it only
        return low

    def _is_of_log(self, unit: Unit) -> bool:
        """Tell whether a unit at the end is not stale: its record is one of this queue."""
        if unit.size == PRE_BLANK_SIZE or unit.commit_log_offset < self._log.min_offset():
            return True
        if unit.size <= 0 or not self._log.is_within(unit.commit_log_offset + unit.size):
            return False
        message = self._log.look(unit.commit_log_offset)
        return message is not None and message.size == unit.size and self._owns(message)

    def _owns(self, message: Message) -> bool:
        """Tell whether a message is one of this queue, maybe by multi-dispatch (§5.4)."""
        if message.topic == self._topic:
            return message.queue_id == self._queue_id
        return self._topic in java.split(message.properties.get(_MULTI_DISPATCH, ""), ",")

    def _check_files(self) -> None:
        """Raise DamageError unless files have their full size and follow on from one another."""
        for file in self._queue.files:
            if file.length != self._queue.file_size:
                reason = f"the file has {file.length} bytes, not {self._queue.file_size}"
                raise DamageError(file.path, file.base, reason, _CONF_HINT)
        for file, follower in pairwise(self._queue.files):
            if follower.base != file.base + self._queue.file_size:
                reason = f"files from {file.base + self._queue.file_size} on are missing"
                raise DamageError(follower.path, follower.base, reason, _REBUILD_HINT)

    def _damage(self, offset: int, reason: str) -> DamageError:
        at = offset * CQ_UNIT_SIZE
        begins = [f for f in self._queue.files if f.base <= at]
        path = begins[-1].path if begins else self.directory
        return DamageError(path, at, f"queue offset {offset}: {reason}", _REBUILD_HINT)


def queue_directory(root: Path, topic: str, queue_id: int) -> Path:
    """Return where the files of a queue lie below ``consumequeue/`` or ``consumequeue_ext/``."""
    return root / topic / str(queue_id)
