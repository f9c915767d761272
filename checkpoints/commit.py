"""How a batch becomes durable: the order of its writes, and how it advances progress.

Steps 1, 3, 4 and 5 each end with a sync (promise I4):

1. ``begin_batch`` writes ``reput/batch``: the ends of the files before the batch;
2. the sinks write queues, ext files and the index;
3. ``commit_batch`` syncs them;
4. ``commit_batch`` replaces ``reput/progress``, which counts the batch from then on;
5. ``commit_batch`` replaces the broker's ``checkpoint`` if a field of it has changed.

Listeners are notified afterwards. A crash before step 4 rolls the batch back at the next start. A
crash after step 4 loses nothing: if step 5 is missing, the next start performs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoints.batch_record import BatchRecord, write_batch
from checkpoints.checkpoint_file import StoreCheckpoint, encode_checkpoint, write_checkpoint
from checkpoints.ownership import checksum
from store.config import StoreConfig
from store.consumequeue.names import Drops
from store.consumequeue.queue_ends import QueueEnd
from store.index.index_end import IndexEnd
from store.index.writer import IndexState
from store.io.disk import Disk
from store.output.progress import Fingerprint, LostRange, Progress, RollbackPoint, write_progress

_QUEUE_ENDS_MAX = 20_000  # in all rollback points together


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


def begin_batch(
    output: Path, number: int, queues: Iterable[QueueEnd], index: IndexEnd | None, disk: Disk
) -> None:
    """Record, durably, the ends of the files that batch ``number`` is about to write."""
    write_batch(output, BatchRecord(number, tuple(queues), index), disk)


def commit_batch(
    output: Path, progress: Progress, known: StoreCheckpoint | None, config: StoreConfig, disk: Disk
) -> tuple[Progress, StoreCheckpoint | None]:
    """Sync the data of a batch, then write ``progress``, then the checkpoint; return both.

    ``progress`` is the one after the batch, ``known`` the checkpoint on disk.
    """
    disk.sync()
    checkpoint = checkpoint_of(progress, known, config)
    stamp = progress.stamp
    if checkpoint != known:
        stamp = replace(
            stamp,
            checkpoint=checksum(encode_checkpoint(checkpoint)),
            checkpoint_before=stamp.checkpoint,
        )
    progress = replace(progress, stamp=stamp)
    write_progress(output, progress, disk)
    return progress, update_checkpoint(output, checkpoint, known, disk)


def checkpoint_of(
    progress: Progress, known: StoreCheckpoint | None, config: StoreConfig
) -> StoreCheckpoint:
    """Return the checkpoint for a progress; fields that only a broker sets are kept."""
    known, last = known or StoreCheckpoint(), progress.last_record
    stamp = last.store_timestamp if last is not None else known.physic_msg_timestamp
    checkpoint = replace(
        known,
        physic_msg_timestamp=stamp,
        logics_msg_timestamp=stamp,
        index_msg_timestamp=progress.index_msg_timestamp,
    )
    if last is not None and config.writes_logics_physical_offset:
        checkpoint = replace(checkpoint, logics_physical_offset=last.offset)
    return checkpoint


def update_checkpoint(
    output: Path, checkpoint: StoreCheckpoint, known: StoreCheckpoint | None, disk: Disk
) -> StoreCheckpoint | None:
    """Write the checkpoint if it differs from the one on disk; return what is there then.

    An empty one is not written where there is none.
    """
    if checkpoint == (known or StoreCheckpoint()):
        return known
    write_checkpoint(output, checkpoint, disk)
    return checkpoint


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
        end_count += len(point.queue_ends)
        if point.number % step == 0 and (end_count <= _QUEUE_ENDS_MAX or len(kept) <= 1):
            kept.append(point)
    return tuple(reversed(kept))


def add_rollback_point(progress: Progress, ends: Iterable[QueueEnd]) -> tuple[RollbackPoint, ...]:
    """Add the end of a batch to the rollback points, and thin them."""
    last = progress.last_record
    if last is None:
        return progress.rollback_points
    before = progress.rollback_points[-1].queue_ends if progress.rollback_points else ()
    known = {end.key: end for end in before} | {end.key: end for end in ends}
    dropped = {queue_key(name) for name, drops in progress.drops.items() if drops["repeated"]}
    point = RollbackPoint(
        number=progress.rollback_points[-1].number + 1 if progress.rollback_points else 0,
        reput_from_offset=progress.reput_from_offset,
        last_record=last,
        messages=progress.messages,
        drops=progress.drops,
        queue_ends=tuple(end for key, end in known.items() if key in dropped),
        index_msg_timestamp=progress.index_msg_timestamp,
    )
    return thin((*progress.rollback_points, point))


def advance(
    progress: Progress, end: BatchEnd, first: Fingerprint | None, last: Fingerprint | None
) -> Progress:
    """Return the progress after a batch, given the fingerprints of its first and last record."""
    rollback_points = progress.rollback_points
    has_dropped = any(repeated for repeated, _ in end.drops.values())
    if not rollback_points and not has_dropped:
        rollback_points = _first_rollback_point(first)
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
        rollback_points=rollback_points,
    )
    return replace(progress, rollback_points=add_rollback_point(progress, end.queue_ends))


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
