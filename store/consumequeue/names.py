"""Names of topics and queues: which are valid, which a directory contains, which are system topics.

The scan kernel has a twin of ``can_name_directory`` in ``store.kernels.topic``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from store import java
from store.errors import ConfigError, DamageError, StoreIOError, shown
from store.io.checked_json import Check, Count, Int32
from store.io.listing import list_directories
from store.io.mapped_file import is_mapped_file_name
from store.layout import CONSUME_QUEUE_DIR, SCHEDULE_TOPIC, TOPIC_BYTES_MAX

# Java parity: TopicValidator's system topics, those of 4.x included.
SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "TBW102",
        "OFFSET_MOVED_EVENT", "BenchmarkTest", "CHECKPOINT_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "rmq_sys.")


def can_name_directory(topic: str) -> bool:
    """Return whether a topic can name the directory of its queues.

    A broker rejects other names when messages are sent. Here they can come from a damaged or
    hostile log, and must not escape it. Java parity: up to 5.1.1 a multi-dispatch name with
    slashes is a path of several directories.
    """
    try:
        size = len(topic.encode("utf-8"))
    except UnicodeEncodeError:  # a lone surrogate
        return False
    if "\0" in topic or size > TOPIC_BYTES_MAX:
        return False
    return all(part not in ("", ".", "..") for part in topic.split("/"))


def check_topic(topic: str, directory: Path, offset: int) -> None:
    """Raise DamageError if the topic cannot name a directory below ``directory``.

    Raises UnicodeEncodeError if the file system encoding cannot represent it: a test of such a path
    would report that it does not exist.
    """
    if not can_name_directory(topic):
        raise DamageError(directory, offset, f"topic {topic[:300]!r} cannot name a directory")
    os.fsencode(topic)


def list_topics(directory: Path, links: list[StoreIOError] | None = None) -> Iterator[str]:
    """Yield possible topics below ``consumequeue``; one with slashes is several directories.

    Raises StoreIOError; errors about symbolic links are appended to ``links`` if it is given.
    """
    pending = [(directory, "")]
    while pending:
        parent, prefix = pending.pop()
        for path in list_directories(parent, links):
            if not prefix or java.parse_int(path.name) is None:
                yield prefix + path.name
                pending.append((path, f"{prefix}{path.name}/"))


def list_queues(directory: Path, kind: str = CONSUME_QUEUE_DIR) -> Iterator[tuple[str, int]]:
    """Yield topic and id of each queue of a directory; ``kind`` may be ``consumequeue_ext``.

    A queue is a directory with a number as its name that holds mapped files or is empty. A topic
    with slashes is several directories. Raises StoreIOError, also for a symbolic link.
    """
    pending = [(directory / kind, "")]
    while pending:
        parent, prefix = pending.pop()
        for path in list_directories(parent):
            queue_id = java.parse_int(path.name)
            if prefix and queue_id is not None and _is_queue(path):
                yield prefix, queue_id
            else:
                pending.append((path, f"{prefix}/{path.name}" if prefix else path.name))


def queue_directory(parent: Path, topic: str, queue_id: int) -> Path:
    """Return the directory of a queue; ``parent`` is ``consumequeue`` or ``consumequeue_ext``."""
    return parent / topic / str(queue_id)


def _is_queue(directory: Path) -> bool:
    names = os.listdir(directory)
    return not names or any(is_mapped_file_name(name) for name in names)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is a system topic; those of consumer groups (%RETRY%…) are not."""
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def check_topic_pattern(pattern: str, option: str) -> None:
    """Raise ConfigError, which names the option, for a pattern that cannot select topics.

    Python warns of a pattern that it reads otherwise than Java, whose patterns Kafka uses.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        raise ConfigError(f"{option} {shown(pattern)} is not a regular expression: {e}") from e
    except Warning as e:
        raise ConfigError(
            f"{option} {shown(pattern)} is ambiguous: {e}. Java reads [ and && in a class as sets "
            "of characters: put a backslash before [, &, -, ~ or | there"
        ) from e


def is_queue_name(name: str) -> bool:
    """Return whether a string is ``TOPIC/QUEUE_ID``."""
    topic, _, queue_id = name.rpartition("/")
    number = java.parse_int(queue_id)
    return can_name_directory(topic) and number is not None and str(number) == queue_id


def _has_both_counts(counts: dict[str, int]) -> bool:
    return counts.keys() == {"repeated", "gaps"}


Topic = Annotated[str, Check("a topic that can name a directory", can_name_directory)]
QueueId = Int32
QueueName = Annotated[str, Check("TOPIC/QUEUE_ID", is_queue_name)]
DropCounts = Annotated[dict[str, Count], Check("an object of repeated and gaps", _has_both_counts)]
Drops = dict[QueueName, DropCounts]  # the effects of a broker's rules, by queue
