"""The topics of a log whose broker has lost its ``config/topics.json``.

A topic has as many queues as its highest queue id implies, in the log or in the directories of its
queues. That is a lower bound: a queue without a message leaves no trace. Permissions and attributes
(``message.type``) are not in the log. Not returned are system topics, which a broker creates itself
(``TopicConfigManager``), and lite queues (``%LMQ%…``), which have no entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.consumequeue.names import is_system_topic, list_queues
from store.layout import CONSUME_QUEUE_DIR, LMQ_TOPIC_PREFIX
from store.reads.message_filter import MessageFilter
from store.reads.search import LogSearch, Report


@dataclass(frozen=True, slots=True)
class LogTopics:
    """The number of queues by topic; ``damages`` are the parts of the log that were passed."""

    queue_counts: dict[str, int]
    damages: tuple[Damage, ...]


def topics_from_log(
    store_root: Path, queue_root: Path, config: StoreConfig, report: Report | None = None
) -> LogTopics:
    """Read the whole log, and the names of the queues below ``queue_root``. Raises StoreError."""
    search = LogSearch(store_root, config, MessageFilter(), skip_damage=True)
    highest: dict[str, int] = {}
    if (queue_root / CONSUME_QUEUE_DIR).is_dir():
        for topic, queue_id in list_queues(queue_root):
            highest[topic] = max(queue_id, highest.get(topic, -1))
    for batch in search.batches(("topic", "queue_id")):
        by_topic = pa.Table.from_batches([batch]).group_by("topic").aggregate([("queue_id", "max")])
        for row in by_topic.to_pylist():
            name, queue_id = row["topic"], row["queue_id_max"]
            highest[name] = max(queue_id, highest.get(name, -1))
        if report is not None:
            report(search.end - search.span[0], search.span[1] - search.span[0])
    counts = {
        topic: queue_id + 1
        for topic, queue_id in sorted(highest.items())
        if queue_id >= 0 and not is_system_topic(topic) and not topic.startswith(LMQ_TOPIC_PREFIX)
    }
    return LogTopics(counts, tuple(search.damages))
