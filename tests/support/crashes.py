"""A disk that kills its process at a chosen call and loses power with it.

Synced changes survive; any subset of the others may, regardless of their order. A name is synced
with its directory, content with its file.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from uuid import uuid4

from store.io.disk import Disk


class Killed(BaseException):
    """The process has been killed."""


@dataclass
class Change:
    """A change that is not yet durable: which syncs make it so, and how to undo it."""

    awaits: set[Path]
    undo: Callable[[], object]


def path_of(fd: int) -> Path:
    """Return the path of an open file."""
    return Path(f"/proc/self/fd/{fd}").readlink()


class CrashingDisk(Disk):
    """Performs ``calls`` primitive calls, then kills its process: later calls do nothing.

    ``graveyard``, on the same file system, keeps removed files that may reappear.
    """

    sync_threads = 1

    def __init__(self, calls: int, graveyard: Path) -> None:
        super().__init__()
        self.calls = calls
        self.changes: list[Change] = []
        self._is_dead = False
        self._graveyard = graveyard

    def follow(self, killed: "CrashingDisk") -> None:
        """Continue as the next process's disk: the killed one's unsynced changes may be lost."""
        self.changes = killed.changes

    def lose(self, random: Random, kept: float) -> None:
        """Lose unsynced changes; each one survives with probability ``kept``."""
        for change in reversed(self.changes):
            if random.random() >= kept:
                with suppress(OSError):  # the file it changed is lost too
                    change.undo()
        self.changes.clear()

    def _kept(self, path: Path) -> Path:
        """Link a file into the graveyard, so that it outlives its name."""
        self._graveyard.mkdir(exist_ok=True)
        kept = self._graveyard / uuid4().hex
        os.link(path, kept)
        return kept

    def _live(self) -> None:
        if self._is_dead or self.calls == 0:
            self._is_dead = True
            raise Killed
        self.calls -= 1

    def _create(self, path: Path) -> int:
        self._live()
        self.changes.append(Change({path.parent.resolve()}, path.unlink))
        return super()._create(path)

    def _ftruncate(self, fd: int, size: int) -> None:
        self._live()
        path, before = path_of(fd), os.fstat(fd).st_size
        self.changes.append(Change({path}, lambda: os.truncate(path, before)))
        super()._ftruncate(fd, size)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._live()
        path, before = path_of(fd), os.pread(fd, len(data), offset)
        self.changes.append(Change({path}, lambda: _write(path, before, offset)))
        return super()._pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        self._live()
        self._settle(path_of(fd))

    def _fsync_directory(self, fd: int) -> None:
        self._live()
        self._settle(path_of(fd))

    def _syncfs(self, fd: int) -> None:
        self._live()
        self.changes.clear()

    def _settle(self, path: Path) -> None:
        for change in self.changes:
            change.awaits.discard(path)
        self.changes = [change for change in self.changes if change.awaits]

    def _rename(self, source: Path, target: Path) -> None:
        self._live()
        before = self._kept(target) if target.is_file() else None

        def undo() -> None:
            target.rename(source)
            if before is not None:
                os.link(before, target)

        parents = {source.parent.resolve(), target.parent.resolve()}
        super()._rename(source, target)
        self.changes.append(Change(parents, undo))
        for change in self.changes[:-1]:  # pending changes follow the file to its new name
            change.awaits = {_moved(path, source, target) for path in change.awaits}

    def _unlink(self, path: Path) -> None:
        self._live()
        before = self._kept(path)
        super()._unlink(path)
        self.changes.append(Change({path.parent.resolve()}, lambda: os.link(before, path)))

    def _mkdir(self, path: Path) -> None:
        self._live()
        super()._mkdir(path)
        self.changes.append(Change({path.parent.resolve()}, path.rmdir))

    def _rmdir(self, path: Path) -> None:
        self._live()
        super()._rmdir(path)
        self.changes.append(Change({path.parent.resolve()}, path.mkdir))


def _moved(path: Path, source: Path, target: Path) -> Path:
    source, target = (p.parent.resolve() / p.name for p in (source, target))
    return target / path.relative_to(source) if path.is_relative_to(source) else path


def _write(path: Path, data: bytes, offset: int) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(fd, data, offset)
    finally:
        os.close(fd)
