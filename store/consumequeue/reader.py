"""One ConsumeQueue for reads: its units with their messages, by position.

Each result is checked against the log: a unit must be in log order with its neighbours, and its
record must have the unit's size and belong to this queue. ``store.consumequeue.queue_bounds``
defines which units are valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store import java
from store.commitlog.commit_log import CommitLog
from store.commitlog.record import Message
from store.commitlog.record_of_unit import Owner, RecordRef
from store.consumequeue.files import ConsumeQueue, Unit, UnitColumns
from store.consumequeue.names import queue_directory
from store.consumequeue.queue_bounds import DispatchLimit, QueueBounds, QueueSpan
from store.errors import DamageError
from store.io.file_system import link_below
from store.io.mapped_file import MappedFileQueue
from store.layout import (
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_UNIT,
    EXT_UNIT_SIZE,
)

_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"  # the property that names additional queues


class QueueReader:
    """A queue of OUTPUT, named by topic and id; its ``span`` is as of the last ``refresh``.

    Not thread-safe.
    """

    def __init__(self, output: Path, queue: tuple[str, int], log: CommitLog) -> None:
        self.directory = queue_directory(output / CONSUME_QUEUE_DIR, *queue)
        self.span = QueueSpan(0, 0)
        self.topic, self.queue_id = queue
        self._owner = Owner.of(*queue)
        self._log = log
        config = log.config
        self._queue = ConsumeQueue(self.directory, config.mapped_file_size_consume_queue)
        self._queue.check()
        self._ownership = _Ownership(log, *queue)
        self._bounds = QueueBounds(self._queue, log, self._ownership.has_record)
        self._ext_queues = output / CONSUME_QUEUE_EXT_DIR
        self._ext_directory = queue_directory(self._ext_queues, *queue)
        self._ext: MappedFileQueue | None = None

    def refresh(self, dispatch: DispatchLimit | None) -> None:
        """Pick up appended and deleted units. Raises DamageError, StoreIOError.

        ``dispatch`` is the progress of OUTPUT, None for a broker's own queues.
        """
        listing = self._queue.listing
        self._queue.refresh()
        if self._queue.listing != listing:
            self._ext = None  # the queue may have been replaced, its ext files with it
        self.span = self._bounds.find(dispatch)

    def units(self, position: int, count: int) -> UnitColumns:
        """Return up to ``count`` units from a position in the span to the end of its file.

        Raises DamageError for a unit that is not in log order.
        """
        return self._queue.ordered_units(position, count, self.span.max)

    def unit_offset(self, position: int) -> int:
        """Return the physical offset that the unit at a position in the span names."""
        return self._queue.unit(position).commit_log_offset

    def unit_in_file(self, position: int) -> tuple[Path, int]:
        """Return the file of the unit at a position, and its first byte there."""
        return self._queue.byte_in_file(position)

    def message_bytes(self, begin: int, end: int) -> int:
        """Return the bytes of the records that the units from ``begin`` to ``end`` name."""
        return self._queue.message_bytes(begin, end)

    def message(self, position: int) -> Message | None:
        """Return the message at a position, None if there is none."""
        if not self.span.min <= position < self.span.max:
            return None
        return self.message_of(self._ref(position))

    def message_of(self, ref: RecordRef) -> Message:
        """Return the message that a unit in the span names.

        Raises DamageError unless its record belongs to this queue.
        """
        message = self._log.owned_message(ref, self._owner)
        return message if message is not None else self._explain_mismatch(ref)

    def store_time(self, position: int) -> int:
        """Return the store time of the message at a position in the span, in ms.

        Raises DamageError as ``message_of`` does, but does not read the body.
        """
        ref = self._ref(position)
        found = self._log.owned_store_timestamp(ref, self._owner)
        return found if found is not None else self._explain_mismatch(ref).store_timestamp

    def tags_code(self, tags_code: int) -> int | None:
        """Resolve a tags code that may be an ext address; None if the address has no unit (§6)."""
        if tags_code > EXT_ADDRESS_MAX:
            return tags_code
        at = tags_code - EXT_ADDRESS_BASE
        if self._ext is None or self._ext.find(at) is None:
            link = link_below(self._ext_queues, self._ext_directory)
            if link is not None:
                raise link
            size = self._log.config.mapped_file_size_consume_queue_ext
            self._ext = MappedFileQueue([self._ext_directory], size)
        file = self._ext.find(at)
        if file is None or at - file.base + EXT_UNIT_SIZE > file.length:
            return None
        view = file.view()[at - file.base : at - file.base + EXT_UNIT_SIZE]
        size, found, *_ = view.view(EXT_UNIT)[0].tolist()
        return int(found) if size > 0 else None

    def _ref(self, position: int) -> RecordRef:
        return RecordRef(*self._queue.ordered_unit(position, self.span.max), position)

    def _explain_mismatch(self, ref: RecordRef) -> Message:
        """Return the message of a record that does not match its unit exactly, or raise."""
        if ref.offset < self._log.min_offset():
            reason = f"the unit names offset {ref.offset}, but the log begins after it"
            raise self._damage(ref, reason)
        message = self._log.message(ref.offset, ref.size)
        if not self._ownership.owns(message):
            owner = f"queue {message.queue_id} of topic {message.topic!r}"
            raise self._damage(ref, f"the unit's record belongs to {owner}")
        is_main = (message.topic, message.queue_id) == (self.topic, self.queue_id)
        # A broker drops a message whose queue offset is below the queue's end, but not an offset 0.
        if is_main and 0 < message.queue_offset < ref.position:
            reason = f"the unit's record has queue offset {message.queue_offset}"
            raise self._damage(ref, reason)
        return message

    def has_record(self, unit: Unit) -> bool:
        """Return whether the log holds all of a unit's record and this queue owns it."""
        return self._ownership.has_record(unit)

    def _damage(self, ref: RecordRef, reason: str) -> DamageError:
        return self._queue.damage(ref.position, reason)


@dataclass(frozen=True, slots=True)
class _Ownership:
    """Which records of a log belong to a queue.

    It does not refer to the reader, so that a reader's files are closed as soon as it is dropped.
    """

    log: CommitLog
    topic: str
    queue_id: int

    def has_record(self, unit: Unit) -> bool:
        """Return whether the log holds all of a unit's record and the queue owns it."""
        if unit.size <= 0 or not self.log.is_within(unit.commit_log_offset + unit.size):
            return False
        message = self.log.find_message(unit.commit_log_offset)
        return message is not None and message.size == unit.size and self.owns(message)

    def owns(self, message: Message) -> bool:
        """Return whether a message belongs to the queue, directly or by multi-dispatch (§5.4)."""
        if message.topic == self.topic:
            return message.queue_id == self.queue_id
        return self.topic in java.split(message.properties.get(_MULTI_DISPATCH, ""), ",")
