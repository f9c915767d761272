"""Marks: where the files of a root ended at some offset of the log, so they can be cut back to it.

A mark is noted before a batch is written (``ConsumeQueueStore.marks``, ``IndexService.mark``), or
found from the files (``store.find_marks``). ``store.truncation`` cuts files back to marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from store import java
from store.errors import StoreIOError
from store.kernels.consume_queue import NO_QUEUE_YET
from store.mapped_file import is_mapped_file_name

INDEX_HEADER_FIELDS = 6


@dataclass(frozen=True, slots=True)
class QueueMark:
    """The end of one queue: of its units and of its files, in bytes; and how many ext units.

    ``end`` and ``allocated`` are -1 for a queue that has no files.
    """

    topic: str
    queue_id: int
    end: int = NO_QUEUE_YET
    allocated: int = NO_QUEUE_YET
    ext_count: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id."""
        return self.topic, self.queue_id


@dataclass(frozen=True, slots=True)
class IndexMark:
    """The newest index file and its header's fields, in on-disk order; "" and () without files."""

    file: str = ""
    header: tuple[int, ...] = ()


def list_queues(directory: Path) -> Iterator[tuple[str, int]]:
    """Yield topic and id of each queue below ``consumequeue`` or ``consumequeue_ext``.

    A queue is a directory named as a number that holds mapped files, or nothing. A topic with
    slashes is several directories. Raises StoreIOError.
    """
    pending = [(directory, "")]
    while pending:
        parent, prefix = pending.pop()
        for path in _directories(parent):
            queue_id = java.parse_int(path.name)
            if prefix and queue_id is not None and _is_queue(path):
                yield prefix, queue_id
            else:
                pending.append((path, f"{prefix}/{path.name}" if prefix else path.name))


def _is_queue(directory: Path) -> bool:
    names = [p.name for p in directory.iterdir()]
    return not names or any(is_mapped_file_name(name) for name in names)


def _directories(parent: Path) -> list[Path]:
    try:
        return sorted(p for p in parent.iterdir() if p.is_dir())
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreIOError("list", parent, e) from e
