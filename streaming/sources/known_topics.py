"""The check that a store holds the topics that a read subscribes to.

A broker lists its topics in ``config/topics.json`` and has a directory of queues for each. Neither
proves that a topic is *not* in the log: a store may consist of a log alone, and a deleted topic
still has messages. So a batch read of topics that are listed nowhere searches the log for their
first message. Only a log read to its end without finding one proves that the topics are unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from store.broker_files import read_topic_configs
from store.commitlog.reader.log_batches import LogBatches
from store.consumequeue.names import can_name_directory
from store.errors import StoreIOError, UnknownTopicError
from store.layout import CONSUME_QUEUE_DIR

_log = logging.getLogger(__name__)


def check_topics(topics: tuple[str, ...], stores: Mapping[Path, LogBatches]) -> None:
    """Raise UnknownTopicError if no store holds any of the topics; warn if some are unlisted.

    Damage makes the search inconclusive: no error is raised here, the read reports the damage.
    """
    unlisted = _unlisted(topics, stores)
    if not unlisted:
        return
    if len(unlisted) < len(topics):
        warn_of_unlisted(topics, stores)
    elif all(log.holds_topics(frozenset(topics)) is False for log in stores.values()):
        names, where = ", ".join(map(repr, topics)), ", ".join(map(str, stores))
        raise UnknownTopicError(
            f"option 'subscribe': {where} does not hold topic {names}: neither its log nor "
            "config/topics.json nor consumequeue/ names it"
        )


def warn_of_unlisted(topics: tuple[str, ...], stores: Collection[Path]) -> None:
    """Warn about the topics that only the logs might hold."""
    for topic in _unlisted(topics, stores):
        _log.warning(
            "option 'subscribe': neither config/topics.json nor consumequeue/ of %s names topic "
            "%r: the read returns no rows of it unless the log holds it",
            ", ".join(map(str, stores)),
            topic,
        )


def _unlisted(topics: tuple[str, ...], stores: Collection[Path]) -> list[str]:
    return [topic for topic in topics if not any(is_listed(path, topic) for path in stores)]


def is_listed(store_root: Path, topic: str) -> bool:
    """Return whether the broker's files have a topic's queues or its settings."""
    if can_name_directory(topic) and (store_root / CONSUME_QUEUE_DIR / topic).is_dir():
        return True
    try:
        return topic in (read_topic_configs(store_root).content or {})
    except StoreIOError:
        return False
