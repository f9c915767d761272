"""Messages by queue offset, in a broker's batches and with its statuses (format notes §11.1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from store import java
from store.errors import ConfigError
from store.log_reader import LogReader
from store.queue_reader import QueueReader
from store.record import Message

_ANY_TAG = "*"
_FILTER_UNITS_MAX = 800  # maxFilterMessageSize is 16000 bytes of units
_BATCH_BYTES_MAX = 256 * 1024  # maxTransferBytesOnMessageInMemory
_BATCH_COUNT_MAX = 32  # maxTransferCountOnMessageInMemory


class GetMessageStatus(StrEnum):
    """The broker's names for what a read by queue offset found."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class GetMessageResult:
    """What a read found; offsets are queue offsets, ``next_begin_offset`` is where to go on."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()


class TagFilter(NamedTuple):
    """A tag expression: its tags, None for any, and their hashes."""

    tags: frozenset[str] | None
    hashes: frozenset[int]

    def may_match(self, tags_code: int | None) -> bool:
        """Tell whether a unit's message can have one of the tags; None: its code is not known."""
        return tags_code is None or java.int32(tags_code) in self.hashes

    def matches(self, message: Message) -> bool:
        """Tell whether a message is wanted: another tag may have the same hash."""
        return self.tags is None or message.tags in self.tags


def parse_tags(expression: str) -> TagFilter:
    """Parse ``*`` or ``TagA || TagB``. Raises ConfigError if it names no tag.

    Java parity: ``FilterAPI.buildSubscriptionData``; an empty expression means ``*``.
    """
    if expression in ("", _ANY_TAG):
        return TagFilter(None, frozenset())
    tags = frozenset(filter(None, (part.strip() for part in expression.split("||"))))
    if not tags:
        raise ConfigError(f"tag expression {expression!r} names no tag; it is like 'TagA || TagB'")
    return TagFilter(tags, frozenset(java.hash_code(tag) for tag in tags))


def get_message(
    queue: QueueReader, log: LogReader, offset: int, max_count: int, tag_filter: TagFilter
) -> GetMessageResult:
    """Read up to ``max_count`` messages from a queue offset on, by the limits of §11.1.

    A batch ends with its queue file, at 32 messages or 256 KiB, and after 800 units; nothing
    counts as "on disk". Raises DamageError for a unit or a record that is not as it must be.
    """
    span = queue.span
    outside = _outside(offset, span.min, span.max, resets_to_min=log.config.version < (4, 9, 4))
    if outside is not None:
        return GetMessageResult(*outside, span.min, span.max)
    units = queue.units(offset, max(_FILTER_UNITS_MAX, max_count))
    status, next_begin = GetMessageStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset)
    found: list[Message] = []
    size, readable_from = 0, 0
    for index, unit in enumerate(units, offset):
        if found and _is_full(len(found), size + unit.size, max_count):
            break
        next_begin = index + 1
        if unit.commit_log_offset < readable_from:
            continue
        if not found:
            status = GetMessageStatus.NO_MATCHED_MESSAGE
        if tag_filter.tags is not None and not tag_filter.may_match(queue.tags_code(unit)):
            continue
        message = queue.message(index, unit)
        if message is None:
            if not found:
                status = GetMessageStatus.MESSAGE_WAS_REMOVING
            readable_from = log.roll_next_file(unit.commit_log_offset)
        elif tag_filter.matches(message):
            status = GetMessageStatus.FOUND
            found.append(message)
            size += unit.size
    return GetMessageResult(status, next_begin, span.min, span.max, tuple(found))


def _outside(
    offset: int, first: int, end: int, *, resets_to_min: bool
) -> tuple[GetMessageStatus, int] | None:
    """Return the status of an offset that has no message, and where to go on."""
    if end == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < first:
        return GetMessageStatus.OFFSET_TOO_SMALL, first
    if offset == end:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > end:
        # Java parity: up to 4.9.3 a queue that begins at 0 is begun again.
        next_begin = first if resets_to_min and first == 0 else end
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, next_begin
    return None


def _is_full(count: int, size_with_next: int, max_count: int) -> bool:
    """Java parity: ``DefaultMessageStore.isTheBatchFull``, for a batch that is not empty."""
    return count >= min(max_count, _BATCH_COUNT_MAX) or size_with_next > _BATCH_BYTES_MAX
