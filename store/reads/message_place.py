"""Where queue and index refer to a message, and which messages are beside it in its queue."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.dispatch_request import is_queued
from store.commitlog.record import Message
from store.consumequeue.reader import QueueReader
from store.index.file import IndexFile, index_key_hash
from store.layout import SYS_ROLLBACK, SYS_TRANSACTION
from store.reads.query_message import keys_of

_ENTRIES_MAX = 20_000  # of one key's chain that are looked at


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A message's unit: its position in the queue, its file and its first byte there.

    ``previous`` and ``next`` are the physical offsets of the messages beside it, None if there is
    none.
    """

    position: int
    path: Path
    byte: int
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """An index entry of a message: the key, the file, and the number of the entry in it."""

    key: str
    path: Path
    entry: int


def find_in_queue(message: Message, queue: QueueReader) -> QueuePlace | None:
    """Return the place of a message in its queue, None if no unit refers to it.

    Searches by physical offset: units are in the order of the log, and after a gap the queue offset
    of a message is not its position.
    """
    begin, end, offset = queue.span.min, queue.span.max, message.commit_log_offset
    at = begin + bisect_left(range(begin, end), offset, key=queue.unit_offset)
    if at >= end or queue.unit_offset(at) != offset:
        return None
    path, byte = queue.unit_in_file(at)
    previous = queue.unit_offset(at - 1) if at > begin else None
    following = queue.unit_offset(at + 1) if at + 1 < end else None
    return QueuePlace(at, path, byte, previous, following)


def find_in_index(message: Message, files: list[IndexFile]) -> list[IndexPlace]:
    """Return the index entries of a message; ``files`` are the valid ones, newest first."""
    keys = keys_of(message) if message.sys_flag & SYS_TRANSACTION != SYS_ROLLBACK else []
    return [place for key in dict.fromkeys(keys) for place in _entries(message, key, files)]


def why_not_in_queue(message: Message, reput_from_offset: int | None, *, is_queue: bool) -> str:
    """Return why no unit of its queue refers to a message."""
    if not is_queued(message.sys_flag):
        return "a prepared or rolled back message of a transaction is in no queue"
    if reput_from_offset is not None and message.commit_log_offset >= reput_from_offset:
        return f"not dispatched yet: the log is dispatched up to offset {reput_from_offset}"
    if not is_queue:
        return "its queue does not exist"
    return (
        "its queue has no unit for it: not dispatched yet, or dropped by the broker's own rules "
        "because its queue offset was below the queue's end"
    )


def _entries(message: Message, key: str, files: list[IndexFile]) -> list[IndexPlace]:
    key_hash = index_key_hash(message.topic, key)
    seen = 0
    for file in files:
        for number, entry in file.select_entries(key_hash):
            seen += 1
            if entry.phy_offset == message.commit_log_offset:
                return [IndexPlace(key, file.path, number)]
            if entry.phy_offset < message.commit_log_offset or seen >= _ENTRIES_MAX:
                return []
    return []
