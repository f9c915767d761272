"""A process's disk on a ``Device``: any call can kill the process, fail, or write short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO

from store.io.disk import Disk
from tests.torture.simulation.device import Device


class PowerLost(BaseException):
    """The process ends here: no code may catch this and continue."""


@dataclass(frozen=True)
class Plan:
    """The faults of a disk. Calls are counted from 1; 0 means never."""

    dies_at: int = 0
    fails_at: int = 0
    errno: int = 0
    shorten: Random | None = None  # draws how much of each write is performed
    interrupts: bool = False  # whether the first attempt of each write is interrupted


class SimulatedDisk(Disk):
    """One process's disk. After the process has ended, none of its calls reaches the device."""

    sync_threads = 1

    def __init__(self, device: Device, plan: Plan = Plan()) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.died_in = ""  # the call in which the process ended
        self.failed: Path | None = None  # the path that the failed call was on
        self.failed_call = ""
        self._is_interrupted = False
        self._device = device
        self._plan = plan
        self._is_dead = False
        self._locks: list[IO[bytes]] = []

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended in a call."""
        return self._is_dead

    @property
    def holds_lock(self) -> bool:
        """Whether an acquired lock has not been released."""
        return not all(handle.closed for handle in self._locks)

    def end(self) -> None:
        """Close files and release locks, as the end of a process does."""
        self._is_dead = True
        self.close()
        for handle in self._locks:
            self.unlock(handle)

    def lock(self, path: Path, content: bytes) -> IO[bytes]:
        """Acquire a broker's lock, and track it."""
        handle = super().lock(path, content)
        self._locks.append(handle)
        return handle

    def _begin(self, call: str, on: Path | int) -> None:
        """Count a call, and end or fail here if the plan says so."""
        if self._is_dead:
            raise PowerLost(call)
        self.calls.append(call)
        count = len(self.calls)
        if count == self._plan.dies_at:
            self._is_dead, self.died_in = True, call
            raise PowerLost(call)
        if count == self._plan.fails_at:
            self.failed, self.failed_call = on if isinstance(on, Path) else path_of(on), call
            raise OSError(self._plan.errno, os.strerror(self._plan.errno))

    def _create(self, path: Path) -> int:
        self._begin("create", path)
        return self._device.create(path)

    def _ftruncate(self, fd: int, size: int) -> None:
        self._begin("ftruncate", fd)
        self._device.ftruncate(fd, size)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        try:
            self._begin("pwrite", fd)
        except PowerLost:
            if len(self.calls) == self._plan.dies_at and self._plan.shorten is not None:
                self._write_some(fd, data, offset)  # the process died inside the call
                self._plan = Plan()
            raise
        self._is_interrupted = self._plan.interrupts and not self._is_interrupted
        if self._is_interrupted:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        return self._write_some(fd, data, offset)

    def _write_some(self, fd: int, data: memoryview, offset: int) -> int:
        random = self._plan.shorten
        if random is not None and random.random() < 0.5:
            data = data[: 1 + int(random.random() * len(data))]
        return self._device.pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        self._begin("fsync", fd)
        self._device.fsync(fd)

    def _fsync_directory(self, fd: int) -> None:
        self._begin("fsync directory", fd)
        self._device.fsync_directory(fd)

    def _rename(self, source: Path, target: Path) -> None:
        self._begin("rename", target)
        self._device.rename(source, target)

    def _unlink(self, path: Path) -> None:
        self._begin("unlink", path)
        self._device.unlink(path)

    def _mkdir(self, path: Path) -> None:
        self._begin("mkdir", path)
        self._device.mkdir(path)

    def _rmdir(self, path: Path) -> None:
        self._begin("rmdir", path)
        self._device.rmdir(path)


def path_of(fd: int) -> Path:
    """Return the path of an open file."""
    return Path(f"/proc/self/fd/{fd}").readlink()


@contextmanager
def process(device: Device, plan: Plan = Plan()) -> Iterator[SimulatedDisk]:
    """Simulate a process; when it ends, killed or not, its files and locks are released."""
    disk = SimulatedDisk(device, plan)
    try:
        yield disk
    except PowerLost:
        assert disk.is_dead
    finally:
        disk.end()
