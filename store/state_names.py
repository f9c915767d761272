"""Names in state files: each passes the check that names from a log or a listing pass."""

from __future__ import annotations

from typing import Annotated

from store import java
from store.consumequeue.names import can_name_directory
from store.io.checked_json import Check, Count, Int32
from store.layout import INDEX_FILE_NAME_DIGITS


def is_index_file_name(name: str) -> bool:
    """Return whether a file is named as an index file: 17 digits, ``yyyyMMddHHmmssSSS``."""
    return len(name) == INDEX_FILE_NAME_DIGITS and name.isascii() and name.isdigit()


def is_queue_name(name: str) -> bool:
    """Return whether a text is ``TOPIC/QUEUE_ID``."""
    topic, _, queue_id = name.rpartition("/")
    number = java.parse_int(queue_id)
    return can_name_directory(topic) and number is not None and str(number) == queue_id


def _is_index_file_or_none(name: str) -> bool:
    return not name or is_index_file_name(name)


def _has_both_counts(counts: dict[str, int]) -> bool:
    return counts.keys() == {"repeated", "gaps"}


Topic = Annotated[str, Check("a topic that can name a directory", can_name_directory)]
QueueId = Int32
QueueName = Annotated[str, Check("TOPIC/QUEUE_ID", is_queue_name)]
IndexFileName = Annotated[str, Check("an index file's name (17 digits)", is_index_file_name)]
IndexFileOrNone = Annotated[
    str, Check("an index file's name (17 digits), or empty", _is_index_file_or_none)
]
DropCounts = Annotated[dict[str, Count], Check("an object of repeated and gaps", _has_both_counts)]
Drops = dict[QueueName, DropCounts]  # what a broker's rules did, by queue
