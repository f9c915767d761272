"""The progress record ``OUTPUT/reput/progress``: what has been dispatched and is durable.

It is written after the data it names has been synced, never before, and replaced atomically. Its
encoding: ``store.io.checked_json``.
"""

from __future__ import annotations

import dataclasses
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
    decode_record,
    encode_values,
    read_state_file,
    span,
)
from store.io.disk import Disk
from store.root.progress import PROGRESS, Fingerprint, check_index_fields, fields_of

REPUT_DIR = PROGRESS.parent
_QUEUE_ENDS_MAX = 20_000  # in all milestones together

TimeNs = Annotated[int, span(-1, (1 << 63) - 1)]


@dataclass(frozen=True, slots=True)
class LostRange:
    """``[begin, end)`` of the log was skipped (failOnDataLoss=false), and why."""

    begin: Offset
    end: Offset
    path: PathText
    reason: str


@dataclass(frozen=True, slots=True)
class RollbackPoint:
    """An end that an earlier batch had: where the root can be rolled back to if the log changed.

    ``marks`` are those of the queues whose own units cannot tell them: some of their messages were
    dropped by a broker's rules.
    """

    number: Count  # counted from the root's begin, without those that were rolled back
    reput_from_offset: Offset
    last_record: Fingerprint
    messages: Count
    drops: Drops
    marks: tuple[QueueEnd, ...]
    index_msg_timestamp: int


@dataclass(frozen=True, slots=True)
class OwnershipStamp:
    """What a broker changes that runs on a root: by these it is seen that one did.

    Checksums of ``checkpoint`` as it is and as it was before, "" for none; of ``abort`` and
    ``lock`` when they were last written, in ns.
    """

    checkpoint: Checksum = ""
    checkpoint_before: Checksum = ""
    abort_ns: TimeNs = 0
    lock_ns: TimeNs = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a root is, and what it was made of. Offsets are physical offsets of the log."""

    reput_from_offset: Offset
    begin_offset: Offset  # where the dispatch of this root began
    store: PathText
    commit_log: PathText  # where the log lay, as storePathCommitLog; "" for STORE/commitlog
    shape: Shape
    batch: Count = 0  # batches applied or rolled back, all told
    messages: Count = 0  # dispatched
    is_recovering: bool = False  # what lies behind is being cut off
    last_record: Fingerprint | None = None
    index_file: IndexFileOrNone = ""
    index_count: Count = 0  # entries in that file
    index_first: IndexFileOrNone = ""
    index_files: Count = 0
    index_msg_timestamp: int = 0
    log_was_clean: bool | None = None  # STORE had no abort, where OUTPUT = STORE
    lost: tuple[LostRange, ...] = ()
    drops: Drops = field(default_factory=dict)
    milestones: tuple[
        RollbackPoint, ...
    ] = ()  # oldest first; the last one is this record's own end
    signs: OwnershipStamp = OwnershipStamp()

    @property
    def is_untouched(self) -> bool:
        """Tell whether nothing has been dispatched or skipped yet."""
        return self.reput_from_offset == self.begin_offset

    @property
    def dispatched_to(self) -> int:
        """Where the last record dispatched leads to: the reput offset, or a range skipped since."""
        last = self.last_record.offset if self.last_record is not None else -1
        return min([r.begin for r in self.lost if r.begin > last] + [self.reput_from_offset])


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """What a dispatched batch leaves for the progress record."""

    reput_from_offset: int
    first_offset: int  # of the first record dispatched, -1 if the batch had none
    last_offset: int
    messages: int
    index: IndexState
    drops: Mapping[tuple[str, int], tuple[int, int]]  # repeated, gaps by queue, so far
    marks: Iterable[QueueEnd] = ()  # of the queues that have drops
    lost: tuple[LostRange, ...] = ()
    kept: frozenset[int] = frozenset()  # offsets of milestones that are not thinned out


def queue_name(topic: str, queue_id: int) -> str:
    """Return a queue's name in a record."""
    return f"{topic}/{queue_id}"


def queue_key(name: str) -> tuple[str, int]:
    """Return topic and queue id of a name in a record."""
    topic, _, queue_id = name.rpartition("/")
    return topic, int(queue_id)


def thin(
    milestones: tuple[RollbackPoint, ...], always: frozenset[int] = frozenset()
) -> tuple[RollbackPoint, ...]:
    """Keep few milestones: the farther back, the farther apart (about two for each doubling).

    Those at the offsets ``always`` are kept.
    """
    kept: list[RollbackPoint] = []
    end_count = 0
    for milestone in reversed(milestones):
        distance = milestones[-1].number - milestone.number
        step = 1 << max(distance.bit_length() - 2, 0)
        end_count += len(milestone.marks)
        is_kept = milestone.number % step == 0 and (end_count <= _QUEUE_ENDS_MAX or len(kept) <= 1)
        if is_kept or milestone.reput_from_offset in always:
            kept.append(milestone)
    return tuple(reversed(kept))


