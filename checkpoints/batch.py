"""The batch record ``OUTPUT/reput/batch``: a batch has begun to be written, from which offset on.

It is durable before the first byte of the batch is written. A root whose progress is still at that
offset may hold a part of the batch, in whichever of its files.
"""

from __future__ import annotations

import json
from pathlib import Path

from checkpoints.progress import REPUT_DIR
from store.disk import Disk
from store.dispatched import read_progress_file
from store.errors import DamageError

BATCH = REPUT_DIR / "batch"


def write_batch(root: Path, reput_from_offset: int, disk: Disk) -> None:
    """Write, durably, that a batch from this offset on begins."""
    line = json.dumps({"reput_from_offset": reput_from_offset})
    disk.replace(root / BATCH, line.encode() + b"\n")


def read_batch(root: Path) -> int | None:
    """Return the offset from which the last batch began, None if none has.

    Raises DamageError, StoreIOError.
    """
    path = root / BATCH
    data = read_progress_file(path)
    try:
        return None if data is None else int(json.loads(data)["reput_from_offset"])
    except (KeyError, TypeError, ValueError) as e:
        raise DamageError(path, 0, f"the batch record cannot be read: {e}") from e
