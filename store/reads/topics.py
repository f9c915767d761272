"""An overview of a store: topics, queues, and the lag of consumer groups and delay levels.

A committed offset is a position in its queue. A lag in messages is the queue's end minus that
offset, as a broker counts it: it includes messages that have expired since. A lag in time is the
difference of two store times, of the first message not yet consumed and of the queue's newest
message. It does not use the local clock, so a copied store keeps its lag.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from store.broker_files import (
    CommittedOffset,
    ConfigFile,
    TopicConfig,
    read_consumer_offsets,
    read_delay_offsets,
    read_topic_configs,
)
from store.consumequeue.names import Drops
from store.errors import DamageError, StoreError, StoreIOError
from store.layout import SCHEDULE_TOPIC
from store.output.progress import read_progress_view
from store.reads.message_store import MessageStore

_NONE = -1  # a broker's "no time"


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
    earliest_timestamp: int = _NONE
    latest_timestamp: int = _NONE
    repeated: int | None = None
    gaps: int | None = None
    damage: StoreError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: the broker's configuration of it, None if unknown, and its queues."""

    topic: str
    config: TopicConfig | None
    queues: tuple[QueueState, ...]


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


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole overview.

    ``files`` are the broker's own files as read, with what was missing or torn. ``links`` are the
    errors of symbolic links in place of a topic's or a queue's directory.
    """

    topics: tuple[TopicState, ...]
    groups: tuple[tuple[str, Lag], ...]
    delay_levels: tuple[tuple[int, Lag], ...]
    files: tuple[ConfigFile[Any], ...]
    links: tuple[StoreIOError, ...] = ()


def describe_topics(store: MessageStore) -> Overview:
    """Read all queues and the broker's own files. Raises DamageError, StoreIOError.

    A damaged or unreadable queue or a symbolic link is reported in the result instead.
    """
    root = store.store_root
    configs = read_topic_configs(root)
    consumers = read_consumer_offsets(root, enable_lmq=store.config.enable_lmq)
    delays = read_delay_offsets(root)
    known = configs.content or {}
    progress = read_progress_view(store.output)
    drops = None if progress is None else progress.drops
    links: list[StoreIOError] = []
    topics = tuple(
        TopicState(
            topic, known.get(topic), _queues(store, topic, store.queue_ids(topic, links), drops)
        )
        for topic in sorted({*store.topics(links), *known})
    )
    queues = {(q.topic, q.queue_id): q for t in topics for q in t.queues}
    groups = tuple((c.group, _lag(store, queues, c)) for c in _with_uncommitted(consumers, topics))
    levels = tuple(
        (level, _lag(store, queues, CommittedOffset("", SCHEDULE_TOPIC, level - 1, offset)))
        for level, offset in sorted((delays.content or {}).items())
    )
    return Overview(topics, groups, levels, (configs, consumers, delays), _by_path(links))


def _by_path(links: list[StoreIOError]) -> tuple[StoreIOError, ...]:
    """Return one error per link, in order of path."""
    by_path = {link.path: link for link in links}
    return tuple(by_path[path] for path in sorted(by_path))


def describe_queues(store: MessageStore, topic: str, ids: list[int]) -> tuple[QueueState, ...]:
    """Read some queues of a topic. A damaged or unreadable one is reported in the result."""
    progress = read_progress_view(store.output)
    return _queues(store, topic, ids, None if progress is None else progress.drops)


def _queues(
    store: MessageStore, topic: str, ids: list[int], drops: Drops | None
) -> tuple[QueueState, ...]:
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
        _raise_if_busy(e)
        return QueueState(topic, queue_id, damage=e)


def _with_uncommitted(
    consumers: ConfigFile[list[CommittedOffset]], topics: tuple[TopicState, ...]
) -> list[CommittedOffset]:
    """Add an entry for each queue without a commit of a group that has one in the topic."""
    committed = consumers.content or []
    ids = {t.topic: [q.queue_id for q in t.queues] for t in topics}
    offsets = {(c.group, c.topic, c.queue_id): c for c in committed}
    for group, topic in {(c.group, c.topic) for c in committed}:
        for queue_id in ids.get(topic, ()):
            uncommitted = CommittedOffset(group, topic, queue_id, _NONE)
            offsets.setdefault((group, topic, queue_id), uncommitted)
    return [offsets[key] for key in sorted(offsets)]


def _lag(
    store: MessageStore,
    queues: Mapping[tuple[str, int], QueueState],
    committed: CommittedOffset,
) -> Lag:
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
        _raise_if_busy(e)
        return Lag(queue, offset, messages, None, None, expired, e)
    if next_timestamp < 0:  # it has expired since
        return Lag(queue, offset, messages, None, None, expired)
    # At least 0: the clock may have stepped back.
    milliseconds = max(queue.latest_timestamp - next_timestamp, 0)
    return Lag(queue, offset, messages, milliseconds, next_timestamp, expired)


def _raise_if_busy(error: DamageError | StoreIOError) -> None:
    """Raise the error of a root whose files are being replaced: the queue is not damaged."""
    if isinstance(error, StoreIOError) and error.errno == errno.EBUSY:
        raise error
