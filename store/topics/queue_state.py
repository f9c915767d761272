"""The state of queues: their positions, store times, and what their rules dropped."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from store.consumequeue.names import Drops
from store.errors import DamageError, StoreError, StoreIOError
from store.output.progress import read_progress_view
from store.reads.message_store import MessageStore

NO_TIME = -1  # a broker's "no time"


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue: positions from ``min`` to ``max``, exclusive, have a message; times are ms or -1.

    By its own rules, the broker dropped ``repeated`` messages and placed ``gaps`` messages below
    their queue offsets; None if unknown. For a damaged queue, ``damage`` is the error and the
    other fields are meaningless.
    """

    topic: str
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    earliest_timestamp: int = NO_TIME
    latest_timestamp: int = NO_TIME
    repeated: int | None = None
    gaps: int | None = None
    damage: StoreError | None = field(default=None, compare=False)


def describe_queues(store: MessageStore, topic: str, ids: list[int]) -> tuple[QueueState, ...]:
    """Read some queues of a topic. A damaged or unreadable one is reported in the result."""
    progress = read_progress_view(store.output)
    return read_queues(store, topic, ids, None if progress is None else progress.drops)


def read_queues(
    store: MessageStore, topic: str, ids: list[int], drops: Drops | None
) -> tuple[QueueState, ...]:
    """Read these queues of a topic; ``drops`` as in progress, None if unknown."""
    queues = (_queue_state(store, topic, queue_id) for queue_id in ids)
    if drops is None:
        return tuple(queues)
    return tuple(
        replace(q, repeated=dropped.get("repeated", 0), gaps=dropped.get("gaps", 0))
        for q, dropped in ((q, drops.get(f"{topic}/{q.queue_id}", {})) for q in queues)
    )


def _queue_state(store: MessageStore, topic: str, queue_id: int) -> QueueState:
    try:
        first = store.min_offset_in_queue(topic, queue_id)
        end = store.max_offset_in_queue(topic, queue_id)
        return QueueState(
            topic,
            queue_id,
            first,
            end,
            store.message_store_timestamp(topic, queue_id, first),
            store.message_store_timestamp(topic, queue_id, end - 1),
        )
    except (DamageError, StoreIOError) as e:
        raise_if_busy(e)
        return QueueState(topic, queue_id, damage=e)


def raise_if_busy(error: DamageError | StoreIOError) -> None:
    """Raise the error of an OUTPUT whose files are being replaced: the queue is not damaged."""
    if isinstance(error, StoreIOError) and error.errno == errno.EBUSY:
        raise error
