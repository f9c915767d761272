"""The new root of a rebuild: dispatched in a directory of the old root, then swapped in.

=====================  =============================================================
``reput/bulk/new``     the new root: the files of a dispatch, without a lock of its own
``reput/bulk/boot``    the id of the boot during which the new root was created
``reput/bulk/old``     the old queues and index, during the swap
=====================  =============================================================

The new root has no readers before it is swapped in, so it is not synced until then. After a process
crash its files are complete until the machine reboots: until then, the next rebuild resumes it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from checkpoints.allowed_output import check_replaced
from checkpoints.output import DispatchRoot
from checkpoints.output_entries import BUILT_DIRS
from checkpoints.ownership import read_ownership_stamp
from checkpoints.state_paths import BOOT, NEW_ROOT_DIR
from checkpoints.swap import SwapRecord, discard_rebuild, finish_swap, write_swap
from store.errors import ConfigError, StoreError
from store.io.file_system import read_small_file
from store.output.progress import read_progress

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class NewRoot:
    """The new root of a root that ``DispatchRoot.replacing`` locked."""

    def __init__(self, root: DispatchRoot) -> None:
        self._root = root
        self._path = root.path / NEW_ROOT_DIR

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
        root.disk.put(root.path / BOOT, [boot_id()])
        return self._open()

    def _is_of_this_boot(self) -> bool:
        try:
            return boot_id() == read_small_file(self._root.path / BOOT) != b""
        except OSError:
            return False

    def _resume(self) -> DispatchRoot | None:
        progress = read_progress(self._path)
        if progress is None or progress.begin_offset != self._begin_offset():
            return None
        if progress.lost:  # the log may be whole again
            return None
        return self._open()

    def _begin_offset(self) -> int:
        """Return the log's minimum offset, or the start of the old root if that is higher."""
        self._root.log.refresh()
        return max(self._root.log.min_offset(), self._root.progress.begin_offset)

    def _open(self) -> DispatchRoot:
        self._root.disk.defer_sync(self._path)
        return DispatchRoot.open_new_root(
            self._root, self._path, self._begin_offset(), self._root.log.config
        )

    def swap_in(self, built: DispatchRoot) -> None:
        """Make the new root durable, and swap its queues and index for the old ones.

        Raises ConfigError if they cannot be renamed, StoreIOError. Then the root is unchanged, or
        the next start finishes the swap.
        """
        root, progress = self._root, built.progress
        self._check_can_be_renamed()
        root.disk.sync_all(self._path)
        root.disk.defer_sync(None)
        progress = replace(
            progress,
            batch=root.progress.batch + progress.batch,
            generation=root.progress.batch,  # newer than that of the old root
            log_was_clean=root.progress.log_was_clean,
            stamp=read_ownership_stamp(root.path, root.progress.stamp.checkpoint),
        )
        names = tuple(name for name in BUILT_DIRS if (self._path / name).is_dir())
        write_swap(root.path, SwapRecord(progress, names), root.disk)
        root.own_replacement(finish_swap(root.path, None, root.disk) or progress)

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
