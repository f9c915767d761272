"""The cached overview of a store: topics, queues and lags, listed in the background.

A listing of many queues takes seconds, so pages show the last one. If that one is old, the request
of a page also starts the next one. The bytes of each queue are summed after the listing, only
over the units that were appended since; the files are counted last.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from reput.console.scans.background import BackgroundCache, Found
from store.broker_files import PERM_INHERIT
from store.consumequeue.names import is_system_topic
from store.errors import NoQueuesError, StoreError
from store.layout import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC
from store.reads.message_store import MessageStore
from store.topics.consumer_lag import Lag
from store.topics.overview import Overview, TopicState, describe_topics
from store.topics.queue_state import QueueState
from store.topics.topics_json import config_json, lag_json

Opened = Callable[[], AbstractContextManager[MessageStore]]
Directories = Mapping[str, tuple[Path, ...]]  # by kind of file
_WAIT_SECONDS = 1.0  # for the first listing
_DAMAGES_MAX = 100
_UNITS_PER_READ = 1_000_000  # so that no sum holds up other reads for long
_REPLY_SUFFIX = "_REPLY_TOPIC"  # MixAll.getReplyTopic


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing as of a time (epoch ms): its topics and groups as JSON, or why there is none.

    The objects of topics lack what changes between listings: bytes and rates.
    """

    overview: Overview | None
    error: StoreError | None
    as_of_ms: int
    topics: tuple[dict[str, Any], ...] = ()
    groups: tuple[dict[str, Any], ...] = ()
    damages: tuple[StoreError, ...] = ()


class OverviewCache:
    """Lists a store in the background when a listing is requested and the last one is old."""

    def __init__(self, opened: Opened, directories: Directories) -> None:
        self.files: list[dict[str, Any]] = []  # as of the last listing; empty until counted
        self._opened = opened
        self._directories = directories
        self._cache = BackgroundCache(
            self._list,
            str(directories["consumequeue"][0]),
            then=self._measure,
            age=(2.0, 10.0),
            is_large=False,
        )
        self._has_listed = False
        self._sums: dict[tuple[str, int], tuple[int, int, int]] = {}  # min, max, bytes

    @property
    def is_running(self) -> bool:
        """Whether the store is being listed or measured."""
        return self._cache.is_running

    def get(self, wait: float = _WAIT_SECONDS) -> Listing | None:
        """Return the last listing; without one, wait for it up to some seconds."""
        return _listing_of(self._cache.get(wait))

    def close(self) -> None:
        """Start no further listing; end the sums."""
        self._cache.close()

    def damages(self) -> list[str]:
        """Return what was damaged when the store was last listed."""
        listing = _listing_of(self._cache.last)
        return [] if listing is None else [str(e) for e in listing.damages[:_DAMAGES_MAX]]

    def error(self) -> str | None:
        """Return why queues and groups could not be listed, None if they could."""
        listing = _listing_of(self._cache.last)
        error = None if listing is None else listing.error
        return self._cache.failure if error is None else str(error)

    def has_no_queues(self) -> bool:
        """Return whether the log has no queues, and had none before: lost ones are a problem."""
        listing = _listing_of(self._cache.last)
        error = None if listing is None else listing.error
        return isinstance(error, NoQueuesError) and not self._has_listed

    def queue_bytes(self, topic: str, queue_id: int) -> int | None:
        """Return the bytes of a queue's messages in the log, None if not known yet."""
        found = self._sums.get((topic, queue_id))
        return None if found is None else found[2]

    def topic_bytes(self, queues: tuple[QueueState, ...]) -> int | None:
        """Return the bytes of a topic's messages, None if those of a queue are not known yet."""
        total = 0
        for queue in queues:
            size = self.queue_bytes(queue.topic, queue.queue_id)
            if size is None:
                return None
            total += size
        return total

    def _list(self, now: int, _stop: threading.Event) -> Listing:
        with self._opened() as store:
            listing = _listing(describe_topics(store), now)
        self._has_listed = True
        return listing

    def _measure(self, listing: Listing, closed: threading.Event) -> None:
        with self._opened() as store:
            self._sum(store, listing, closed)
        self.files = [{"kind": k, **_count_files(p)} for k, p in self._directories.items()]

    def _sum(self, store: MessageStore, listing: Listing, closed: threading.Event) -> None:
        topics = listing.overview.topics if listing.overview is not None else ()
        queues = {(q.topic, q.queue_id): q for t in topics for q in t.queues if q.damage is None}
        for key in self._sums.keys() - queues.keys():
            del self._sums[key]
        for key, queue in queues.items():
            if closed.is_set():
                return
            first, end, total = self._sums.get(key, (0, 0, 0))
            if (first, end) == (queue.min_offset, queue.max_offset) and key in self._sums:
                continue
            if key not in self._sums or first != queue.min_offset or end > queue.max_offset:
                end, total = queue.min_offset, 0
            for at in range(end, queue.max_offset, _UNITS_PER_READ):
                stop = min(at + _UNITS_PER_READ, queue.max_offset)
                total += store.message_bytes(*key, at, stop)
            self._sums[key] = queue.min_offset, queue.max_offset, total


