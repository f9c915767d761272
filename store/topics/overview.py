"""An overview of a store: topics, queues, and the lag of consumer groups and delay levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from store.broker_files import (
    CommittedOffset,
    ConfigFile,
    TopicConfig,
    read_consumer_offsets,
    read_delay_offsets,
    read_topic_configs,
)
from store.errors import StoreIOError
from store.layout import SCHEDULE_TOPIC
from store.output.progress import read_progress_view
from store.reads.message_store import MessageStore
from store.topics.consumer_lag import Lag, lag_of, with_uncommitted
from store.topics.queue_state import QueueState, read_queues


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic: the broker's configuration of it, None if unknown, and its queues."""

    topic: str
    config: TopicConfig | None
    queues: tuple[QueueState, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole overview.

    ``files`` are the broker's own files as read, with what was missing or torn. ``links`` are the
    errors of symbolic links in place of a topic's or a queue's directory. ``groups_problem`` is why
    the offsets of groups cannot be read, or "".
    """

    topics: tuple[TopicState, ...]
    groups: tuple[tuple[str, Lag], ...]
    delay_levels: tuple[tuple[int, Lag], ...]
    files: tuple[ConfigFile[Any], ...]
    links: tuple[StoreIOError, ...] = ()
    groups_problem: str = ""


def describe_topics(store: MessageStore) -> Overview:
    """Read all queues and the broker's own files. Raises DamageError, StoreIOError.

    A damaged or unreadable queue or a symbolic link is reported in the result instead.
    """
    store_root = store.store_root
    configs = read_topic_configs(store_root)
    consumers = read_consumer_offsets(store_root, enable_lmq=store.config.enable_lmq)
    delays = read_delay_offsets(store_root)
    known = configs.content or {}
    progress = read_progress_view(store.output)
    drops = None if progress is None else progress.drops
    links: list[StoreIOError] = []
    topics = tuple(
        TopicState(
            topic, known.get(topic), read_queues(store, topic, store.queue_ids(topic, links), drops)
        )
        for topic in sorted({*store.topics(links), *known})
    )
    queues = {(q.topic, q.queue_id): q for t in topics for q in t.queues}
    groups = tuple((c.group, lag_of(store, queues, c)) for c in with_uncommitted(consumers, queues))
    levels = tuple(
        (level, lag_of(store, queues, CommittedOffset("", SCHEDULE_TOPIC, level - 1, offset)))
        for level, offset in sorted((delays.content or {}).items())
    )
    files = (configs, consumers, delays)
    problem = consumers.problem if consumers.is_unreadable else ""
    return Overview(topics, groups, levels, files, _by_path(links), problem)


def _by_path(links: list[StoreIOError]) -> tuple[StoreIOError, ...]:
    """Return one error per link, in order of path."""
    by_path = {link.path: link for link in links}
    return tuple(by_path[path] for path in sorted(by_path))
