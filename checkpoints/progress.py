"""The progress record ``OUTPUT/reput/progress``: the part of the log that is durably dispatched.

It is replaced atomically, and only after the data that it names has been synced. For its encoding
see ``store.io.checked_json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from store.config import Shape
from store.consumequeue.ends import QueueEnd
from store.consumequeue.names import Drops
from store.index.ends import IndexFileOrNone
from store.index.writer import IndexState
from store.io.checked_json import (
    Checksum,
    Count,
    MismatchError,
    Offset,
    PathText,
    encode_record,
    read_record,
    span,
)
from store.io.disk import Disk
from store.root.progress import PROGRESS, Fingerprint, check_index_fields, fields_of

_QUEUE_ENDS_MAX = 20_000  # in all rollback points together

TimeNs = Annotated[int, span(-1, (1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class LostRange:
    """A range ``[begin, end)`` of the log that was skipped (failOnDataLoss=false), and why."""

    begin: Offset
    end: Offset
    path: PathText
    reason: str


@dataclass(frozen=True, slots=True)
class RollbackPoint:
    """The end of an earlier batch, to which the root can be rolled back if the log has changed.

    ``marks`` are the ends of those queues whose units do not show them, because the broker's rules
    dropped some of their messages.
    """

    number: Count  # of the batch, not counting batches that were rolled back
    reput_from_offset: Offset
    last_record: Fingerprint
    messages: Count
    drops: Drops
    marks: tuple[QueueEnd, ...]
    index_msg_timestamp: int


@dataclass(frozen=True, slots=True)
class OwnershipStamp:
    """The properties of a root that a broker changes when it runs there.

    The checksums of ``checkpoint`` and of the version before it, "" for none; the modification
    times of ``abort`` and ``lock`` in ns.
    """

    checkpoint: Checksum = ""
    checkpoint_before: Checksum = ""
    abort_ns: TimeNs = 0
    lock_ns: TimeNs = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a root, and its origin. Offsets are physical offsets of the log."""

    reput_from_offset: Offset
    begin_offset: Offset  # where the dispatch of this root began
    store: PathText
    commit_log: PathText  # as storePathCommitLog; "" for STORE/commitlog
    shape: Shape
    batch: Count = 0  # number of batches applied or rolled back
    messages: Count = 0  # dispatched
    is_recovering: bool = False  # files are being truncated to this progress, or swapped
    last_record: Fingerprint | None = None
    index_file: IndexFileOrNone = ""
    index_count: Count = 0  # entries in that file
    index_first: IndexFileOrNone = ""
    index_files: Count = 0
    index_msg_timestamp: int = 0
    log_was_clean: bool | None = None  # STORE had no abort, where OUTPUT = STORE
    lost: tuple[LostRange, ...] = ()
    drops: Drops = field(default_factory=dict)
    # Oldest first; the last one is the end of this record itself.
    milestones: tuple[RollbackPoint, ...] = ()
    signs: OwnershipStamp = OwnershipStamp()

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has been dispatched or skipped yet."""
        return self.reput_from_offset == self.begin_offset

    @property
    def dispatched_to(self) -> int:
        """The reput offset, or the begin of the first range skipped after the last record."""
        last = self.last_record.offset if self.last_record is not None else -1
        return min([r.begin for r in self.lost if r.begin > last] + [self.reput_from_offset])


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The results of a dispatched batch for the progress record."""

    reput_from_offset: int
    first_offset: int  # of the first record dispatched, -1 if the batch had none
    last_offset: int
    messages: int
    index: IndexState
    drops: Mapping[tuple[str, int], tuple[int, int]]  # (repeated, gaps) by queue
    queue_ends: Iterable[QueueEnd] = ()  # of the queues that have drops
    lost: tuple[LostRange, ...] = ()


def queue_name(topic: str, queue_id: int) -> str:
    """Return a queue's name, as records hold it."""
    return f"{topic}/{queue_id}"


def queue_key(name: str) -> tuple[str, int]:
    """Return the topic and queue id of a queue's name in a record."""
    topic, _, queue_id = name.rpartition("/")
    return topic, int(queue_id)


def thin(points: tuple[RollbackPoint, ...]) -> tuple[RollbackPoint, ...]:
    """Thin rollback points: the older, the farther apart (about two for each doubling)."""
    kept: list[RollbackPoint] = []
    end_count = 0
    for point in reversed(points):
        distance = points[-1].number - point.number
        step = 1 << max(distance.bit_length() - 2, 0)
        end_count += len(point.marks)
        if point.number % step == 0 and (end_count <= _QUEUE_ENDS_MAX or len(kept) <= 1):
            kept.append(point)
    return tuple(reversed(kept))