def add_rollback_point(
    progress: Progress, ends: Iterable[QueueEnd], kept: frozenset[int] = frozenset()
) -> tuple[RollbackPoint, ...]:
    """Add the end of a batch to the milestones, and thin them."""
    last = progress.last_record
    if last is None:
        return progress.milestones
    before = progress.milestones[-1].marks if progress.milestones else ()
    known = {end.key: end for end in before} | {end.key: end for end in ends}
    dropped = {queue_key(name) for name, drops in progress.drops.items() if drops["repeated"]}
    milestone = RollbackPoint(
        number=progress.milestones[-1].number + 1 if progress.milestones else 0,
        reput_from_offset=progress.reput_from_offset,
        last_record=last,
        messages=progress.messages,
        drops=progress.drops,
        marks=tuple(end for key, end in known.items() if key in dropped),
        index_msg_timestamp=progress.index_msg_timestamp,
    )
    return thin((*progress.milestones, milestone), kept)


def advance(
    progress: Progress, end: BatchEnd, first: Fingerprint | None, last: Fingerprint | None
) -> Progress:
    """Return the progress after a batch, of whose first and last record these are fingerprints."""
    milestones = progress.milestones
    has_dropped = any(repeated for repeated, _ in end.drops.values())
    if not milestones and not has_dropped:
        milestones = _first_milestone(first)
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
    return replace(progress, milestones=add_rollback_point(progress, end.marks, end.kept))


def _add_drops(known: Drops, new: Mapping[tuple[str, int], tuple[int, int]]) -> Drops:
    total = {name: dict(counts) for name, counts in known.items()}
    for (topic, queue_id), (repeated, gaps) in new.items():
        counts = total.setdefault(queue_name(topic, queue_id), {"repeated": 0, "gaps": 0})
        counts["repeated"] += repeated
        counts["gaps"] += gaps
    return total


def _first_milestone(first: Fingerprint | None) -> tuple[RollbackPoint, ...]:
    """Return the end that a batch of the first record alone would have had."""
    if first is None:
        return ()
    return (RollbackPoint(0, first.offset + first.size, first, 1, {}, (), 0),)


def progress_path(root: Path) -> Path:
    """Return where a root keeps its progress."""
    return root / PROGRESS


def encode_progress(progress: Progress) -> bytes:
    """Encode as two lines."""
    return encode_values(dataclasses.asdict(progress))


def decode_progress(data: bytes, path: Path) -> Progress:
    """Decode; raises DamageError (naming ``path``), UnsupportedFormatError."""
    return decode_record(data, path, Progress)


def read_progress(root: Path) -> Progress | None:
    """Read a root's progress, None if no dispatch of ours has run on it.

    Raises as ``decode_progress``; DamageError, too, where fields contradict one another.
    """
    path = progress_path(root)
    data = read_state_file(path)
    progress = None if data is None else decode_progress(data, path)
    check_progress(progress, path)
    return progress


def check_progress(progress: Progress | None, path: Path) -> None:
    """Raise DamageError, naming the file it was read from, if fields contradict one another."""
    if progress is None:
        return
    end = progress.reput_from_offset
    with fields_of(path):
        check_index_fields(progress)
        if progress.begin_offset > end:
            raise MismatchError(f"{progress.begin_offset} is beyond {end}", "begin_offset")
        _check_last(progress.last_record, end, "last_record")
        _check_milestones(progress)
        for number, lost in enumerate(progress.lost):
            if not lost.begin < lost.end <= end:
                raise MismatchError(f"{lost.begin} to {lost.end} of {end}", f"lost[{number}]")


def _check_milestones(progress: Progress) -> None:
    number, offset = -1, progress.begin_offset
    for at, milestone in enumerate(progress.milestones):
        place = f"milestones[{at}]"
        if milestone.number <= number or milestone.reput_from_offset < offset:
            raise MismatchError("it does not follow the one before", place)
        number, offset = milestone.number, milestone.reput_from_offset
        _check_last(milestone.last_record, offset, f"{place}.last_record")
    if offset > progress.reput_from_offset:
        raise MismatchError(f"the last one ends at {offset}, beyond the progress", "milestones")
    if number > progress.batch:
        raise MismatchError(f"{progress.batch} is less than milestone {number}", "batch")


def _check_last(record: Fingerprint | None, end: int, place: str) -> None:
    if record is not None and record.offset + record.size > end:
        raise MismatchError(f"it ends at {record.offset + record.size}, beyond {end}", place)


def write_progress(root: Path, progress: Progress, disk: Disk) -> None:
    """Replace a root's progress, durably. What it names must be synced already."""
    disk.replace(progress_path(root), encode_progress(progress))
