"""Messages by queue offset, in a broker's batches and with its statuses (format notes §11.1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from store import java
from store.commitlog.commit_log import CommitLog
from store.commitlog.record import Message
from store.commitlog.record_of_unit import RecordRef
from store.consumequeue.files import UnitColumns
from store.consumequeue.reader import QueueReader
from store.errors import ConfigError, shown
from store.layout import CQ_UNIT_SIZE, EXT_ADDRESS_MAX

_ANY_TAG = "*"


class GetMessageStatus(StrEnum):
    """The broker's status names for a read by position."""

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
    """The result of a read; all its offsets are positions, ``next_begin_offset`` is the next one.

    A position is the number of a unit in the queue. ``message_queue_offsets`` are those of the
    messages: after a gap that the broker closed, lower than the ``queue_offset`` of a message.
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Message, ...] = ()
    message_queue_offsets: tuple[int, ...] = ()


class TagFilter(NamedTuple):
    """A tag expression: its tags, None for any, and their hashes."""

    tags: frozenset[str] | None
    hashes: frozenset[int]

    def may_match(self, tags_code: int | None) -> bool:
        """Return whether a unit's message can have one of the tags; None is an unknown code."""
        return tags_code is None or java.int32(tags_code) in self.hashes

    def matches(self, message: Message) -> bool:
        """Return whether a message has one of the tags: a different tag may have the same hash."""
        return self.tags is None or message.tags in self.tags


def parse_tags(expression: str) -> TagFilter:
    """Parse ``*`` or ``TagA || TagB``. Raises ConfigError if the expression names no tag.

    Java parity: ``FilterAPI.buildSubscriptionData``; an empty expression means ``*``.
    """
    if expression in ("", _ANY_TAG):
        return TagFilter(None, frozenset())
    tags = frozenset(filter(None, (part.strip() for part in expression.split("||"))))
    if not tags:
        raise ConfigError(
            f"tag expression {shown(expression)} names no tag; expected a form like 'TagA || TagB'"
        )
    return TagFilter(tags, frozenset(java.hash_code(tag) for tag in tags))


def get_message(
    queue: QueueReader, log: CommitLog, offset: int, max_count: int, tag_filter: TagFilter
) -> GetMessageResult:
    """Read up to ``max_count`` messages from a position on, within the limits of §11.1.

    A batch ends with its queue file, at the ``answers`` limits of the settings (by default 32
    messages, 256 KiB, or 800 units to filter); nothing counts as "on disk". Raises DamageError for
    an invalid unit or record. Each message returned has been checked.
    """
    span, limits = queue.span, log.config.answers
    outside = _outside(offset, span.min, span.max, resets_to_min=log.config.version < (4, 9, 4))
    if outside is not None:
        status, next_begin = outside
        next_begin = next_begin if limits.corrects_offset else offset
        return GetMessageResult(status, next_begin, span.min, span.max)
    is_any = tag_filter.tags is None
    # A batch is not full while it is empty.
    count_max = max(1, min(max_count, limits.max_transfer_count))
    filter_max = -(-limits.max_filter_bytes // CQ_UNIT_SIZE)
    units = queue.units(offset, count_max if is_any else max(filter_max, max_count))
    messages: list[Message] = []
    positions: list[int] = []
    size, next_begin = 0, offset
    candidates = zip(
        units.commit_log_offset, units.size, _may_match(queue, units, tag_filter), strict=True
    )
    for position, (commit_log_offset, message_size, may_match) in enumerate(candidates, offset):
        # Java parity: DefaultMessageStore.isTheBatchFull is checked before the filter.
        is_too_large = size + message_size > limits.max_transfer_bytes
        if messages and (len(messages) >= count_max or is_too_large):
            break
        next_begin = position + 1
        if not may_match:
            continue
        message = queue.message_of(RecordRef(commit_log_offset, message_size, position))
        if is_any or tag_filter.matches(message):
            messages.append(message)
            positions.append(position)
            size += message_size
    status = GetMessageStatus.FOUND if messages else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetMessageResult(
        status, next_begin, span.min, span.max, tuple(messages), tuple(positions)
    )


def _may_match(queue: QueueReader, units: UnitColumns, tag_filter: TagFilter) -> list[bool]:
    """Return for each unit whether its message can have one of the tags."""
    if tag_filter.tags is None:
        return [True] * len(units.size)
    codes = units.tags_code
    matches = np.zeros(len(codes), bool)
    low = codes.astype(np.int32)  # Java parity: only these bits are compared
    for tag_hash in tag_filter.hashes:
        matches |= low == tag_hash
    for at in np.flatnonzero(codes <= EXT_ADDRESS_MAX).tolist():
        matches[at] = tag_filter.may_match(queue.tags_code(int(codes[at])))
    return matches.tolist()


def _outside(
    offset: int, first: int, end: int, *, resets_to_min: bool
) -> tuple[GetMessageStatus, int] | None:
    """Return the status of an offset without a message, and the offset to read next."""
    if end == 0:
        return GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < first:
        return GetMessageStatus.OFFSET_TOO_SMALL, first
    if offset == end:
        return GetMessageStatus.OFFSET_OVERFLOW_ONE, offset
    if offset > end:
        # Java parity: up to 4.9.3, a queue that begins at 0 is read from its beginning again.
        next_begin = first if resets_to_min and first == 0 else end
        return GetMessageStatus.OFFSET_OVERFLOW_BADLY, next_begin
    return None
