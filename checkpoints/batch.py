"""The batch record ``OUTPUT/reput/batch``: what a root must be cut back to if a batch is cut off.

It is durable before the first byte of the batch is written, and names each queue the batch touches
and the index file in work, as they were. A root whose progress does not yet count the batch may
hold any part of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoints.progress import REPUT_DIR, Progress, progress_of
from store.disk import Disk
from store.dispatched import decode_values, encode_values, read_progress_file
from store.marks import IndexMark, QueueMark

BATCH = REPUT_DIR / "batch"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Where a root is cut back to, until progress counts batch ``number``.

    ``progress`` is what progress is then; None: as it is, which is the case for every batch.
    """

    number: int
    queues: tuple[QueueMark, ...]
    index: IndexMark | None  # None: there is no index, or the batch does not touch it
    progress: Progress | None = None


def write_batch(root: Path, record: BatchRecord, disk: Disk) -> None:
    """Write, durably, what the root is cut back to from now on."""
    values = {
        "number": record.number,
        "queues": [[*dataclasses.astuple(mark)] for mark in record.queues],
        "index": dataclasses.asdict(record.index) if record.index is not None else None,
        "progress": dataclasses.asdict(record.progress) if record.progress is not None else None,
    }
    disk.replace(root / BATCH, encode_values(values))


def read_batch(root: Path) -> BatchRecord | None:
    """Return the last batch's record, None if no batch has begun.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    path = root / BATCH
    data = read_progress_file(path)
    return None if data is None else decode_values(data, path, _record_of)


def _record_of(values: dict[str, Any]) -> BatchRecord:
    index, progress = values["index"], values["progress"]
    return BatchRecord(
        number=int(values["number"]),
        queues=tuple(QueueMark(*mark) for mark in values["queues"]),
        index=IndexMark(index["file"], tuple(index["header"])) if index is not None else None,
        progress=progress_of(progress) if progress is not None else None,
    )
