"""The new OUTPUT of a rebuild: dispatched in a directory of the old one, then swapped in.

=====================  =============================================================
``reput/bulk/new``     the new OUTPUT: the files of a dispatch, without a lock of its own
``reput/bulk/boot``    the id of the boot during which the new OUTPUT was created
``reput/bulk/old``     the old queues and index, during the swap
=====================  =============================================================

The new OUTPUT has no readers before it is swapped in, so it is not synced until then. After a
process crash its files are complete until the machine reboots: until then, the next rebuild resumes
it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from checkpoints.allowed_output import check_replaced
from checkpoints.output import DispatchOutput
from checkpoints.output_entries import BUILT_DIRS
from checkpoints.ownership import read_ownership_stamp
from checkpoints.state_paths import BOOT, NEW_OUTPUT_DIR
from checkpoints.swap import SwapRecord, discard_rebuild, finish_swap, write_swap
from store.errors import ConfigError, StoreError
from store.io.file_system import read_small_file
from store.output.progress import read_progress

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class NewOutput:
    """The new OUTPUT in one that ``DispatchOutput.replacing`` locked."""

    def __init__(self, output: DispatchOutput) -> None:
        self._output = output
        self._path = output.path / NEW_OUTPUT_DIR

    def open(self) -> DispatchOutput:
        """Resume the new OUTPUT of an interrupted rebuild; if that is impossible, begin one.

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

    def begin(self) -> DispatchOutput:
        """Return a new OUTPUT that begins at the log's minimum; delete the remains of another."""
        output = self._output
        discard_rebuild(output.path, output.disk)
        output.disk.put(output.path / BOOT, [boot_id()])
        return self._open()

    def _is_of_this_boot(self) -> bool:
        try:
            return boot_id() == read_small_file(self._output.path / BOOT) != b""
        except OSError:
            return False

    def _resume(self) -> DispatchOutput | None:
        progress = read_progress(self._path)
        if progress is None or progress.begin_offset != self._begin_offset():
            return None
        if progress.lost:  # the log may be whole again
            return None
        return self._open()

    def _begin_offset(self) -> int:
        """Return the log's minimum offset, or the start of the old OUTPUT if that is higher."""
        self._output.log.refresh()
        return max(self._output.log.min_offset(), self._output.progress.begin_offset)

    def _open(self) -> DispatchOutput:
        self._output.disk.defer_sync(self._path)
        return DispatchOutput.open_new_output(
            self._output, self._path, self._begin_offset(), self._output.log.config
        )

    def swap_in(self, built: DispatchOutput) -> None:
        """Make the new OUTPUT durable, and swap its queues and index for the old ones.

        Raises ConfigError if they cannot be renamed, StoreIOError. Then OUTPUT is unchanged, or
        the next start finishes the swap.
        """
        output, progress = self._output, built.progress
        self._check_can_be_renamed()
        output.disk.sync_all(self._path)
        output.disk.defer_sync(None)
        progress = replace(
            progress,
            batch=output.progress.batch + progress.batch,
            generation=output.progress.batch,  # newer than that of the old files
            log_was_clean=output.progress.log_was_clean,
            stamp=read_ownership_stamp(output.path, output.progress.stamp.checkpoint),
        )
        names = tuple(name for name in BUILT_DIRS if (self._path / name).is_dir())
        write_swap(output.path, SwapRecord(progress, names), output.disk)
        output.own_replacement(finish_swap(output.path, None, output.disk) or progress)

    def _check_can_be_renamed(self) -> None:
        """Refuse to swap directories that cannot be renamed, before the first one is."""
        check_replaced(self._output.path)
        device = self._output.path.stat().st_dev
        for name in (*BUILT_DIRS, NEW_OUTPUT_DIR):
            place = self._output.path / name
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
