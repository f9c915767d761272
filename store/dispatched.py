"""What a reader needs of ``OUTPUT/reput/progress``: settings, and how far the root may be trusted.

The file is two lines: a JSON object, and the CRC-32 of that line in hex. It belongs to the package
``checkpoints``, which writes it; a reader looks at these fields only (promise I8).

===================  =========================================================================
field                meaning
===================  =========================================================================
format               2
shape                the settings the files were made with, version included
store, commit_log    the store it was made from; where its log lay, as ``storePathCommitLog``
reput_from_offset    no unit or index entry at or beyond this physical offset counts
index_file           name of the newest index file that counts, "" without one
index_count          entries in that file that count
index_first          name of the oldest index file that counts, "" without one
index_files          how many index files count
is_recovering        what lies behind is being cut off, slots of the index change
last_record          offset, size, store_timestamp, body_crc, record_crc of the last record, or null
drops                by "topic/queue" what a broker's rules did to its messages: how many were
                     dropped ("repeated"), and how many lie lower than they say ("gaps")
===================  =========================================================================
"""

from __future__ import annotations

import errno
import json
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from store.errors import DamageError, StoreIOError, UnsupportedFormatError
from store.layout import ABORT_FILE

PROGRESS = Path("reput", "progress")
SWAP = Path("reput", "swap")  # is there while rebuilt queues take the places of the old ones
FORMAT_VERSION = 2
_SWAP_SECONDS, _SWAP_LOOK_SECONDS = 2.0, 0.005
_PIECE = 1 << 16
_Built = TypeVar("_Built")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells one record from another at the same physical offset; its time is in ms."""

    offset: int
    size: int
    store_timestamp: int
    body_crc: int
    record_crc: int  # of all its bytes: that of the body does not protect the properties


@dataclass(frozen=True, slots=True)
class Dispatched:
    """How far a root of ours has been dispatched, and with which settings."""

    reput_from_offset: int
    store: str
    commit_log: str
    shape: dict[str, Any]
    index_file: str
    index_count: int
    index_first: str
    index_files: int
    is_recovering: bool
    last_record: Fingerprint | None
    drops: dict[str, dict[str, int]]


class ProgressReader:
    """Reads a root's progress again and again: it is decoded when its bytes have changed."""

    def __init__(self, output: Path) -> None:
        self._path = output / PROGRESS
        self._swap = output / SWAP
        self._abort = output / ABORT_FILE
        self._data: bytes | None = None
        self._dispatched: Dispatched | None = None

    def read(self) -> Dispatched | None:
        """Return how far the root is now; raises as ``read_dispatched``."""
        data = read_progress_file(self._path)
        if data != self._data:
            found = None if data is None else decode_dispatched(data, self._path)
            self._data, self._dispatched = data, found
        return self._dispatched

    def await_swap(self) -> bool:
        """Wait while rebuilt queues take the places of the old ones; tell whether any did.

        Some queues are nowhere then. Raises StoreIOError if that does not end.
        """
        deadline, has_waited = time.monotonic() + _SWAP_SECONDS, False
        while self._swap.exists():
            if time.monotonic() > deadline:
                reason = "reput rebuild is at work on it, or was killed: start it again then"
                raise StoreIOError("read", self._swap, OSError(errno.EBUSY, reason))
            time.sleep(_SWAP_LOOK_SECONDS)
            has_waited = True
        return has_waited

    def is_at_rest(self) -> bool:
        """Tell whether nobody has been at work on the root since the last ``read``."""
        return not self._abort.exists() and read_progress_file(self._path) == self._data


def read_dispatched(output: Path) -> Dispatched | None:
    """Read a root's progress, None on a root that no dispatch of ours made.

    Raises DamageError, UnsupportedFormatError for another release's format, StoreIOError.
    """
    path = output / PROGRESS
    data = read_progress_file(path)
    return None if data is None else decode_dispatched(data, path)


def read_progress_file(path: Path) -> bytes | None:
    """Return the file's bytes, None if it is not there. Raises StoreIOError."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            pieces = [os.read(fd, _PIECE)]
            while len(pieces[-1]) == _PIECE:
                pieces.append(os.read(fd, _PIECE))
        finally:
            os.close(fd)
        return b"".join(pieces)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise StoreIOError("read", path, e) from e


def decode_dispatched(data: bytes, path: Path) -> Dispatched:
    """Decode; raises DamageError (naming ``path``), UnsupportedFormatError."""

    def build(values: dict[str, Any]) -> Dispatched:
        known = {field.name: values[field.name] for field in fields(Dispatched)}
        return Dispatched(**known | {"last_record": decode_fingerprint(known["last_record"])})

    return decode_values(data, path, build)


def encode_values(values: dict[str, Any]) -> bytes:
    """Encode a record as two lines: a JSON object and its CRC-32."""
    line = json.dumps({"format": FORMAT_VERSION, **values}, sort_keys=True).encode()
    return line + b"\n%08x\n" % zlib.crc32(line)


def decode_values(data: bytes, path: Path, build: Callable[[dict[str, Any]], _Built]) -> _Built:
    """Check a record and build from its values.

    Raises DamageError (naming ``path``), UnsupportedFormatError.
    """
    line, _, rest = data.partition(b"\n")
    if rest.strip() != b"%08x" % zlib.crc32(line):
        raise DamageError(path, 0, f"the {path.name} record does not match its checksum")
    try:
        values = dict(json.loads(line))
        version = values.pop("format")
        if version != FORMAT_VERSION:
            raise UnsupportedFormatError(
                f"{path} has format {version}; this release reads format {FORMAT_VERSION}"
            )
        return build(values)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise DamageError(path, 0, f"the {path.name} record cannot be read: {e}") from e


def decode_fingerprint(values: dict[str, Any] | None) -> Fingerprint | None:
    """Return the fingerprint that a record holds, None for none."""
    return Fingerprint(**values) if values else None
