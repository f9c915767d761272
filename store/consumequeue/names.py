"""Which topic names can be directories, and which of them there are.

The scan kernel has a twin of the former in ``store.kernels.topic``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from store import java
from store.errors import DamageError, StoreIOError
from store.io.file_system import list_directories
from store.layout import TOPIC_BYTES_MAX


def can_name_directory(topic: str) -> bool:
    """Tell whether a topic can name the directory of its queues.

    A broker refuses other names when messages are sent; here they can come from a damaged or
    hostile log, and must not lead out of the root. Java parity: up to 5.1.1 a multi-dispatch
    name with slashes is a path of several directories.
    """
    try:
        size = len(topic.encode("utf-8"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    if "\0" in topic or size > TOPIC_BYTES_MAX:
        return False
    return all(part not in ("", ".", "..") for part in topic.split("/"))


def check_topic(topic: str, directory: Path, offset: int) -> None:
    """Raise DamageError if the topic cannot name a directory below ``directory``.

    Raises UnicodeEncodeError where the locale's file names cannot hold it: a test of such a path
    would answer that nothing exists there.
    """
    if not can_name_directory(topic):
        raise DamageError(directory, offset, f"topic {topic[:300]!r} cannot name a directory")
    os.fsencode(topic)


def list_topics(directory: Path, links: list[StoreIOError] | None = None) -> Iterator[str]:
    """Yield what can be topics below ``consumequeue``; one with slashes is several directories.

    Raises StoreIOError; errors of symbolic links are appended to ``links`` if that is given.
    """
    pending = [(directory, "")]
    while pending:
        parent, prefix = pending.pop()
        for path in list_directories(parent, links):
            if not prefix or java.parse_int(path.name) is None:
                yield prefix + path.name
                pending.append((path, f"{prefix}{path.name}/"))
