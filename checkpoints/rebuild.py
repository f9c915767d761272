"""The new root of a rebuild: dispatched in a directory of the old root, then swapped in.

A full rebuild replaces all queues and the index of the old root. In a rebuild of some queues, the
new root holds only these, without an index, and they replace the old ones.

=====================  =============================================================
``reput/bulk/new``     the new root: the files of a dispatch, without a lock of its own
``reput/bulk/boot``    the id of the boot during which the new root was created, and the
                       selected queues if not all are rebuilt
``reput/bulk/old``     the old queues and index, during the swap of a whole root
=====================  =============================================================

The new root has no readers before it is swapped in, so it is not synced until then. After a process
crash its files are complete until the machine reboots: until then, the next rebuild of the same
queues resumes it. Any other rebuild deletes it and starts over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from checkpoints.entries import BUILT_DIRS
from checkpoints.foreign_writer import read_ownership_stamp
from checkpoints.output import check_queue_directory, check_replaced
from checkpoints.progress import Progress, RollbackPoint, queue_key, read_progress
from checkpoints.root import DispatchRoot
from checkpoints.state_paths import BOOT, NEW_QUEUES_DIR, NEW_ROOT_DIR, REBUILD_DIR
from checkpoints.swap import (
    SwapRecord,
    discard_rebuild,
    discard_resume_point,
    finish_swap,
    write_swap,
)
from store.commitlog.scanner import Damage
from store.consumequeue.names import list_queues, queue_directory
from store.consumequeue.writer import QueueKey
from store.errors import ConfigError, StoreError
from store.io.file_system import read_small_file
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_End = TypeVar("_End", Progress, RollbackPoint)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueSelection:
    """The queues of a topic, or the one of ``queue_id``; ``output``: the progress of their root.

    They are dispatched up to the root's progress, without the ranges that the root lost. The
    dispatch stops at each rollback point of the root, because it records the ends of queues.
    """

    topic: str
    queue_id: int | None
    output: Progress

    @property
    def name(self) -> str:
        """The selection as text, unique to it."""
        return f"{self.topic}/{'*' if self.queue_id is None else self.queue_id}"

    @property
    def rollback_offsets(self) -> frozenset[int]:
        """The offsets of the root's rollback points."""
        return frozenset(m.reput_from_offset for m in self.output.milestones)

    def includes(self, key: QueueKey) -> bool:
        """Return whether a queue is selected."""
        return key[0] == self.topic and self.queue_id in (None, key[1])

    def stops(self) -> list[tuple[int, Damage | None]]:
        """Return the offsets to stop at, ascending, each with the lost range that begins there.

        The last one is the end of the root.
        """
        stops: dict[int, Damage | None] = dict.fromkeys(self.rollback_offsets)
        stops[self.output.reput_from_offset] = None
        for lost in self.output.lost:
            stops[lost.begin] = Damage(lost.begin, lost.end, lost.path, lost.reason)
        return sorted(stops.items(), key=lambda stop: stop[0])

    def is_lost(self, offset: int) -> bool:
        """Return whether a lost range of the root begins at an offset."""
        return any(lost.begin == offset for lost in self.output.lost)

    def can_resume(self, built: Progress) -> bool:
        """Return whether an interrupted rebuild has stopped and skipped where this one would.

        If not, the root has been rolled back and dispatched again since.
        """
        begin, end, output = built.begin_offset, built.reput_from_offset, self.output
        lost = [(max(r.begin, begin), r.end) for r in output.lost if begin < r.end <= end]
        known = {m.reput_from_offset for m in built.milestones}
        needed = {
            m.reput_from_offset
            for m in output.milestones
            if m.last_record.offset >= begin and m.reput_from_offset <= end
        }
        is_same = [(r.begin, r.end) for r in built.lost] == lost and needed <= known
        return is_same and end <= output.reput_from_offset

    def merge(self, built: Progress, keys: Collection[QueueKey]) -> Progress:
        """Return the root's progress with the drops and ends of the rebuilt queues.

        They differ from the previous ones if the log's oldest messages have expired. Rollback
        points before the log's minimum offset are unchanged: nothing can be rolled back to them.
        """
        rebuilt = {point.reput_from_offset: point for point in built.milestones}
        points = tuple(
            _with_queues(point, rebuilt[point.reput_from_offset], keys)
            if point.reput_from_offset in rebuilt
            else point
            for point in self.output.milestones
        )
        return replace(_with_drops(self.output, built, keys), milestones=points)


def _with_queues(
    point: RollbackPoint, rebuilt: RollbackPoint, keys: Collection[QueueKey]
) -> RollbackPoint:
    others = tuple(end for end in point.marks if end.key not in keys)
    return replace(_with_drops(point, rebuilt, keys), marks=others + rebuilt.marks)


def _with_drops(end: _End, rebuilt: _End, keys: Collection[QueueKey]) -> _End:
    others = {name: drops for name, drops in end.drops.items() if queue_key(name) not in keys}
    return replace(end, drops=others | rebuilt.drops)


