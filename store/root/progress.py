"""The part of ``OUTPUT/reput/progress`` that a reader needs: the settings, and how far to trust it.

``store.io.checked_json`` defines the encoding of the file. The package ``checkpoints`` owns and
writes it; a reader decodes these fields only (promise I8).

===================  =========================================================================
field                meaning
===================  =========================================================================
format               2
shape                the settings that the files were created with, version included
store, commit_log    the store it was made from; the path of its log, as ``storePathCommitLog``
reput_from_offset    units and index entries at or beyond this physical offset are not valid
index_file           name of the newest valid index file, "" without one
index_count          number of valid entries in that file
index_first          name of the oldest valid index file, "" without one
index_files          number of valid index files
is_recovering        files are being truncated to this progress, or swapped for rebuilt ones
last_record          offset, size, store_timestamp, body_crc, record_crc of the last record, or null
drops                by "topic/queue", the effect of the broker's rules: the number of messages
                     dropped ("repeated"), and placed below their queue offset ("gaps")
batch, milestones    the number of batches, and the rollback points. A dispatched batch adds one to
                     ``batch`` and to the number of the newest rollback point; a rollback, an
                     adoption or a swap adds one to ``batch`` only. The difference is therefore the
                     generation of the files (``ProgressReader``)
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
from store.io.file_system import open_regular
from store.io.lock_file import UNKNOWN_OWNER, find_owner
from store.layout import ABORT_FILE, LOCK_FILE

PROGRESS = Path("reput", "progress")
SWAP = Path("reput", "swap")  # exists while rebuilt queues replace the old ones
SWAP_SECONDS, _SWAP_POLL_SECONDS = 30.0, 0.005  # how long a read waits, and how often it polls
_SWAPPING = "a swap of rebuilt files (reput rebuild)"
_RECOVERING = "a recovery"


def _has_number(rollback_point: dict[str, Any]) -> bool:
    return type(rollback_point.get("number")) is int


_RollbackPoint = Annotated[dict[str, Any], Check("a rollback point", _has_number)]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a record among all that could be at its physical offset; the time is in ms."""

    offset: Offset
    size: RecordSize
    store_timestamp: int
    body_crc: Int32
    record_crc: Crc32  # of all its bytes: the body's CRC does not cover the properties


@dataclass(frozen=True, slots=True)
class ProgressView:
    """How far a root has been dispatched, and with which settings."""

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
    milestones: tuple[_RollbackPoint, ...]

    @property
    def generation(self) -> int:
        """Number of rollbacks, adoptions and swaps: they add a batch but no rollback point."""
        return self.batch - (int(self.milestones[-1]["number"]) if self.milestones else 0)

    def continues(self, previous: ProgressView) -> bool:
        """Return whether the files of an earlier progress are unchanged but for what was added.

        A root that was deleted and dispatched again begins at the first generation again.
        """
        return self.generation == previous.generation and self.batch >= previous.batch


class Wait:
    """The time that a read may wait, from now on, while files are replaced."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self._end


class ProgressReader:
    """Reads a root's progress and detects later changes to the root (see ``docs/reads.md``).

    The files of a root belong to one *generation*. Dispatching only adds to it; a swap, an
    adoption or a rollback starts a new one.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output / PROGRESS
        # As strings, because every read uses them.
        self._path_text, self._swap = str(self._path), str(output / SWAP)
        self._lock = output / LOCK_FILE
        self._abort = output / ABORT_FILE
        self._data: bytes | None = None
        self._progress: ProgressView | None = None

    def read(self) -> ProgressView | None:
        """Return the current progress, the same object while it is unchanged.

        Raises as ``read_progress_view``.
        """
        data = read_state_file(self._path)
        if data != self._data:
            progress = None if data is None else decode_progress_view(data, self._path)
            self._data, self._progress = data, progress
        return self._progress

    def is_unchanged(self, progress: ProgressView | None) -> bool:
        """Return whether ``progress`` is current and no file is being replaced."""
        return (
            self._progress is progress
            and read_state_file(self._path_text) == self._data
            and not os.access(self._swap, os.F_OK)
            and (progress is None or not progress.is_recovering)
        )

    def is_same_generation(self, progress: ProgressView | None) -> bool:
        """Return whether the root is still of that generation and no file is being replaced.

        A progress that was recovering is of no generation: some of its files may not have been in
        place, though its swap is over by now.
        """
        if self.is_unchanged(progress):
            return True
        current = read_progress_view(self._output)
        if current is None or progress is None or os.access(self._swap, os.F_OK):
            return False
        is_recovering = progress.is_recovering or current.is_recovering
        return not is_recovering and current.continues(progress)

    def is_deleted(self, progress: ProgressView | None) -> bool:
        """Return whether the root had progress, but has none now: it is only ever renamed over."""
        return progress is not None and read_state_file(self._path_text) is None

    def await_generation(self, wait: Wait) -> None:
        """Wait while a swap or a recovery replaces files.

        Raises StoreIOError (EBUSY) if the owner of the root is dead or takes too long.
        """
        while (replacement := self._find_replacement()) is not None:
            with replacement.file:
                owner = find_owner(self._lock)
                # The owner found is valid only while the file exists: the next owner creates
                # another one. The inode cannot be reused before the file is closed here.
                if replacement.is_current():
                    if owner is None:
                        raise self._busy(_interrupted(replacement, self._lock))
                    if wait.is_over():
                        raise self._busy(_in_progress(replacement, owner, wait))
            time.sleep(_SWAP_POLL_SECONDS)

    def replaced_repeatedly(self, wait: Wait) -> StoreIOError:
        """Return the error for a read whose generation was replaced at every attempt."""
        return self._busy(f"its files were replaced repeatedly for {wait.seconds:g} s")

    def is_at_rest(self) -> bool:
        """Return whether no owner has written to the root since the last ``read``."""
        return not self._abort.exists() and read_state_file(self._path) == self._data

    def _find_replacement(self) -> _Replacement | None:
        """Return the swap or recovery in progress, with its state file open."""
        for path, name in ((Path(self._swap), _SWAPPING), (self._path, _RECOVERING)):
            try:
                file = FileIO(path, opener=_open_file)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                raise StoreIOError("read", path, e) from e
            if name is _SWAPPING or decode_progress_view(file.readall(), path).is_recovering:
                return _Replacement(file, path, name)
            file.close()
        return None

    def _busy(self, reason: str) -> StoreIOError:
        return StoreIOError("read", self._output, OSError(errno.EBUSY, reason))


