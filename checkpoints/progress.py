"""The progress record ``OUTPUT/reput/progress``: what has been dispatched and is durable.

It is written after the data it names has been synced, never before. On disk it is two lines: a
JSON object and the CRC-32 of that line in hex. It is replaced atomically.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.disk import Disk
from store.dispatched import (
    FORMAT_VERSION,
    PROGRESS,
    Fingerprint,
    decode_values,
    read_progress_file,
)

REPUT_DIR = PROGRESS.parent


@dataclass(frozen=True, slots=True)
class LostRange:
    """``[begin, end)`` of the log was skipped (failOnDataLoss=false), and why."""

    begin: int
    end: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a root is, and what it was made of. Offsets are physical offsets of the log."""

    reput_from_offset: int
    begin_offset: int  # where the dispatch of this root began
    store: str
    commit_log: str  # where the log lay, as storePathCommitLog; "" for STORE/commitlog
    shape: dict[str, Any]
    last_record: Fingerprint | None = None
    index_file: str = ""
    index_count: int = 0  # entries in that file
    index_msg_timestamp: int = 0
    messages: int = 0
    log_was_clean: bool | None = None  # STORE had no abort, where OUTPUT = STORE
    lost: tuple[LostRange, ...] = ()
    drops: dict[str, dict[str, int]] = field(default_factory=dict)  # "topic/queue" to counts

    @property
    def is_untouched(self) -> bool:
        """Tell whether nothing has been dispatched or skipped yet."""
        return self.reput_from_offset == self.begin_offset


def progress_path(root: Path) -> Path:
    """Return where a root keeps its progress."""
    return root / PROGRESS


def encode_progress(progress: Progress) -> bytes:
    """Encode as two lines."""
    values = {"format": FORMAT_VERSION, **dataclasses.asdict(progress)}
    line = json.dumps(values, sort_keys=True, ensure_ascii=True).encode()
    return line + b"\n%08x\n" % zlib.crc32(line)


def decode_progress(data: bytes, path: Path) -> Progress:
    """Decode; raises DamageError (naming ``path``), UnsupportedFormatError."""

    def build(values: dict[str, Any]) -> Progress:
        lost = tuple(LostRange(**r) for r in values["lost"])
        return Progress(**(values | {"lost": lost}))

    return decode_values(data, path, build)


def read_progress(root: Path) -> Progress | None:
    """Read a root's progress, None if no dispatch of ours has run on it."""
    path = progress_path(root)
    data = read_progress_file(path)
    return None if data is None else decode_progress(data, path)


def write_progress(root: Path, progress: Progress, disk: Disk) -> None:
    """Replace a root's progress, durably. What it names must be synced already."""
    disk.replace(progress_path(root), encode_progress(progress))