class NewRoot:
    """The new root of a root that ``DispatchRoot.replacing`` locked.

    With a selection, of a root that ``DispatchRoot.open`` locked and recovered.
    """

    def __init__(self, root: DispatchRoot, selection: QueueSelection | None = None) -> None:
        self._root = root
        self._path = root.path / NEW_ROOT_DIR
        self._selection = selection
        self._config = root.log.config
        if selection is not None:
            self._config = replace(self._config, message_index_enable=False)

    def open(self) -> DispatchRoot:
        """Resume the new root of an interrupted rebuild; if that is impossible, begin one.

        Raises StoreIOError.
        """
        if self._is_of_this_boot():
            try:
                found = self._resume()
            except StoreError as e:
                _log.info("cannot resume the interrupted rebuild: %s", e)
            else:
                if found is not None:
                    return found
        return self.begin()

    def begin(self) -> DispatchRoot:
        """Return a new root that begins at the log's minimum; delete the remains of another."""
        root = self._root
        discard_rebuild(root.path, root.disk)
        root.disk.put(root.path / BOOT, [self._boot_record()])
        return self._open()

    def _boot_record(self) -> bytes:
        """Return the content of the boot file with which this rebuild can be resumed."""
        queues = f"\n{self._selection.name}" if self._selection is not None else ""
        return boot_id() + os.fsencode(queues)

    def _is_of_this_boot(self) -> bool:
        try:
            return boot_id() != b"" and self._boot_record() == read_small_file(
                self._root.path / BOOT
            )
        except OSError:
            return False

    def _resume(self) -> DispatchRoot | None:
        progress = read_progress(self._path)
        if progress is None or progress.begin_offset != self._begin_offset():
            return None
        if self._selection is not None and not self._selection.can_resume(progress):
            return None
        return self._open()

    def _begin_offset(self) -> int:
        """Return the log's minimum offset, or the begin of the old root if that is higher."""
        self._root.log.refresh()
        return max(self._root.log.min_offset(), self._root.progress.begin_offset)

    def _open(self) -> DispatchRoot:
        self._root.disk.defer_sync(self._path)
        return DispatchRoot.open_new_root(
            self._root, self._path, self._begin_offset(), self._config
        )

    def swap_in(self, built: DispatchRoot) -> None:
        """Make the new root durable, and swap its queues and index for the old ones.

        Raises ConfigError if they cannot be renamed, StoreIOError. Then the root is unchanged, or
        the next start finishes the swap.
        """
        root, progress = self._root, built.progress
        self._check_can_be_renamed()
        self._sync()
        # A new generation: its number (see ``store.root.progress``) exceeds that of the old root.
        number = progress.milestones[-1].number if progress.milestones else 0
        progress = replace(
            progress,
            batch=root.progress.batch + number,
            log_was_clean=root.progress.log_was_clean,
            signs=read_ownership_stamp(root.path, root.progress.signs.checkpoint),
        )
        names = tuple(name for name in BUILT_DIRS if (self._path / name).is_dir())
        write_swap(root.path, SwapRecord((), progress, names), root.disk)
        root.own_replacement(finish_swap(root.path, None, root.disk) or progress)

    def swap_queues_in(self, built: DispatchRoot, selection: QueueSelection) -> list[QueueKey]:
        """Make the queues of the new root durable, and swap them for the old ones.

        Return the queues. Raises as ``swap_in``.
        """
        root, keys = self._root, sorted(list_queues(self._path))
        for key in keys:
            self._check_queue(key)
            ext = queue_directory(Path(CONSUME_QUEUE_EXT_DIR), *key)
            if built.log.config.enable_consume_queue_ext and (root.path / ext).is_dir():
                root.disk.make_directory(
                    self._path / ext
                )  # so that the old one is replaced even if no ext units remain
        self._sync()
        discard_resume_point(root.path, root.disk)
        if keys:
            for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
                if (self._path / kind).is_dir():
                    root.disk.move(self._path / kind, root.path / NEW_QUEUES_DIR / kind)
            root.disk.sync()
            progress = selection.merge(built.progress, keys)
            write_swap(root.path, SwapRecord(tuple(keys), progress), root.disk)
        root.progress = finish_swap(root.path, root.progress, root.disk) or root.progress
        return keys

    def _sync(self) -> None:
        self._root.disk.sync_all(self._path)
        self._root.disk.defer_sync(None)

    def _check_queue(self, key: QueueKey) -> None:
        """Refuse to swap a queue that cannot be renamed, or whose directory holds foreign files."""
        root, queue = self._root.path, queue_directory(Path(), *key)
        for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
            new, place = self._path / kind / queue, root / kind / queue
            check_queue_directory(place)
            while not place.exists():
                place = place.parent
            if new.is_dir() and new.stat().st_dev != place.stat().st_dev:
                raise ConfigError(
                    f"{place} is on another file system than {root / REBUILD_DIR}: dispatch "
                    "the log into a new OUTPUT"
                )

    def _check_can_be_renamed(self) -> None:
        """Refuse to swap directories that cannot be renamed, before the first one is."""
        check_replaced(self._root.path)
        device = self._root.path.stat().st_dev
        for name in (*BUILT_DIRS, NEW_ROOT_DIR):
            place = self._root.path / name
            if place.is_symlink() or (place.is_dir() and place.stat().st_dev != device):
                raise ConfigError(
                    f"{place} is a link or on another file system, and cannot be swapped: "
                    "rebuild into a new OUTPUT"
                )


def boot_id() -> bytes:
    """Return the kernel's boot id, b"" where it cannot be read."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""
