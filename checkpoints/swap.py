"""The swap of rebuilt queues and index for the old ones: atomic, even if it is interrupted.

A rebuild (``checkpoints.rebuild``) writes a new root, ``OUTPUT/reput/bulk/new``. A full rebuild
swaps all directories that a dispatch builds, and the progress. A rebuild of some queues first moves
these to ``reput/rebuild/new``, and swaps them from there one at a time.

The record ``reput/swap`` is durable before the first old file is moved, and is deleted once all new
files are in place. If a swap is interrupted, the next start finishes it from the record. Old files
are moved to ``reput/bulk/old`` or ``reput/rebuild/old``, and deleted last.

A swap begins a new generation of the root's files (``store.root.progress``). The progress of the
new generation is written once all files are in place, and before the record is deleted. So a reader
that finds neither the record nor a new generation after its read has read files of one generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from checkpoints.entries import BUILT_DIRS
from checkpoints.foreign_writer import detect_foreign_writer
from checkpoints.progress import (
    Progress,
    check_progress,
    read_progress,
    write_progress,
)
from checkpoints.state_paths import (
    BOOT,
    BULK_DIR,
    NEW_QUEUES_DIR,
    NEW_ROOT_DIR,
    OLD_QUEUES_DIR,
    OLD_ROOT_DIR,
    PLAN,
    REBUILD_DIR,
)
from store.consumequeue.names import QueueId, Topic, queue_directory
from store.errors import DamageError
from store.io.checked_json import (
    ADDED_LATER,
    MismatchError,
    encode_record,
    one_of,
    read_record,
    read_state_file,
)
from store.io.disk import Disk
from store.io.links import refuse_link
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR, INDEX_DIR
from store.root.progress import SWAP, fields_of


@dataclass(frozen=True, slots=True)
class SwapRecord:
    """The queues to swap; ``progress`` holds the root's rollback points and drops afterwards.

    If it is None, they are unchanged. ``whole``, in the swap of a whole root, names the directories
    of the new root; those that it does not name are deleted, and all of ``progress`` is new.
    """

    queues: tuple[tuple[Topic, QueueId], ...]
    progress: Progress | None = None
    whole: Annotated[tuple[Annotated[str, one_of(*BUILT_DIRS)], ...] | None, ADDED_LATER] = None


def write_swap(root: Path, record: SwapRecord, disk: Disk) -> None:
    """Write, durably, the record of a swap, which the next start finishes if it is interrupted."""
    disk.replace(root / SWAP, encode_record(record))


def read_swap(root: Path) -> SwapRecord | None:
    """Return the record of the swap in progress, None if there is none.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    path = root / SWAP
    record = read_record(path, SwapRecord)
    if record is not None:
        check_progress(record.progress, path)
        with fields_of(path):
            _check_whole(record)
    return record


def _check_whole(record: SwapRecord) -> None:
    names, progress = record.whole, record.progress
    if names is None:
        return
    if progress is None:
        raise MismatchError("a swap of a whole root needs one", "progress")
    if progress.index_files and INDEX_DIR not in names:
        reason = f"it lacks {INDEX_DIR}, and progress counts {progress.index_files} index files"
        raise MismatchError(reason, "whole")


def finish_swap(root: Path, progress: Progress | None, disk: Disk) -> Progress | None:
    """Finish the swap in progress, if any, and delete the remains of a rebuild.

    Return the resulting progress. If a broker has run on the root since, its queues are kept.
    """
    record = read_swap(root)
    if record is not None:
        if record.whole is not None and record.progress is not None:
            progress = _finish_whole(root, (record.whole, record.progress), progress, disk)
            discard_resume_point(root, disk)  # durably, before the swap is over
        else:
            progress = _finish_queues(root, record, progress, disk)
        disk.remove(root / SWAP)
        disk.sync()
    for directory, resumable in ((REBUILD_DIR, ()), (BULK_DIR, (BOOT, PLAN))):
        if (root / directory).is_dir() and not any((root / path).exists() for path in resumable):
            disk.remove_tree(root / directory)
            disk.sync()
    return progress


def _finish_queues(
    root: Path, record: SwapRecord, progress: Progress | None, disk: Disk
) -> Progress | None:
    is_ours = progress is not None and not detect_foreign_writer(root, progress.signs)
    queues = [queue_directory(Path(), *key) for key in record.queues]
    _sync_moves(root, queues, disk)
    for queue in queues:
        if is_ours or not (root / CONSUME_QUEUE_DIR / queue).is_dir():
            _swap_queue(root, queue, disk)
    target = record.progress
    if is_ours and progress is not None:
        progress = replace(progress, batch=progress.batch + 1)  # a new generation
        if target is not None:
            progress = replace(progress, milestones=target.milestones, drops=target.drops)
        write_progress(root, progress, disk)
    return progress


