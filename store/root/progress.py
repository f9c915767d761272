"""What a reader needs of ``OUTPUT/reput/progress``: settings, and how far the root may be trusted.

The file is encoded as ``store.io.checked_json`` says. It belongs to the package ``checkpoints``, which
writes it; a reader looks at these fields only (promise I8).

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
is_recovering        files are being cut back to this progress, or swapped for rebuilt ones
last_record          offset, size, store_timestamp, body_crc, record_crc of the last record, or null
drops                by "topic/queue" what a broker's rules did to its messages: how many were
                     dropped ("repeated"), and how many lie lower than they say ("gaps")
batch, milestones    a dispatched batch adds one to both, the count of batches and the number of the
                     newest milestone; a rollback, an adoption or a swap only to the count. So the
                     difference is the generation of the files (``ProgressReader``)
===================  =========================================================================
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Annotated, Any, Protocol

from store.config import Shape
from store.consumequeue.names import Drops
from store.errors import DamageError, StoreIOError
from store.index.ends import IndexFileOrNone
from store.io.checked_json import (
    Check,
    Count,
    Crc32,
    Int32,
    MismatchError,
    Offset,
    PathText,
    RecordSize,
    decode_record,
    decode_value,
    read_state_file,
)
from store.io.lock_file import UNKNOWN_OWNER, find_owner
from store.layout import ABORT_FILE, LOCK_FILE

PROGRESS = Path("reput", "progress")
SWAP = Path("reput", "swap")  # is there while rebuilt queues take the places of the old ones
_SWAP_SECONDS, _SWAP_LOOK_SECONDS = 30.0, 0.005  # how long a read waits for a generation
_SWAPPING = "a swap of rebuilt files (reput rebuild)"
_RECOVERING = "a recovery"


def _has_number(milestone: dict[str, Any]) -> bool:
    return type(milestone.get("number")) is int


_Milestone = Annotated[dict[str, Any], Check("a milestone", _has_number)]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells one record from another at the same physical offset; its time is in ms."""

    offset: Offset
    size: RecordSize
    store_timestamp: int
    body_crc: Int32
    record_crc: Crc32  # of all its bytes: that of the body does not protect the properties


@dataclass(frozen=True, slots=True)
class ProgressView:
    """How far a root of ours has been dispatched, and with which settings."""

    reput_from_offset: Offset
    store: PathText
    commit_log: PathText
    shape: Shape
    index_file: IndexFileOrNone
    index_count: Count
    index_first: IndexFileOrNone
    index_files: Count
    is_recovering: bool
    last_record: Fingerprint | None
    drops: Drops
    batch: Count
    milestones: tuple[_Milestone, ...]

    @property
    def generation(self) -> int:
        """How many batches were rolled back or swapped in: they have no milestone."""
        return self.batch - (int(self.milestones[-1]["number"]) if self.milestones else 0)


class ProgressReader:
    """Reads a root's progress, and compares the root with what was read: see ``docs/reads.md``.

    The files of a root belong to one *generation*: dispatching only adds to it, while a swap, an
    adoption or a rollback begins another one.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output / PROGRESS
        self._text, self._swap = str(self._path), str(output / SWAP)  # asked for each read
        self._lock = output / LOCK_FILE
        self._abort = output / ABORT_FILE
        self._data: bytes | None = None
        self._dispatched: ProgressView | None = None

    def read(self) -> ProgressView | None:
        """Return the progress now, the same object while it is unchanged.

        Raises as ``read_progress_view``.
        """
        data = read_state_file(self._path)
        if data != self._data:
            found = None if data is None else decode_progress_view(data, self._path)
            self._data, self._dispatched = data, found
        return self._dispatched

    def is_unchanged(self, dispatched: ProgressView | None) -> bool:
        """Return whether ``dispatched`` is the progress now, and no file is being replaced."""
        return (
            self._dispatched is dispatched
            and read_state_file(self._text) == self._data
            and not os.access(self._swap, os.F_OK)
            and (dispatched is None or not dispatched.is_recovering)
        )

    def is_generation(self, dispatched: ProgressView | None) -> bool:
        """Return whether the root still is of one generation, and no file is being replaced."""
        if self.is_unchanged(dispatched):
            return True
        now = read_progress_view(self._output)
        if now is None or dispatched is None or os.access(self._swap, os.F_OK):
            return False
        return not now.is_recovering and now.generation == dispatched.generation

    def await_generation(self, deadline: float) -> None:
        """Wait while a swap or a recovery replaces files, until a monotonic time.

        Raises StoreIOError (EBUSY) if the owner of the root is dead, or not done by then.
        """
        while (work := self._find_work()) is not None:
            with work.file:
                owner = find_owner(self._lock)
                # Only while the file is there does the answer hold: with the next owner there is
                # another file. Its inode is not used again before it is closed here.
                if work.is_current():
                    if owner is None:
                        raise self._busy(_interrupted(work, self._lock))
                    if time.monotonic() >= deadline:
                        raise self._busy(_in_progress(work, owner))
            time.sleep(_SWAP_LOOK_SECONDS)

    def deadline(self) -> float:
        """Return until when a read that begins to wait now does so."""
        return time.monotonic() + _SWAP_SECONDS

    def replaced_again(self) -> StoreIOError:
        """Return the error for a read that no generation outlived."""
        return self._busy(f"its files were replaced again and again for {_SWAP_SECONDS} s")

    def is_at_rest(self) -> bool:
        """Return whether no owner has written to the root since the last ``read``."""
        return not self._abort.exists() and read_state_file(self._path) == self._data

    def _find_work(self) -> _Work | None:
        """Return what replaces files now; the file that says so is open."""
        for path, what in ((Path(self._swap), _SWAPPING), (self._path, _RECOVERING)):
            try:
                work = _Work(FileIO(path, opener=_open_regular), path, what)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                raise StoreIOError("read", path, e) from e
            if what is _SWAPPING or decode_progress_view(work.file.readall(), path).is_recovering:
                return work
            work.file.close()
        return None

    def _busy(self, reason: str) -> StoreIOError:
        return StoreIOError("read", self._output, OSError(errno.EBUSY, reason))


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True)
class _Work:
    """A swap or a recovery: the open file that says that it is in progress, and its name."""

    file: FileIO
    path: Path
    what: str

    def is_current(self) -> bool:
        """Return whether the path still leads to the file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def since(self) -> str:
        """Return when the file was written, in UTC."""
        written = time.gmtime(os.fstat(self.file.fileno()).st_mtime)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", written)


