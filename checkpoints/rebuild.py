"""The rebuild of a whole root: a new root is dispatched below the old one, and swapped for it.

=====================  =============================================================
``reput/bulk/new``     the new root: what a dispatch makes, without a lock of its own
``reput/bulk/boot``    the boot of this machine that the new root belongs to
``reput/bulk/old``     the old queues and index, during the swap
=====================  =============================================================

Nobody reads the new root before it is swapped in, so nothing of it is synced until then. What a
killed rebuild leaves is complete until the machine is booted again: until then the next rebuild
resumes it, afterwards it starts over.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from checkpoints.entries import BUILT_DIRS
from checkpoints.output import check_replaced
from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from checkpoints.signs import read_signs
from checkpoints.swap import BOOT, NEW_ROOT_DIR, SwapRecord, finish_swap, forget, write_swap
from store.errors import ConfigError, StoreError
from store.file_system import read_small_file

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class NewRoot:
    """The new root of a root that ``DispatchRoot.replacing`` took."""

    def __init__(self, root: DispatchRoot) -> None:
        self._root = root
        self._path = root.path / NEW_ROOT_DIR

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
        root.disk.put(root.path / BOOT, [boot_id()])
        root.begin_at_minimum()
        return self._open()

    def _is_of_this_boot(self) -> bool:
        boot = boot_id()
        try:
            return boot != b"" and boot == read_small_file(self._root.path / BOOT)
        except OSError:
            return False

    def _resume(self) -> DispatchRoot | None:
        progress = read_progress(self._path)
        if progress is None or progress.begin_offset != self._root.progress.begin_offset:
            return None
        return self._open()

    def _open(self) -> DispatchRoot:
        self._root.disk.leave_unsynced(self._path)
        return DispatchRoot.unread(self._root, self._path)

    def swap_in(self, built: DispatchRoot) -> None:
        """Make the new root durable, and put its queues and index in the places of the old ones.

        Raises ConfigError where they cannot be renamed, StoreIOError; then the root is as it was,
        or the next start finishes the swap.
        """
        root, progress = self._root, built.progress
        self._check_places()
        root.disk.sync_all(self._path)
        root.disk.leave_unsynced(None)
        # A new generation: the difference is larger than that of the old root was.
        number = progress.milestones[-1].number if progress.milestones else 0
        progress = replace(
            progress,
            batch=root.progress.batch + number,
            log_was_clean=root.progress.log_was_clean,
            signs=read_signs(root.path, root.progress.signs.checkpoint),
        )
        names = tuple(name for name in BUILT_DIRS if (self._path / name).is_dir())
        write_swap(root.path, SwapRecord((), progress, names), root.disk)
        root.replaced(finish_swap(root.path, None, root.disk) or progress)

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
