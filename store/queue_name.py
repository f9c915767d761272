"""Which topic names can be directories (the scan kernel has a twin in ``store.kernels.topic``)."""

from __future__ import annotations

from pathlib import Path

from store.errors import DamageError

TOPIC_BYTES_MAX = 255  # what a broker allows, and what a file name can hold


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
    """Raise DamageError if the topic cannot name a directory below ``directory``."""
    if not can_name_directory(topic):
        raise DamageError(directory, offset, f"topic {topic[:300]!r} cannot name a directory")
