"""Topics, queues, and how far consumer groups and delay levels are: a store at a glance.

A lag in messages is the queue's end less the offset gone on from, as a broker counts it: messages
that have expired meanwhile are in it. A lag in time lies between two store times, that of the
first message not consumed yet and that of the queue's newest: no clock of this machine is asked,
so a copied store has the lag it had.
"""

from __future__ import annotations

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
from store.errors import DamageError, StoreError, StoreIOError
from store.layout import SCHEDULE_TOPIC
from store.reads.message_store import MessageStore
from store.root.progress import read_progress_view

_NONE = -1  # a broker's "no time"
_Drops = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue: offsets from ``min`` to ``max``, exclusive, have a message; times are ms or -1.

    A broker's own rules dropped ``repeated`` messages and placed ``gaps`` lower than their queue
    offsets say; None where that is not known. Of a damaged queue ``damage`` tells what is wrong,
    and the rest means nothing.
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
    """A topic: what the broker configured, None if it is not known, and its queues."""

    topic: str
    config: TopicConfig | None
    queues: tuple[QueueState, ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader of a queue is; its parts are None where they are not known.

    ``offset`` is the one to go on from, None if none was committed. ``next_timestamp`` is the store
    time of the first message from there on that is still there. ``expired`` counts the messages
    that are gone from there. ``damage`` is why that first message cannot be read.
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
    """All of it. The files say what was missing or torn among the broker's own.

    ``links`` are the errors of symbolic links in place of a topic's or a queue's directory.
    """

    topics: tuple[TopicState, ...]
    groups: tuple[tuple[str, Lag], ...]
    delay_levels: tuple[tuple[int, Lag], ...]
    files: tuple[ConfigFile[Any], ...]
    links: tuple[StoreIOError, ...] = ()


def describe_topics(store: MessageStore) -> Overview:
    """Look at all queues and at the broker's own files. Raises DamageError, StoreIOError.

    A damaged or unreadable queue and a symbolic link stop nothing: each is reported.
    """
    root = store.store_root
    configs = read_topic_configs(root)
    consumers = read_consumer_offsets(root, enable_lmq=store.config.enable_lmq)
    delays = read_delay_offsets(root)
    known = configs.content or {}
    dispatched = read_progress_view(store.output)
    drops = None if dispatched is None else dispatched.drops
    links: list[StoreIOError] = []
    topics = tuple(
        TopicState(topic, known.get(topic), _queues(store, topic, drops, links))
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
    """Return the errors of links by path, one each."""
    found = {link.path: link for link in links}
    return tuple(found[path] for path in sorted(found))


def _queues(
    store: MessageStore, topic: str, drops: _Drops | None, links: list[StoreIOError]
) -> tuple[QueueState, ...]:
    queues = (_queue_state(store, topic, queue_id) for queue_id in store.queue_ids(topic, links))
    if drops is None:
        return tuple(queues)
    return tuple(
        replace(q, repeated=found.get("repeated", 0), gaps=found.get("gaps", 0))
        for q, found in ((q, drops.get(f"{topic}/{q.queue_id}", {})) for q in queues)
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
        return QueueState(topic, queue_id, damage=e)


def _with_uncommitted(
    consumers: ConfigFile[list[CommittedOffset]], topics: tuple[TopicState, ...]
) -> list[CommittedOffset]:
    """Add the queues in which a group has committed nothing, though in others of the topic."""
    committed = consumers.content or []
    ids = {t.topic: [q.queue_id for q in t.queues] for t in topics}
    there = {(c.group, c.topic, c.queue_id): c for c in committed}
    for group, topic in {(c.group, c.topic) for c in committed}:
        for queue_id in ids.get(topic, ()):
            none = CommittedOffset(group, topic, queue_id, _NONE)
            there.setdefault((group, topic, queue_id), none)
    return [there[key] for key in sorted(there)]


def _lag(
    store: MessageStore, queues: Mapping[tuple[str, int], QueueState], at: CommittedOffset
) -> Lag:
    queue = queues.get((at.topic, at.queue_id)) or QueueState(at.topic, at.queue_id)
    if at.offset < 0 or queue.damage is not None:
        return Lag(queue, at.offset if at.offset >= 0 else None, None, None, None, 0)
    first_left = max(at.offset, queue.min_offset)
    messages, expired = queue.max_offset - at.offset, first_left - at.offset
    if first_left >= queue.max_offset:
        return Lag(queue, at.offset, messages, None if messages > 0 else 0, None, expired)
    try:
        stored = store.message_store_timestamp(at.topic, at.queue_id, first_left)
    except (DamageError, StoreIOError) as e:
        return Lag(queue, at.offset, messages, None, None, expired, e)
    if stored < 0:  # it has expired since
        return Lag(queue, at.offset, messages, None, None, expired)
    behind = max(queue.latest_timestamp - stored, 0)  # a clock may have stepped back
    return Lag(queue, at.offset, messages, behind, stored, expired)
