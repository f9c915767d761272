"""The lag of a consumer group, or of a delay level, on a queue.

A committed offset is a position in its queue. A lag in messages is the queue's end minus that
offset, as a broker counts it: it includes messages that have expired since. A lag in time is the
difference of two store times, of the first message not yet consumed and of the queue's newest
message. It does not use the local clock, so a copied store keeps its lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from store.broker_files import CommittedOffset, ConfigFile
from store.errors import DamageError, StoreError, StoreIOError
from store.reads.message_store import MessageStore
from store.topics.queue_state import QueueState, raise_if_busy

_NOT_COMMITTED = -1


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a consumer on a queue; fields are None if unknown.

    ``offset`` is the one to resume from, None if none was committed. ``next_timestamp`` is the
    store time of the first message from there on that has not expired. ``expired`` counts the
    messages from there on that have. ``damage`` is why that first message cannot be read.
    """

    queue: QueueState
    offset: int | None
    messages: int | None
    milliseconds: int | None
    next_timestamp: int | None
    expired: int
    damage: StoreError | None = field(default=None, compare=False)


def lag_of(
    store: MessageStore,
    queues: Mapping[tuple[str, int], QueueState],
    committed: CommittedOffset,
) -> Lag:
    """Return the lag of a committed offset; a damaged message is reported in the result."""
    topic, queue_id, offset = committed.topic, committed.queue_id, committed.offset
    queue = queues.get((topic, queue_id)) or QueueState(topic, queue_id)
    if offset < 0 or queue.damage is not None:
        return Lag(queue, offset if offset >= 0 else None, None, None, None, 0)
    next_offset = max(offset, queue.min_offset)
    messages, expired = queue.max_offset - offset, next_offset - offset
    if next_offset >= queue.max_offset:
        return Lag(queue, offset, messages, None if messages > 0 else 0, None, expired)
    try:
        next_timestamp = store.message_store_timestamp(topic, queue_id, next_offset)
    except (DamageError, StoreIOError) as e:
        raise_if_busy(e)
        return Lag(queue, offset, messages, None, None, expired, e)
    if next_timestamp < 0:  # it has expired since
        return Lag(queue, offset, messages, None, None, expired)
    # At least 0: the clock may have stepped back.
    milliseconds = max(queue.latest_timestamp - next_timestamp, 0)
    return Lag(queue, offset, messages, milliseconds, next_timestamp, expired)


def with_uncommitted(
    consumers: ConfigFile[list[CommittedOffset]], queues: Mapping[tuple[str, int], QueueState]
) -> list[CommittedOffset]:
    """Add an entry for each queue without a commit of a group that has one in the topic."""
    committed = consumers.content or []
    ids: dict[str, list[int]] = {}
    for topic, queue_id in queues:
        ids.setdefault(topic, []).append(queue_id)
    offsets = {(c.group, c.topic, c.queue_id): c for c in committed}
    for group, topic in {(c.group, c.topic) for c in committed}:
        for queue_id in ids.get(topic, ()):
            uncommitted = CommittedOffset(group, topic, queue_id, _NOT_COMMITTED)
            offsets.setdefault((group, topic, queue_id), uncommitted)
    return [offsets[key] for key in sorted(offsets)]
