"""The check that a store holds the topics that a read subscribes to.

A broker lists its topics in ``config/topics.json`` and has a directory of queues for each. Neither
proves that a topic is *not* in the log: a store may consist of a log alone, and a deleted topic
still has messages. So a batch read of topics that are listed nowhere searches the log for their
first message. Only a log read to its end without finding one proves that the topics are unknown.
"""

from __future__ import annotations

import logging
from pathlib import Path

from store.broker_files import read_topic_configs
from store.errors import StoreIOError, UnknownTopicError
from store.layout import CONSUME_QUEUE_DIR
from streaming.sources.log_stream import LogStream

_log = logging.getLogger(__name__)


def check_topics(store_root: Path, topics: tuple[str, ...], stream: LogStream) -> None:
    """Raise UnknownTopicError if the store holds none of the topics; warn if some are unlisted.

    Damage makes the search inconclusive: no error is raised here, the read reports the damage.
    """
    unlisted = _unlisted(store_root, topics)
    if not unlisted:
        return
    if len(unlisted) < len(topics):
        warn_of_unlisted(store_root, topics)
    elif stream.holds_topics(frozenset(topics)) is False:
        names = ", ".join(map(repr, topics))
        raise UnknownTopicError(
            f"option 'subscribe': {store_root} does not hold topic {names}: neither its log nor "
            "config/topics.json nor consumequeue/ names it"
        )


def warn_of_unlisted(store_root: Path, topics: tuple[str, ...]) -> None:
    """Warn about the topics that only the log might hold."""
    for topic in _unlisted(store_root, topics):
        _log.warning(
            "option 'subscribe': neither config/topics.json nor consumequeue/ of %s names topic "
            "%r: the read returns no rows of it unless the log holds it",
            store_root,
            topic,
        )


def _unlisted(store_root: Path, topics: tuple[str, ...]) -> list[str]:
    try:
        configured = read_topic_configs(store_root).content or {}
    except StoreIOError:
        configured = {}
    queues = store_root / CONSUME_QUEUE_DIR
    return [t for t in topics if t not in configured and not (queues / t).is_dir()]