def add_rollback_point(progress: Progress, ends: Iterable[QueueEnd]) -> tuple[RollbackPoint, ...]:
    """Add the end of a batch to the rollback points, and thin them."""
    last = progress.last_record
    if last is None:
        return progress.milestones
    before = progress.milestones[-1].marks if progress.milestones else ()
    known = {end.key: end for end in before} | {end.key: end for end in ends}
    dropped = {queue_key(name) for name, drops in progress.drops.items() if drops["repeated"]}
    point = RollbackPoint(
        number=progress.milestones[-1].number + 1 if progress.milestones else 0,
        reput_from_offset=progress.reput_from_offset,
        last_record=last,
        messages=progress.messages,
        drops=progress.drops,
        marks=tuple(end for key, end in known.items() if key in dropped),
        index_msg_timestamp=progress.index_msg_timestamp,
    )
    return thin((*progress.milestones, point))


def advance(
    progress: Progress, end: BatchEnd, first: Fingerprint | None, last: Fingerprint | None
) -> Progress:
    """Return the progress after a batch, given the fingerprints of its first and last record."""
    milestones = progress.milestones
    has_dropped = any(repeated for repeated, _ in end.drops.values())
    if not milestones and not has_dropped:
        milestones = _first_rollback_point(first)
    progress = replace(
        progress,
        batch=progress.batch + 1,
        messages=progress.messages + end.messages,
        reput_from_offset=end.reput_from_offset,
        last_record=last if last is not None else progress.last_record,
        index_file=end.index.last,
        index_count=end.index.count,
        index_first=end.index.first,
        index_files=end.index.files,
        index_msg_timestamp=end.index.full_timestamp or progress.index_msg_timestamp,
        lost=progress.lost + end.lost,
        drops=_add_drops(progress.drops, end.drops),
        milestones=milestones,
    )
    return replace(progress, milestones=add_rollback_point(progress, end.queue_ends))


def _add_drops(known: Drops, new: Mapping[tuple[str, int], tuple[int, int]]) -> Drops:
    total = {name: dict(counts) for name, counts in known.items()}
    for (topic, queue_id), (repeated, gaps) in new.items():
        counts = total.setdefault(queue_name(topic, queue_id), {"repeated": 0, "gaps": 0})
        counts["repeated"] += repeated
        counts["gaps"] += gaps
    return total


def _first_rollback_point(first: Fingerprint | None) -> tuple[RollbackPoint, ...]:
    """Return the rollback point of a batch that held the first record only."""
    if first is None:
        return ()
    return (RollbackPoint(0, first.offset + first.size, first, 1, {}, (), 0),)


def progress_path(root: Path) -> Path:
    """Return the path of a root's progress record."""
    return root / PROGRESS


def read_progress(root: Path) -> Progress | None:
    """Read a root's progress, None if reput has never dispatched into the root.

    Raises as ``read_record``, and DamageError if fields contradict one another.
    """
    path = progress_path(root)
    progress = read_record(path, Progress)
    check_progress(progress, path)
    return progress


def check_progress(progress: Progress | None, path: Path) -> None:
    """Raise DamageError, naming the file at ``path``, if fields contradict one another."""
    if progress is None:
        return
    end = progress.reput_from_offset
    with fields_of(path):
        check_index_fields(progress)
        if progress.begin_offset > end:
            raise MismatchError(f"{progress.begin_offset} is beyond {end}", "begin_offset")
        _check_record_end(progress.last_record, end, "last_record")
        _check_rollback_points(progress)
        for number, lost in enumerate(progress.lost):
            if not lost.begin < lost.end <= end:
                raise MismatchError(f"{lost.begin} to {lost.end} of {end}", f"lost[{number}]")


def _check_rollback_points(progress: Progress) -> None:
    number, offset = -1, progress.begin_offset
    for at, point in enumerate(progress.milestones):
        place = f"milestones[{at}]"
        if point.number <= number or point.reput_from_offset < offset:
            raise MismatchError("it does not follow the one before", place)
        number, offset = point.number, point.reput_from_offset
        _check_record_end(point.last_record, offset, f"{place}.last_record")
    if offset > progress.reput_from_offset:
        raise MismatchError(f"the last one ends at {offset}, beyond the progress", "milestones")
    if number > progress.batch:
        raise MismatchError(f"{progress.batch} is less than milestone {number}", "batch")


def _check_record_end(record: Fingerprint | None, end: int, place: str) -> None:
    if record is not None and record.offset + record.size > end:
        raise MismatchError(f"it ends at {record.offset + record.size}, beyond {end}", place)


def write_progress(root: Path, progress: Progress, disk: Disk) -> None:
    """Replace a root's progress, durably. The data that it names must already be synced."""
    disk.replace(progress_path(root), encode_record(progress))
