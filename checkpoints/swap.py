"""The swap of rebuilt queues and index for the old ones: atomic, even if it is interrupted.

A rebuild (``checkpoints.rebuild``) writes a new OUTPUT, ``OUTPUT/reput/bulk/new``. The swap
replaces all directories that a dispatch builds, and the progress.

The record ``reput/swap`` is durable before the first old file is moved, and is deleted once all new
files are in place. If a swap is interrupted, the next start finishes it from the record. Old files
are moved to ``reput/bulk/old``, and deleted last.

A swap begins a new generation of OUTPUT's files (``store.output.progress_reader``). The progress of
the new generation is written once all files are in place, and before the record is deleted. So a
reader that finds neither the record nor a new generation after its read has read files of one
generation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from checkpoints.output_entries import BUILT_DIRS
from checkpoints.ownership import detect_foreign_writer
from checkpoints.state_paths import BOOT, BULK_DIR, NEW_OUTPUT_DIR, OLD_OUTPUT_DIR
from store.errors import DamageError
from store.io.checked_json import MismatchError, encode_record, one_of, read_record
from store.io.disk import Disk
from store.io.links import refuse_link
from store.layout import INDEX_DIR
from store.output.progress import SWAP, Progress, read_progress, write_progress


@dataclass(frozen=True, slots=True)
class SwapRecord:
    """The progress and the directories of the new OUTPUT.

    Of ``BUILT_DIRS``, those that ``directories`` does not name are deleted.
    """

    progress: Progress
    directories: tuple[Annotated[str, one_of(*BUILT_DIRS)], ...]

    def check_fields(self) -> None:
        """Raise MismatchError if progress counts index files and the new OUTPUT has none."""
        files = self.progress.index_files
        if files and INDEX_DIR not in self.directories:
            reason = f"it lacks {INDEX_DIR}, and progress counts {files} index files"
            raise MismatchError(reason, "directories")


def write_swap(output: Path, record: SwapRecord, disk: Disk) -> None:
    """Write, durably, the record of a swap, which the next start finishes if it is interrupted."""
    disk.replace(output / SWAP, encode_record(record))


def read_swap(output: Path) -> SwapRecord | None:
    """Return the record of the swap in progress, None if there is none.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    return read_record(output / SWAP, SwapRecord)


def finish_swap(output: Path, progress: Progress | None, disk: Disk) -> Progress | None:
    """Finish the swap in progress, if any, and delete the remains of a rebuild.

    Return the resulting progress. If a broker has run on OUTPUT since, its queues are kept.
    """
    record = read_swap(output)
    if record is not None:
        progress = _finish(output, record, progress, disk)
        discard_resume_point(output, disk)  # durably, before the swap is over
        disk.remove(output / SWAP)
        disk.sync()
    if (output / BULK_DIR).is_dir() and not (output / BOOT).exists():
        disk.remove_tree(output / BULK_DIR)
        disk.sync()
    return progress


def _finish(
    output: Path, record: SwapRecord, progress: Progress | None, disk: Disk
) -> Progress | None:
    """Move the old files away, write progress, move the new files in.

    Progress is marked as recovering until all files are in place: it never names missing files.
    """
    names, target = record.directories, record.progress
    new, old = output / NEW_OUTPUT_DIR, output / OLD_OUTPUT_DIR
    for parent in (output, new, old):
        disk.include_in_sync(parent)
    disk.sync()
    if detect_foreign_writer(output, target.stamp):
        return progress
    _check_matches_rebuild(output, names, target)
    for name in names:
        refuse_link(new / name)
        if not (new / name).is_dir() and not (output / name).is_dir():
            reason = f"{name} is neither in {new} nor in {output}"
            raise DamageError(output / SWAP, 0, reason)
    for name in BUILT_DIRS:
        if name not in names or (new / name).is_dir():  # else it is in place already
            _move_away(output / name, old / name, disk)
    write_progress(output, replace(target, is_recovering=True), disk)
    for name in reversed(names):
        if (new / name).is_dir():
            disk.move(new / name, output / name)
            disk.sync()
    write_progress(output, target, disk)
    return target


def _check_matches_rebuild(output: Path, names: tuple[str, ...], target: Progress) -> None:
    """Refuse a record that does not match the rebuild in ``reput/bulk``. Raises DamageError.

    The new OUTPUT's own progress is kept until all files are in place. By then the directories that
    the record does not name have been moved away.
    """
    built = read_progress(output / NEW_OUTPUT_DIR)
    if built is not None and built.reput_from_offset != target.reput_from_offset:
        reason = (
            f"it ends at offset {target.reput_from_offset}, its rebuild at "
            f"{built.reput_from_offset}"
        )
        raise DamageError(output / SWAP, 0, reason)
    for name in (name for name in BUILT_DIRS if name not in names):
        if (output / NEW_OUTPUT_DIR / name).is_dir():
            reason = f"it does not name {name}, which the rebuild made"
            raise DamageError(output / SWAP, 0, reason)
        if built is None and (output / name).is_dir():
            reason = f"it would delete {name}, but {output / BULK_DIR} holds no rebuild"
            raise DamageError(output / SWAP, 0, reason)


def discard_rebuild(output: Path, disk: Disk) -> None:
    """Delete the new OUTPUT of a rebuild; first, durably, the file that makes it resumable."""
    discard_resume_point(output, disk)
    if (output / BULK_DIR).is_dir():
        disk.remove_tree(output / BULK_DIR)


def discard_resume_point(output: Path, disk: Disk) -> None:
    """Delete, durably, the file that makes an interrupted rebuild resumable."""
    disk.remove(output / BOOT)
    disk.sync()


def _move_away(place: Path, old: Path, disk: Disk) -> None:
    if place.is_dir():
        disk.move(place, old)
        disk.sync()
