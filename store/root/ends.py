"""Marks: where the files of a root ended at some offset of the log, so they can be cut back to it.

A mark is noted before a batch is written (``ConsumeQueueStore.marks``, ``IndexService.mark``), or
found from the files (``store.root.end_search``). ``store.root.truncation`` cuts files back to marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from store import java
from store.io.checked_json import Check, Count, Position
from store.io.file_system import list_directories
from store.io.mapped_file import is_mapped_file_name
from store.kernels.consume_queue import NO_QUEUE_YET
from store.layout import CQ_UNIT_SIZE
from store.state_names import IndexFileOrNone, QueueId, Topic

INDEX_HEADER_FIELDS = 6


def _is_unit_end(position: int) -> bool:
    return position == NO_QUEUE_YET or position % CQ_UNIT_SIZE == 0


def _is_index_header(header: tuple[int, ...]) -> bool:
    if len(header) != INDEX_HEADER_FIELDS:
        return not header
    slot_count, index_count = header[-2:]
    return -(1 << 31) <= slot_count < 1 << 31 and 1 <= index_count < 1 << 31


UnitEnd = Annotated[Position, Check("the end of a queue's units", _is_unit_end)]
IndexHeader = Annotated[tuple[int, ...], Check("an index file's header", _is_index_header)]


@dataclass(frozen=True, slots=True)
class QueueMark:
    """The end of one queue: of its units and of its files, in bytes; and how many ext units.

    ``end`` and ``allocated`` are -1 for a queue that has no files.
    """

    topic: Topic
    queue_id: QueueId
    end: UnitEnd = NO_QUEUE_YET
    allocated: UnitEnd = NO_QUEUE_YET
    ext_count: Count = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


@dataclass(frozen=True, slots=True)
class IndexMark:
    """The newest index file and its header's fields, in on-disk order; "" and () without files."""

    file: IndexFileOrNone = ""
    header: IndexHeader = ()


def _has_both_or_none(mark: IndexMark) -> bool:
    return bool(mark.file) == bool(mark.header)


CheckedIndexMark = Annotated[IndexMark, Check("an index file and its header", _has_both_or_none)]


def list_queues(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield topic and id of each queue below ``consumequeue`` or ``consumequeue_ext``.

    A queue is a directory named as a number that holds mapped files, or nothing. A topic with
    slashes is several directories. Raises StoreIOError, also for a symbolic link.
    """
    pending = [(directory, "")]
    while pending:
        parent, prefix = pending.pop()
        for path in list_directories(parent):
            queue_id = java.parse_int(path.name)
            if prefix and queue_id is not None and _is_queue(path):
                yield prefix, queue_id
            else:
                pending.append((path, f"{prefix}/{path.name}" if prefix else path.name))


def _is_queue(directory: Path) -> bool:
    names = [p.name for p in directory.iterdir()]
    return not names or any(is_mapped_file_name(name) for name in names)