def _interrupted(work: _Work, lock: Path) -> str:
    return (
        f"{work.what} ({work.path}) that began at {work.since()} was interrupted: no process holds "
        f"{lock}; run reput recover, or start reput dispatch or reput rebuild again"
    )


def _in_progress(work: _Work, owner: int) -> str:
    name = "another process" if owner == UNKNOWN_OWNER else f"process {owner}"
    return (
        f"{work.what} ({work.path}) has been in progress in {name} since {work.since()}; the read "
        f"waited {_SWAP_SECONDS} s; read again when it is done"
    )


def read_progress_view(output: Path) -> ProgressView | None:
    """Read a root's progress, None on a root that no dispatch of ours made.

    Raises DamageError, UnsupportedFormatError for another release's format, StoreIOError.
    """
    path = output / PROGRESS
    data = read_state_file(path)
    return None if data is None else decode_progress_view(data, path)


def decode_progress_view(data: bytes, path: Path) -> ProgressView:
    """Decode; raises DamageError (naming ``path``), UnsupportedFormatError."""
    dispatched = decode_record(data, path, ProgressView, part=True)
    with fields_of(path):
        check_index_fields(dispatched)
        if dispatched.generation < 0:
            raise MismatchError("it is less than the number of the last milestone", "batch")
    return dispatched


class IndexFields(Protocol):
    """Which index files count, as ``ProgressView`` and ``checkpoints.progress`` have it."""

    @property
    def index_first(self) -> str: ...  # noqa: D102 - the class says it
    @property
    def index_file(self) -> str: ...  # noqa: D102 - the class says it
    @property
    def index_files(self) -> int: ...  # noqa: D102 - the class says it
    @property
    def index_count(self) -> int: ...  # noqa: D102 - the class says it
    @property
    def shape(self) -> Shape: ...  # noqa: D102 - the class says it


def check_index_fields(fields: IndexFields) -> None:
    """Raise MismatchError if no set of index files can be what the fields say."""
    first, last, files = fields.index_first, fields.index_file, fields.index_files
    if bool(first) != bool(last) or bool(last) != bool(files):
        raise MismatchError(f"{files} files from {first!r} to {last!r}", "index_files")
    if first > last or (first < last) != (files > 1):
        raise MismatchError(f"{files} files from {first!r} to {last!r}", "index_files")
    most = fields.shape["max_index_num"] if files else 0
    if fields.index_count > most:
        raise MismatchError(f"{fields.index_count} entries, at most {most} fit", "index_count")


@contextmanager
def fields_of(path: Path) -> Iterator[None]:
    """Raise a MismatchError about the fields of a state file as DamageError that names it."""
    try:
        yield
    except MismatchError as e:
        raise DamageError(path, 0, f"the {path.name} record cannot be read: {e}") from e


def decode_fingerprint(values: object) -> Fingerprint | None:
    """Return the fingerprint that a value of JSON holds, None for null. Raises ValueError."""
    found: Fingerprint | None = decode_value(Fingerprint | None, values)
    return found
