"""The new root of a rebuild: it is dispatched below the old root, and then swapped in.

All of it replaces the queues and the index of the old root, or, where some queues are rebuilt, it
holds only these, without an index, and they replace theirs.

=====================  =============================================================
``reput/bulk/new``     the new root: what a dispatch makes, without a lock of its own
``reput/bulk/boot``    the boot of this machine that the new root belongs to, and the
                       queues that are rebuilt if not all are
``reput/bulk/old``     the old queues and index, during the swap of a whole root
=====================  =============================================================

Nobody reads the new root before it is swapped in, so nothing of it is synced until then. What a
killed rebuild leaves is complete until the machine is booted again: until then the next rebuild of
the same queues resumes it. Any other rebuild deletes it and starts over.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from checkpoints.entries import BUILT_DIRS
from checkpoints.foreign_writer import read_ownership_stamp
from checkpoints.output import check_queue_directory, check_replaced
from checkpoints.progress import read_progress
from checkpoints.queue_selection import QueueSelection
from checkpoints.root import DispatchRoot
from checkpoints.swap import (
    BOOT,
    NEW_DIR,
    NEW_ROOT_DIR,
    REBUILD_DIR,
    SwapRecord,
    finish_swap,
    forget,
    forget_beginning,
    write_swap,
)
from store.consumequeue.names import list_queues
from store.consumequeue.writer import QueueKey
from store.errors import ConfigError, StoreError
from store.io.file_system import read_small_file
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class NewRoot:
    """The new root of a root that ``DispatchRoot.replacing`` took.

    With a selection, of one that ``DispatchRoot.open`` took and recovered.
    """

    def __init__(self, root: DispatchRoot, selection: QueueSelection | None = None) -> None:
        self._root = root
        self._path = root.path / NEW_ROOT_DIR
        self._selection = selection
        self._config = root.log.config
        if selection is not None:
            self._config = replace(self._config, message_index_enable=False)

    def open(self) -> DispatchRoot:
        """Return the new root that a killed rebuild left; begin one if that cannot be resumed.

        Raises StoreIOError.
        """
        if self._is_of_this_boot():
            try:
                found = self._resume()
            except StoreError as e:
                _log.info("the rebuild that was interrupted cannot be resumed: %s", e)
            else:
                if found is not None:
                    return found
        return self.begin()

    def begin(self) -> DispatchRoot:
        """Return a new root that begins at the log's minimum, without what was left of another."""
        root = self._root
        forget(root.path, root.disk)
        root.disk.put(root.path / BOOT, [self._mark()])
        return self._open()

    def _mark(self) -> bytes:
        """Return what the boot file holds while this rebuild can be resumed."""
        queues = f"\n{self._selection.name}" if self._selection is not None else ""
        return boot_id() + os.fsencode(queues)

    def _is_of_this_boot(self) -> bool:
        try:
            return boot_id() != b"" and self._mark() == read_small_file(self._root.path / BOOT)
        except OSError:
            return False

    def _resume(self) -> DispatchRoot | None:
        progress = read_progress(self._path)
        if progress is None or progress.begin_offset != self._begin():
            return None
        if self._selection is not None and not self._selection.is_begun_by(progress):
            return None
        return self._open()

    def _begin(self) -> int:
        """Return the log's minimum; later where the old root began later."""
        self._root.log.refresh()
        return max(self._root.log.min_offset(), self._root.progress.begin_offset)

    def _open(self) -> DispatchRoot:
        self._root.disk.defer_sync(self._path)
        return DispatchRoot.unread(self._root, self._path, self._begin(), self._config)

    def swap_in(self, built: DispatchRoot) -> None:
        """Make the new root durable, and put its queues and index in the places of the old ones.

        Raises ConfigError where they cannot be renamed, StoreIOError; then the root is as it was,
        or the next start finishes the swap.
        """
        root, progress = self._root, built.progress
        self._check_places()
        self._sync()
        # A new generation: the difference is larger than that of the old root was.
        number = progress.milestones[-1].number if progress.milestones else 0
        progress = replace(
            progress,
            batch=root.progress.batch + number,
            log_was_clean=root.progress.log_was_clean,
            signs=read_ownership_stamp(root.path, root.progress.signs.checkpoint),
        )
        names = tuple(name for name in BUILT_DIRS if (self._path / name).is_dir())
        write_swap(root.path, SwapRecord((), progress, names), root.disk)
        root.replaced(finish_swap(root.path, None, root.disk) or progress)

    def swap_queues_in(self, built: DispatchRoot, selection: QueueSelection) -> list[QueueKey]:
        """Make the queues of the new root durable, and put them in the places of the old ones.

        Return which they are. Raises as ``swap_in``.
        """
        root, keys = self._root, sorted(list_queues(self._path / CONSUME_QUEUE_DIR))
        for key in keys:
            self._check_queue(key)
            ext = Path(CONSUME_QUEUE_EXT_DIR, key[0], str(key[1]))
            if built.log.config.enable_consume_queue_ext and (root.path / ext).is_dir():
                root.disk.make_directory(self._path / ext)  # the old one goes, if it has no more
        self._sync()
        forget_beginning(root.path, root.disk)
        if keys:
            for kind in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
                if (self._path / kind).is_dir():
                    root.disk.move(self._path / kind, root.path / NEW_DIR / kind)
            root.disk.sync()
            progress = selection.merge(built.progress, keys)
            write_swap(root.path, SwapRecord(tuple(keys), progress), root.disk)
        root.progress = finish_swap(root.path, root.progress, root.disk) or root.progress
        return keys

    def _sync(self) -> None:
        self._root.disk.sync_all(self._path)
        self._root.disk.defer_sync(None)

    def _check_queue(self, key: QueueKey) -> None:
        """Refuse to swap a queue that cannot be renamed or whose place holds foreign files."""
        root, queue = self._root.path, Path(key[0], str(key[1]))
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

    def _check_places(self) -> None:
        """Refuse to swap what cannot be renamed, before anything is."""
        check_replaced(self._root.path)
        device = self._root.path.stat().st_dev
        for name in (*BUILT_DIRS, NEW_ROOT_DIR):
            place = self._root.path / name
            if place.is_symlink() or (place.is_dir() and place.stat().st_dev != device):
                raise ConfigError(
                    f"{place} is a link or lies on another file system, and cannot be swapped: "
                    "rebuild into a new OUTPUT"
                )


def boot_id() -> bytes:
    """Return the kernel's boot id, b"" where it cannot be read."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return b""