def _open_file(path: str, flags: int) -> int:
    return open_regular(path, flags | os.O_NOFOLLOW)


@dataclass(frozen=True, slots=True)
class _Replacement:
    """A swap or recovery in progress: its state file, open, and its name for messages."""

    file: FileIO
    path: Path
    name: str

    def is_current(self) -> bool:
        """Return whether the path still refers to the open file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False

    def since(self) -> str:
        """Return when the file was written, in UTC."""
        written = time.gmtime(os.fstat(self.file.fileno()).st_mtime)
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", written)


def _interrupted(work: _Replacement, lock: Path) -> str:
    return (
        f"{work.name} ({work.path}) that began at {work.since()} was interrupted: no process holds "
        f"{lock}; run reput recover, or start reput dispatch or reput rebuild again"
    )


def _in_progress(work: _Replacement, owner: int, wait: Wait) -> str:
    process = "another process" if owner == UNKNOWN_OWNER else f"process {owner}"
    return (
        f"{work.name} ({work.path}) has been in progress in {process} since {work.since()}; the "
        f"read waited {wait.seconds:g} s; retry when it is done"
    )


def read_progress_view(output: Path) -> ProgressView | None:
    """Read a root's progress, None for a root without one (a broker's).

    Raises DamageError, UnsupportedFormatError for another release's format, StoreIOError.
    """
    path = output / PROGRESS
    data = read_state_file(path)
    return None if data is None else decode_progress_view(data, path)


def decode_progress_view(data: bytes, path: Path) -> ProgressView:
    """Decode progress. Raises DamageError (naming ``path``), UnsupportedFormatError."""
    progress = decode_record(data, path, ProgressView, part=True)
    with fields_of(path):
        check_index_fields(progress)
        if progress.generation < 0:
            raise MismatchError("it is less than the number of the last rollback point", "batch")
    return progress


class IndexFields(Protocol):
    """The valid index files, as ``ProgressView`` and ``checkpoints.progress`` record them."""

    @property
    def index_first(self) -> str: ...  # noqa: D102 - see the module
    @property
    def index_file(self) -> str: ...  # noqa: D102 - see the module
    @property
    def index_files(self) -> int: ...  # noqa: D102 - see the module
    @property
    def index_count(self) -> int: ...  # noqa: D102 - see the module
    @property
    def shape(self) -> Shape: ...  # noqa: D102 - see the module


def check_index_fields(fields: IndexFields) -> None:
    """Raise MismatchError if the fields contradict one another."""
    first, last, files = fields.index_first, fields.index_file, fields.index_files
    if bool(first) != bool(last) or bool(last) != bool(files):
        raise MismatchError(f"{files} files from {first!r} to {last!r}", "index_files")
    if first > last or (first < last) != (files > 1):
        raise MismatchError(f"{files} files from {first!r} to {last!r}", "index_files")
    count_max = fields.shape["max_index_num"] if files else 0
    if fields.index_count > count_max:
        raise MismatchError(f"{fields.index_count} entries, at most {count_max} fit", "index_count")


@contextmanager
def fields_of(path: Path) -> Iterator[None]:
    """Turn a MismatchError about the fields of a state file into a DamageError that names it."""
    try:
        yield
    except MismatchError as e:
        raise DamageError(path, 0, f"the {path.name} record cannot be read: {e}") from e


def decode_fingerprint(values: object) -> Fingerprint | None:
    """Decode a fingerprint from its JSON value, None from null. Raises ValueError."""
    fingerprint: Fingerprint | None = decode_value(Fingerprint | None, values)
    return fingerprint
