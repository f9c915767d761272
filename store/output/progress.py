"""The progress record ``OUTPUT/reput/progress``: the part of the log that is durably dispatched.

The package ``checkpoints`` owns the file and replaces it atomically, only after the data that it
names has been synced (promise I4). Readers decode the fields of ``ProgressView``, which say how far
to trust the files (promise I8); rollback points are costly to decode where queues have drops.
``store.io.checked_json`` defines the encoding, ``checkpoints.commit`` how a batch advances it.

=====================  =======================================================================
field                  meaning
=====================  =======================================================================
format                 1
shape                  the settings that the files were created with, version included
store, commit_log      the store it was made from; the path of its log, as ``storePathCommitLog``,
                       "" for ``STORE/commitlog``
reput_from_offset      units and index entries at or beyond this physical offset are not valid
index_file             name of the newest valid index file, "" without one
index_count            number of valid entries in that file
index_first            name of the oldest valid index file, "" without one
index_files            number of valid index files
is_recovering          files are being truncated to this progress, or swapped for rebuilt ones
last_record            fingerprint of the last record, or null
drops                  by "topic/queue", the effect of the broker's rules: the number of messages
                       dropped ("repeated"), and placed below their queue offset ("gaps")
batch                  number of batches applied or rolled back, and of adoptions and swaps
generation             ``batch`` when the generation of the files began, with OUTPUT or with its
                       last rollback, adoption or swap (``store.output.progress_reader``)
begin_offset           the physical offset where the dispatch of this OUTPUT began
messages               number of messages dispatched
index_msg_timestamp    end time of the last full index file, in ms
log_was_clean          whether STORE had no ``abort`` when OUTPUT = STORE was taken over, or null
lost                   the ranges of the log that were skipped
rollback_points        ends of earlier batches, oldest first; the last is the end of this record
stamp                  what a broker changes when it runs on OUTPUT
=====================  =======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from store.config import Shape
from store.consumequeue.names import Drops
from store.consumequeue.queue_ends import QueueEnd
from store.index.index_end import IndexFileOrNone
from store.io.checked_json import (
    Checksum,
    Count,
    Crc32,
    Int32,
    MismatchError,
    Offset,
    PathText,
    RecordSize,
    decode_record,
    encode_record,
    read_record,
    span,
)
from store.io.disk import Disk

PROGRESS = Path("reput", "progress")
SWAP = Path("reput", "swap")  # exists while rebuilt queues replace the old ones

TimeNs = Annotated[int, span(-1, (1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identifies a record among all that could be at its physical offset; the time is in ms."""

    offset: Offset
    size: RecordSize
    store_timestamp: int
    body_crc: Int32
    record_crc: Crc32  # of all its bytes: the body's CRC does not cover the properties


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range ``[begin, end)`` of the log that was skipped (failOnDataLoss=false), and why."""

    begin: Offset
    end: Offset
    path: PathText
    reason: str


@dataclass(frozen=True, slots=True)
class RollbackPoint:
    """The end of an earlier batch, to which OUTPUT can be rolled back if the log has changed.

    ``queue_ends`` are of those queues whose units do not show their ends, because the broker's
    rules dropped some of their messages.
    """

    number: Count  # of the batch, not counting batches that were rolled back
    reput_from_offset: Offset
    last_record: Fingerprint
    messages: Count
    drops: Drops
    queue_ends: tuple[QueueEnd, ...]
    index_msg_timestamp: int


@dataclass(frozen=True, slots=True)
class OwnershipStamp:
    """The properties of OUTPUT that a broker changes when it runs there.

    The checksums of ``checkpoint`` and of the version before it, "" for none; the modification
    times of ``abort`` and ``lock`` in ns.
    """

    checkpoint: Checksum = ""
    checkpoint_before: Checksum = ""
    abort_ns: TimeNs = 0
    lock_ns: TimeNs = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """How far OUTPUT has been dispatched, and with which settings: what readers need to know."""

    reput_from_offset: Offset
    store: PathText
    commit_log: PathText
    shape: Shape
    batch: Count = 0
    generation: Count = 0
    is_recovering: bool = False
    last_record: Fingerprint | None = None
    index_file: IndexFileOrNone = ""
    index_count: Count = 0
    index_first: IndexFileOrNone = ""
    index_files: Count = 0
    drops: Drops = field(default_factory=dict)

    def continues(self, previous: ProgressView) -> bool:
        """Return whether the files of an earlier progress are unchanged but for what was added.

        An OUTPUT that was deleted and dispatched again begins at the first generation again.
        """
        return self.generation == previous.generation and self.batch >= previous.batch

    def check_fields(self) -> None:
        """Raise MismatchError if fields contradict one another."""
        if self.generation > self.batch:
            raise MismatchError(f"it began after batch {self.batch}", "generation")
        first, last, files = self.index_first, self.index_file, self.index_files
        is_named = bool(first) == bool(last) == bool(files)
        if not is_named or first > last or (first < last) != (files > 1):
            raise MismatchError(f"{files} files from {first!r} to {last!r}", "index_files")
        count_max = self.shape["max_index_num"] if files else 0
        if self.index_count > count_max:
            raise MismatchError(
                f"{self.index_count} entries, at most {count_max} fit", "index_count"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(ProgressView):
    """The progress of OUTPUT, and its origin."""

    begin_offset: Offset
    messages: Count = 0
    index_msg_timestamp: int = 0
    log_was_clean: bool | None = None
    lost: tuple[LostRange, ...] = ()
    rollback_points: tuple[RollbackPoint, ...] = ()
    stamp: OwnershipStamp = OwnershipStamp()

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has been dispatched or skipped yet."""
        return self.reput_from_offset == self.begin_offset

    @property
    def dispatched_to(self) -> int:
        """The reput offset, or the begin of the first range skipped after the last record."""
        last = self.last_record.offset if self.last_record is not None else -1
        return min([r.begin for r in self.lost if r.begin > last] + [self.reput_from_offset])

    def check_fields(self) -> None:
        """Raise MismatchError if fields contradict one another."""
        ProgressView.check_fields(self)
        end = self.reput_from_offset
        if self.begin_offset > end:
            raise MismatchError(f"{self.begin_offset} is beyond {end}", "begin_offset")
        _check_record_end(self.last_record, end, "last_record")
        _check_rollback_points(self)
        for number, lost in enumerate(self.lost):
            if not lost.begin < lost.end <= end:
                raise MismatchError(f"{lost.begin} to {lost.end} of {end}", f"lost[{number}]")