# --- objects -------------------------------------------------------------------------------------


def _listing_of(found: Found[Listing] | None) -> Listing | None:
    """Return the listing, or one that says why there is none."""
    if found is None:
        return None
    return found.answer or Listing(None, found.error, found.as_of_ms)


def _listing(overview: Overview, as_of_ms: int) -> Listing:
    lags = [lag for _, lag in (*overview.groups, *overview.delay_levels)]
    queues = (queue for topic in overview.topics for queue in topic.queues)
    damages = (
        *(queue.damage for queue in queues if queue.damage is not None),
        *(lag.damage for lag in lags if lag.damage is not None),
        *overview.links,
    )
    holding = {lag.queue.topic for lag in lags if lag.messages}
    templates = _templates(overview.topics)
    topics = tuple(
        row | {"is_internal": _is_internal(row, templates, holding)}
        for row in map(_topic_json, overview.topics)
    )
    return Listing(overview, None, as_of_ms, topics, _groups(overview), damages)


def _topic_json(topic: TopicState) -> dict[str, Any]:
    queues = [queue for queue in topic.queues if queue.damage is None]
    times = [q.earliest_timestamp for q in queues if q.earliest_timestamp >= 0]
    return {
        "topic": topic.topic,
        "is_system": is_system_topic(topic.topic),
        "config": config_json(topic.config),
        "queue_count": len(topic.queues),
        "messages": sum(q.max_offset - q.min_offset for q in queues),
        "earliest_timestamp": min(times, default=-1),
        "latest_timestamp": max((q.latest_timestamp for q in queues), default=-1),
        "repeated": _total([q.repeated for q in queues]),
        "gaps": _total([q.gaps for q in queues]),
        "damage": [str(q.damage) for q in topic.queues if q.damage is not None][:_DAMAGES_MAX],
    }


def _templates(topics: tuple[TopicState, ...]) -> frozenset[str]:
    """Return the topics from which a broker makes others: named as itself, its cluster, or TBW102.

    Java parity: TopicConfigManager.init gives them PERM_INHERIT, and takes it from what it makes.
    """
    perms = ((t.topic, t.config.perm) for t in topics if t.config is not None)
    return frozenset(topic for topic, perm in perms if perm is not None and perm & PERM_INHERIT)


def _is_internal(row: dict[str, Any], templates: frozenset[str], holding: Set[str]) -> bool:
    """Return whether a topic is only the broker's own: a user needs it neither to send nor to read.

    That is a system topic, unless it holds back delayed or half messages; and without any message,
    a topic of a consumer group, a template, and the cluster's topic for replies.
    """
    topic = row["topic"]
    if row["damage"]:
        return False
    if row["is_system"]:
        return topic not in (SCHEDULE_TOPIC, HALF_TOPIC) or topic not in holding
    is_made = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or topic in templates
    return not row["messages"] and (is_made or topic.removesuffix(_REPLY_SUFFIX) in templates)


def _groups(overview: Overview) -> tuple[dict[str, Any], ...]:
    """Return the lag of each group by topic, the largest first."""
    lags = sorted(overview.groups, key=_group_and_topic)
    found = [
        group_json(group, topic, [lag for _, lag in rows])
        for (group, topic), rows in groupby(lags, key=_group_and_topic)
    ]
    return tuple(sorted(found, key=lambda g: (-(g["lag"] or 0), g["group"], g["topic"])))


def group_json(group: str, topic: str, lags: list[Lag]) -> dict[str, Any]:
    """Return the lag of a group in a topic: the sum of its messages, the longest of its times."""
    times = [lag.milliseconds for lag in lags if lag.milliseconds is not None]
    damages = [lag.damage or lag.queue.damage for lag in lags]
    return {
        "group": group,
        "topic": topic,
        "queues": len(lags),
        "lag": _total([lag.messages for lag in lags]),
        "lag_ms": max(times, default=None),
        "uncommitted": sum(lag.offset is None for lag in lags),
        "expired": sum(lag.expired for lag in lags),
        "damage": [str(damage) for damage in damages if damage is not None],
        "by_queue": [lag_json(lag) for lag in lags],
    }


def _group_and_topic(row: tuple[str, Lag]) -> tuple[str, str]:
    return row[0], row[1].queue.topic


def _total(counts: list[int | None]) -> int | None:
    """Return the sum of the known counts, None if none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _count_files(paths: tuple[Path, ...]) -> dict[str, int]:
    """Return number, length and allocated bytes of the files below directories."""
    count = length = allocated = 0
    for path in paths:
        for parent, _, names in os.walk(path):
            for name in names:
                try:
                    found = os.lstat(os.path.join(parent, name))
                except OSError:
                    continue  # deleted since
                count, length = count + 1, length + found.st_size
                allocated += found.st_blocks * 512
    return {"count": count, "bytes": length, "allocated_bytes": allocated}
