"""The batch record ``OUTPUT/reput/batch``: what a root must be cut back to if a batch is cut off.

It is durable before the first byte of the batch is written, and names each queue the batch touches
and the index file in work, as they were. A root whose progress does not yet count the batch may
hold any part of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from checkpoints.progress import REPUT_DIR, Progress, check_progress
from store.consumequeue.ends import QueueEnd
from store.index.ends import CheckedIndexEnd
from store.io.checked_json import BY_POSITION, Count, decode_record, encode_values, read_state_file
from store.io.disk import Disk

BATCH = REPUT_DIR / "batch"


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Where a root is cut back to, until progress counts batch ``number``.

    ``progress`` is what progress is then; None: as it is, which is the case for every batch.
    """

    number: Count
    queues: tuple[Annotated[QueueEnd, BY_POSITION], ...]
    index: CheckedIndexEnd | None  # None: there is no index, or the batch does not touch it
    progress: Progress | None = None


def write_batch(root: Path, record: BatchRecord, disk: Disk) -> None:
    """Write, durably, what the root is cut back to from now on."""
    values = {
        "number": record.number,
        "queues": [[*dataclasses.astuple(end)] for end in record.queues],
        "index": dataclasses.asdict(record.index) if record.index is not None else None,
        "progress": dataclasses.asdict(record.progress) if record.progress is not None else None,
    }
    disk.replace(root / BATCH, encode_values(values))


def read_batch(root: Path) -> BatchRecord | None:
    """Return the last batch's record, None if no batch has begun.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    path = root / BATCH
    data = read_state_file(path)
    if data is None:
        return None
    record = decode_record(data, path, BatchRecord)
    check_progress(record.progress, path)
    return record