def _check_rollback_points(progress: Progress) -> None:
    number, offset = -1, progress.begin_offset
    for at, point in enumerate(progress.rollback_points):
        place = f"rollback_points[{at}]"
        if point.number <= number or point.reput_from_offset < offset:
            raise MismatchError("it does not follow the one before", place)
        number, offset = point.number, point.reput_from_offset
        _check_record_end(point.last_record, offset, f"{place}.last_record")
    if offset > progress.reput_from_offset:
        raise MismatchError(f"the last ends at {offset}, beyond the progress", "rollback_points")
    if number > progress.batch:
        raise MismatchError(f"{progress.batch} is less than rollback point {number}", "batch")


def _check_record_end(record: Fingerprint | None, end: int, place: str) -> None:
    if record is not None and record.offset + record.size > end:
        raise MismatchError(f"it ends at {record.offset + record.size}, beyond {end}", place)


def read_progress(output: Path) -> Progress | None:
    """Read the progress of OUTPUT, None if reput has never dispatched into it.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    return read_record(output / PROGRESS, Progress)


def read_progress_view(output: Path) -> ProgressView | None:
    """Read what readers need of the progress of OUTPUT. As ``read_progress``, and cheaper."""
    return read_record(output / PROGRESS, ProgressView, part=True)


def decode_progress_view(data: bytes, path: Path) -> ProgressView:
    """Decode progress. Raises DamageError (naming ``path``), UnsupportedFormatError."""
    return decode_record(data, path, ProgressView, part=True)


def write_progress(output: Path, progress: Progress, disk: Disk) -> None:
    """Replace the progress of OUTPUT, durably. The data that it names must already be synced."""
    disk.replace(output / PROGRESS, encode_record(progress))
