"""Detection of a foreign writer: whether a broker has run on OUTPUT since its last dispatch.

A broker writes ``abort`` and ``lock`` when it starts, and ``checkpoint`` while it runs and when it
stops. A PID in ``abort`` proves nothing across containers, so modification times are compared.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from store.errors import StoreIOError
from store.io.checked_json import read_state_file
from store.layout import ABORT_FILE, CHECKPOINT_FILE, LOCK_FILE
from store.output.progress import OwnershipStamp

ANY_ABORT = -1  # ``abort`` is about to be written


def checksum(data: bytes | None) -> str:
    """Return the checksum of a file's content, "" for no file."""
    return "" if data is None else f"{zlib.crc32(data):08x}"


def read_ownership_stamp(output: Path, checkpoint_before: str = "") -> OwnershipStamp:
    """Return the stamp of the files as they are now."""
    return OwnershipStamp(
        checkpoint=checksum(read_state_file(output / CHECKPOINT_FILE)),
        checkpoint_before=checkpoint_before,
        abort_ns=_written_ns(output / ABORT_FILE),
        lock_ns=_written_ns(output / LOCK_FILE),
    )


def detect_foreign_writer(output: Path, known: OwnershipStamp) -> str:
    """Return the evidence that a broker has run on OUTPUT since ``known``; "" if there is none."""
    now = read_ownership_stamp(output)
    if now.checkpoint not in (known.checkpoint, known.checkpoint_before):
        return f"{output / CHECKPOINT_FILE} is not the one that a dispatch wrote"
    if not now.abort_ns or known.abort_ns == ANY_ABORT:
        return ""
    if now.abort_ns != known.abort_ns:
        return f"{output / ABORT_FILE} was written by another program than a dispatch"
    if now.lock_ns != known.lock_ns:
        return f"{output / LOCK_FILE} was written by another program than a dispatch"
    return ""


def _written_ns(path: Path) -> int:
    """Return a file's modification time, 0 if the file is missing. Raises StoreIOError."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError as e:
        raise StoreIOError("read", path, e) from e
