"""The swap of rebuilt queues for the old ones, whole or not at all wherever it is cut off.

Rebuilt queues lie below ``OUTPUT/reput/rebuild/new``, as in a root. The record ``reput/swap`` is
durable before the first of them is moved, and there until all are in their places: whoever opens
the root finishes what it names. The old files go to ``reput/rebuild/old`` and are deleted last.

A rebuild of a whole root (``checkpoints.bulk``) swaps all that a dispatch makes, and its progress.

A queue's directory is what a reader looks at first. So it is away before the queue's ext files are
exchanged, and in its place after that: a reader that does not find it looks for the record, and
waits (``MessageStore``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoints.bulk.state import NEW_DIR as BULK_NEW_DIR
from checkpoints.bulk.state import OLD_DIR as BULK_OLD_DIR
from checkpoints.bulk.state import BulkState
from checkpoints.progress import REPUT_DIR, Progress, progress_of, write_progress
from checkpoints.signs import find_broker
from store.disk import Disk
from store.dispatched import SWAP, decode_values, encode_values, read_progress_file
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR, INDEX_DIR

REBUILD_DIR = REPUT_DIR / "rebuild"
NEW_DIR, OLD_DIR = REBUILD_DIR / "new", REBUILD_DIR / "old"
WHOLE = (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR, INDEX_DIR)  # queues first: see above


@dataclass(frozen=True, slots=True)
class SwapRecord:
    """Which queues are swapped; ``progress`` holds milestones and drops that hold then.

    None: they stay as they are. ``whole`` names, where a whole root is swapped, the directories
    that there are of the new one; all others of the old one go, and all of progress is new.
    """

    queues: tuple[tuple[str, int], ...]
    progress: Progress | None = None
    whole: tuple[str, ...] | None = None


def write_swap(root: Path, record: SwapRecord, disk: Disk) -> None:
    """Write, durably, what is swapped from now on."""
    values = {
        "queues": [list(key) for key in record.queues],
        "progress": dataclasses.asdict(record.progress) if record.progress is not None else None,
        "whole": record.whole,
    }
    disk.replace(root / SWAP, encode_values(values))


def read_swap(root: Path) -> SwapRecord | None:
    """Return the swap under way, None if there is none.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    path = root / SWAP
    data = read_progress_file(path)
    return None if data is None else decode_values(data, path, _record_of)


def _record_of(values: dict[str, Any]) -> SwapRecord:
    progress, whole = values["progress"], values.get("whole")  # an older release wrote no "whole"
    return SwapRecord(
        queues=tuple((str(topic), int(queue_id)) for topic, queue_id in values["queues"]),
        progress=progress_of(progress) if progress is not None else None,
        whole=tuple(whole) if whole is not None else None,
    )


def finish_swap(root: Path, progress: Progress | None, disk: Disk) -> Progress | None:
    """Finish the swap under way, if any, and delete what is left of a rebuild.

    Return progress then. Where a broker ran on the root since, the queues it found or made stay.
    """
    record = read_swap(root)
    if record is not None:
        if record.whole is not None and record.progress is not None:
            progress = _finish_whole(root, (record.whole, record.progress), progress, disk)
            BulkState(root, disk).forget_plan()  # durably, before the swap is over
        else:
            progress = _finish_queues(root, record, progress, disk)
        disk.remove(root / SWAP)
        disk.sync()
        if record.whole is not None:
            BulkState(root, disk).forget()
    if (root / REBUILD_DIR).is_dir():
        disk.remove_tree(root / REBUILD_DIR)
        disk.sync()
    return progress


def _finish_queues(
    root: Path, record: SwapRecord, progress: Progress | None, disk: Disk
) -> Progress | None:
    is_ours = progress is not None and not find_broker(root, progress.signs)
    queues = [Path(topic, str(queue_id)) for topic, queue_id in record.queues]
    _settle(root, queues, disk)
    for queue in queues:
        if is_ours or not (root / CONSUME_QUEUE_DIR / queue).is_dir():
            _swap(root, queue, disk)
    target = record.progress
    if is_ours and progress is not None and target is not None:
        progress = replace(progress, milestones=target.milestones, drops=target.drops)
        write_progress(root, progress, disk)
    return progress


def _finish_whole(
    root: Path, whole: tuple[tuple[str, ...], Progress], progress: Progress | None, disk: Disk
) -> Progress | None:
    """Put all of a rebuilt root in its places: the old away, then progress, then the new."""
    names, target = whole
    new, old = root / BULK_NEW_DIR, root / BULK_OLD_DIR
    for parent in (root, new, old):
        disk.settle(parent)
    disk.sync()
    if find_broker(root, target.signs):
        return progress
    for name in WHOLE:
        if name not in names or (new / name).is_dir():  # else it has been put in its place
            _move_away(root / name, old / name, disk)
    write_progress(root, target, disk)
    for name in reversed(names):
        if (new / name).is_dir():
            disk.move(new / name, root / name)
            disk.sync()
    return target


def _settle(root: Path, queues: Iterable[Path], disk: Disk) -> None:
    """Make durable what a process moved that was killed before it came to sync."""
    for queue in queues:
        for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
            for parent in (root, root / NEW_DIR, root / OLD_DIR):
                disk.settle((parent / kind / queue).parent)
    disk.sync()


def _swap(root: Path, queue: Path, disk: Disk) -> None:
    """Put one queue and its ext files in their places; what is done is not done again."""
    place, new = root / CONSUME_QUEUE_DIR / queue, root / NEW_DIR / CONSUME_QUEUE_DIR / queue
    old = root / OLD_DIR / CONSUME_QUEUE_DIR / queue
    if not new.is_dir():
        return
    _move_away(place, old, disk)
    ext = Path(CONSUME_QUEUE_EXT_DIR, queue)
    if (root / NEW_DIR / ext).is_dir():
        _move_away(root / ext, root / OLD_DIR / ext, disk)
        disk.move(root / NEW_DIR / ext, root / ext)
        disk.sync()
    for directory in (root / ext, (root / ext).parent):
        disk.remove_directory(directory)  # if it is empty: the queue has no ext units any more
    disk.move(new, place)
    disk.sync()


def _move_away(place: Path, old: Path, disk: Disk) -> None:
    if place.is_dir():
        disk.move(place, old)
        disk.sync()
