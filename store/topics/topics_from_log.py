"""The topics of a log whose broker has lost its ``config/topics.json``.

A topic has as many queues as its highest queue id implies, in the log or in the directories of its
queues. That is a lower bound: a queue without a message leaves no trace. Permissions and attributes
(``message.type``) are not in the log. Not returned are system topics, which a broker creates itself
(``TopicConfigManager``), and lite queues (``%LMQ%…``), which have no entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from store.commitlog.commit_log import ReportProgress
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.consumequeue.names import is_system_topic, list_queues
from store.io.spilled_totals import GroupTotals
from store.layout import CONSUME_QUEUE_DIR, LMQ_TOPIC_PREFIX
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch

_QUEUES_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class LogTopics:
    """The highest queue id by topic, in order; ``damages`` are the passed parts of the log.

    Topics beyond a limit of memory are in temporary files.
    """

    topics: GroupTotals
    damages: tuple[Damage, ...]

    def queue_counts(self) -> Iterator[tuple[str, int]]:
        """Yield each topic with its number of queues."""
        return ((row["topic"], row["queue_id"] + 1) for row in self.topics.rows())


def topics_from_log(
    store_root: Path, output: Path, config: StoreConfig, report: ReportProgress | None = None
) -> LogTopics:
    """Read the whole log, and the names of the queues below ``queue_root``. Raises StoreError."""
    search = LogSearch(store_root, config, MessageFilter(), skip_damage=True)
    topics = GroupTotals(["topic"], {"queue_id": "max"})
    for requests in search.stretches(report=report):
        used = np.unique(requests.queue)  # the others are those of multi-dispatch
        ids = requests.queue_ids[used].tolist()
        topics.add(_configured(zip((requests.topics[q] for q in used.tolist()), ids, strict=True)))
    if (output / CONSUME_QUEUE_DIR).is_dir():
        queues = list_queues(output)
        while part := list(islice(queues, _QUEUES_AT_ONCE)):
            topics.add(_configured(part))
    topics.sort("topic")
    return LogTopics(topics, tuple(search.damages))


def _configured(queues: Iterable[tuple[str, int]]) -> pa.Table:
    """Return the queues of topics that have an entry in ``topics.json``."""
    kept = [(topic, queue_id) for topic, queue_id in queues if queue_id >= 0 and _has_entry(topic)]
    return pa.table(
        {
            "topic": pa.array([topic for topic, _ in kept], pa.string()),
            "queue_id": pa.array([queue_id for _, queue_id in kept], pa.int64()),
        }
    )


def _has_entry(topic: str) -> bool:
    return not is_system_topic(topic) and not topic.startswith(LMQ_TOPIC_PREFIX)
