"""The broker's ``checkpoint`` file: store times up to which data is safe (format notes §9)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from store.errors import DamageError
from store.io.checked_json import read_state_file
from store.io.disk import Disk
from store.layout import CHECKPOINT, CHECKPOINT_FILE, CHECKPOINT_SIZE


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Fields in on-disk order; timestamps are store times in ms."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0  # of the last dispatched record, since 5.5.0


def decode_checkpoint(data: bytes) -> StoreCheckpoint:
    """Decode the fields at the beginning of a checkpoint file."""
    raw = np.frombuffer(data[: CHECKPOINT.itemsize], CHECKPOINT)[0]
    return StoreCheckpoint(*(int(value) for value in raw.tolist()))


def encode_checkpoint(checkpoint: StoreCheckpoint) -> bytes:
    """Encode as the 4096 bytes that a broker writes, with zeros after the fields."""
    raw = np.array(
        (
            checkpoint.physic_msg_timestamp,
            checkpoint.logics_msg_timestamp,
            checkpoint.index_msg_timestamp,
            checkpoint.master_flushed_offset,
            checkpoint.confirm_phy_offset,
            checkpoint.logics_physical_offset,
        ),
        CHECKPOINT,
    )
    return raw.tobytes().ljust(CHECKPOINT_SIZE, b"\0")


def read_checkpoint(output: Path) -> StoreCheckpoint | None:
    """Read the checkpoint of OUTPUT, None if it has none. Raises DamageError, StoreIOError."""
    path = output / CHECKPOINT_FILE
    data = read_state_file(path)
    if data is None:
        return None
    if len(data) < CHECKPOINT.itemsize:
        reason = f"a checkpoint has {CHECKPOINT_SIZE} bytes, this {len(data)}"
        raise DamageError(path, 0, reason, "delete it; it is not required")
    return decode_checkpoint(data)


def write_checkpoint(output: Path, checkpoint: StoreCheckpoint, disk: Disk) -> None:
    """Replace the checkpoint of OUTPUT, durably."""
    disk.replace(output / CHECKPOINT_FILE, encode_checkpoint(checkpoint))
