"""The system calls that change the disk, one method each: the base of ``Disk``.

Tests override them to count, fail or undo a change. Python itself retries a call that a signal
interrupts.
"""

from __future__ import annotations

import os
from pathlib import Path

from store.io.file_system import sync_file_system


class DiskPrimitives:
    """One method for each system call that changes the disk. Raise OSError."""

    def _create(self, path: Path) -> int:
        """Create an empty file, which must not exist; return its descriptor."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    def _ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write some of ``data``; return the number of bytes written."""
        return os.pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        os.fsync(fd)

    def _fsync_directory(self, fd: int) -> None:
        os.fsync(fd)

    def _syncfs(self, fd: int) -> None:
        sync_file_system(fd)

    def _rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def _unlink(self, path: Path) -> None:
        path.unlink()

    def _mkdir(self, path: Path) -> None:
        path.mkdir()

    def _rmdir(self, path: Path) -> None:
        path.rmdir()