def _finish_whole(
    root: Path, whole: tuple[tuple[str, ...], Progress], progress: Progress | None, disk: Disk
) -> Progress | None:
    """Swap a whole root: move the old files away, write progress, move the new files in.

    Progress is marked as recovering until all files are in place: it never names missing files.
    """
    names, target = whole
    new, old = root / NEW_ROOT_DIR, root / OLD_ROOT_DIR
    for parent in (root, new, old):
        disk.include_in_sync(parent)
    disk.sync()
    if detect_foreign_writer(root, target.signs):
        return progress
    _check_matches_rebuild(root, names, target)
    for name in names:
        refuse_link(new / name)
        if not (new / name).is_dir() and not (root / name).is_dir():
            reason = f"{name} is neither in {new} nor in {root}"
            raise DamageError(root / SWAP, 0, reason)
    for name in BUILT_DIRS:
        if name not in names or (new / name).is_dir():  # else it is in place already
            _move_away(root / name, old / name, disk)
    write_progress(root, replace(target, is_recovering=True), disk)
    for name in reversed(names):
        if (new / name).is_dir():
            disk.move(new / name, root / name)
            disk.sync()
    write_progress(root, target, disk)
    return target


def _check_matches_rebuild(root: Path, names: tuple[str, ...], target: Progress) -> None:
    """Refuse a record that does not match the rebuild in ``reput/bulk``. Raises DamageError.

    The new root's own progress is kept until all files are in place. By then the directories that
    the record does not name have been moved away.
    """
    built = read_progress(root / NEW_ROOT_DIR)
    if built is not None and built.reput_from_offset != target.reput_from_offset:
        reason = (
            f"it ends at offset {target.reput_from_offset}, its rebuild at "
            f"{built.reput_from_offset}"
        )
        raise DamageError(root / SWAP, 0, reason)
    has_built = built is not None or read_state_file(root / PLAN) is not None
    for name in (name for name in BUILT_DIRS if name not in names):
        if (root / NEW_ROOT_DIR / name).is_dir():
            reason = f"it does not name {name}, which the rebuild made"
            raise DamageError(root / SWAP, 0, reason)
        if not has_built and (root / name).is_dir():
            reason = f"it would delete {name}, but {root / BULK_DIR} holds no rebuild"
            raise DamageError(root / SWAP, 0, reason)


def discard_rebuild(root: Path, disk: Disk) -> None:
    """Delete the new root of a rebuild; first, durably, the files that make it resumable."""
    discard_resume_point(root, disk)
    if (root / BULK_DIR).is_dir():
        disk.remove_tree(root / BULK_DIR)


def discard_resume_point(root: Path, disk: Disk) -> None:
    """Delete, durably, the files that make an interrupted rebuild resumable."""
    disk.remove(root / BOOT)
    disk.remove(root / PLAN)
    disk.sync()


def _sync_moves(root: Path, queues: Iterable[Path], disk: Disk) -> None:
    """Make durable the moves of a process that was interrupted before it synced them."""
    for queue in queues:
        for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
            for parent in (root, root / NEW_QUEUES_DIR, root / OLD_QUEUES_DIR):
                disk.include_in_sync((parent / kind / queue).parent)
    disk.sync()


def _swap_queue(root: Path, queue: Path, disk: Disk) -> None:
    """Swap one queue and its ext files; steps that are already done are skipped."""
    place, new = root / CONSUME_QUEUE_DIR / queue, root / NEW_QUEUES_DIR / CONSUME_QUEUE_DIR / queue
    old = root / OLD_QUEUES_DIR / CONSUME_QUEUE_DIR / queue
    if not new.is_dir():
        return
    for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
        refuse_link(root / NEW_QUEUES_DIR / kind / queue)
    _move_away(place, old, disk)
    ext = Path(CONSUME_QUEUE_EXT_DIR, queue)
    if (root / NEW_QUEUES_DIR / ext).is_dir():
        _move_away(root / ext, root / OLD_QUEUES_DIR / ext, disk)
        disk.move(root / NEW_QUEUES_DIR / ext, root / ext)
        disk.sync()
    for directory in (root / ext, (root / ext).parent):
        disk.remove_directory(directory)  # if empty: the queue has no ext units any more
    disk.move(new, place)
    disk.sync()


def _move_away(place: Path, old: Path, disk: Disk) -> None:
    if place.is_dir():
        disk.move(place, old)
        disk.sync()
