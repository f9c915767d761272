"""A device below real files: it knows what is not durable yet, and can lose it.

What a process changes is there at once, for all to read, as in a page cache. Until it is synced the
device keeps what is needed to undo it: for each sector and each file's size the former content, for
each change of a directory what it replaced. An fsync of a file makes its data durable, an fsync of
a directory its entries. ``power_loss`` then leaves one of the legal states:

* a sector, or a file's size, is as after any one of its unsynced writes, or as before the first;
* of the changes to one name, the first few are there, in order; a rename is there wholly or not;
* what lies in a directory that is not there is not there either.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

SECTOR = 512
_MEMORY = Path("/dev/shm")


class Chooser(Protocol):
    """Decides which of the unsynced changes a power loss leaves."""

    def kept(self, kind: str, numbers: Sequence[int]) -> int:
        """Return how many of the changes, the first ones, are kept: 0 to all.

        ``numbers`` are the places of the changes among all that were issued. ``kind`` is "data",
        "size" or "entry".
        """


@dataclass
class _File:
    """What is unsynced of one file: for each change its number, and what was there before."""

    descriptor: int  # kept open: the file may lose its name
    sectors: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """An unsynced change of a directory; ``backup`` is a link to a file that it took away."""

    number: int
    directory: int
    kind: str
    path: Path
    target: Path | None = None  # of a rename
    backup: Path | None = None
    made: int = 0  # the directory that a mkdir made or a rmdir took away

    @property
    def names(self) -> tuple[Path, ...]:
        return (self.path,) if self.target is None else (self.path, self.target)


def make_directory(parent: Path | None = None) -> Path:
    """Make a directory for a device, in memory if there is a file system in memory."""
    if parent is None and os.access(_MEMORY, os.W_OK):
        parent = _MEMORY
    return Path(tempfile.mkdtemp(prefix="reput-torture-", dir=parent)).resolve()


class Device:
    """Holds one directory tree, ``root``; all changes to it go through these calls."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self._backups = directory / "backups"
        self.root.mkdir(parents=True, exist_ok=True)
        self._backups.mkdir()
        self._files: dict[int, _File] = {}
        self._entries: list[_Entry] = []
        found = [self.root, *(p for p in sorted(self.root.rglob("*")) if p.is_dir())]
        self._directories = {path: -n for n, path in enumerate(found)}  # those that are there now
        self._number = 0

    @property
    def last_number(self) -> int:
        """The number of the change issued last."""
        return self._number

    @property
    def pending(self) -> int:
        """How many changes are not durable yet."""
        changes = (sum(map(len, f.sectors.values())) + len(f.sizes) for f in self._files.values())
        return len(self._entries) + sum(changes)

    # --- Changes to files ---

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write, and remember the sectors that change."""
        begin = offset - offset % SECTOR
        length = -(-(offset + len(data)) // SECTOR) * SECTOR - begin
        size, before = os.fstat(fd).st_size, os.pread(fd, length, begin).ljust(length, b"\0")
        done = os.pwrite(fd, data, offset)
        after = os.pread(fd, length, begin).ljust(length, b"\0")
        file, number = self._file(fd), self._next()
        for at in range(0, length, SECTOR):
            former = before[at : at + SECTOR]
            if former != after[at : at + SECTOR]:
                file.sectors.setdefault((begin + at) // SECTOR, []).append((number, former))
        if offset + done > size:
            file.sizes.append((number, size))
        return done

    def ftruncate(self, fd: int, size: int) -> None:
        """Make a file longer."""
        before = os.fstat(fd).st_size
        assert size >= before, "what is cut off cannot be undone here"
        os.ftruncate(fd, size)
        if size > before:
            self._file(fd).sizes.append((self._next(), before))

    def fsync(self, fd: int) -> None:
        """Make a file's data and size durable."""
        self._forget_file(os.fstat(fd).st_ino)

    # --- Changes to directories ---

    def create(self, path: Path) -> int:
        """Create an empty file."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        self._note("create", path)
        return fd

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        backup = self._back_up(path)
        path.unlink()
        self._note("unlink", path, backup=backup)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file in its directory."""
        assert source.parent == target.parent
        backup = self._back_up(target) if target.exists() else None
        target.unlink(missing_ok=True)  # ext4 writes out a file that replaces another
        source.rename(target)
        self._note("rename", source, target=target, backup=backup)

    def mkdir(self, path: Path) -> None:
        """Make a directory."""
        path.mkdir()
        self._directories[path] = made = self._next()
        self._note("mkdir", path, made=made)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()
        self._note("rmdir", path, made=self._directories.pop(path))

    def fsync_directory(self, fd: int) -> None:
        """Make a directory's entries durable."""
        directory = self._directories[Path(os.readlink(f"/proc/self/fd/{fd}"))]
        self._drop_backups(e for e in self._entries if e.directory == directory)
        self._entries = [e for e in self._entries if e.directory != directory]

    # --- Power ---

    def power_loss(self, chooser: Chooser) -> None:
        """Lose what the chooser does not keep; the rest is durable now."""
        for entry in reversed(self._lost_entries(chooser)):
            self._undo(entry)
        self._drop_backups(self._entries)
        self._entries = []
        for inode, file in list(self._files.items()):
            if os.fstat(file.descriptor).st_nlink:
                _lose_data(file, chooser)
            self._forget_file(inode)

    def _lost_entries(self, chooser: Chooser) -> list[_Entry]:
        """Choose the directory changes that are lost; after one, its names keep no other."""
        lost: list[_Entry] = []
        stuck: set[tuple[int, Path]] = set()
        missing: set[int] = set()  # directories that will not be there
        for entry in self._entries:
            names = {(entry.directory, name) for name in entry.names}
            is_lost = entry.directory in missing or bool(names & stuck)
            if is_lost or not chooser.kept("entry", [entry.number]):
                lost.append(entry)
                stuck |= names
                missing |= {entry.made} if entry.kind == "mkdir" else set()
        return lost

    def _undo(self, entry: _Entry) -> None:
        """Undo a change of a directory, all later changes that are lost being undone."""
        if self._directories.get(entry.path.parent) != entry.directory:
            return  # The directory itself is gone, and for good.
        if entry.kind == "create":
            entry.path.unlink()
        elif entry.kind == "rename":
            assert entry.target is not None
            entry.target.rename(entry.path)
        elif entry.kind == "mkdir":
            shutil.rmtree(entry.path)
            gone = [d for d in self._directories if d.is_relative_to(entry.path)]
            for directory in gone:
                del self._directories[directory]
        elif entry.kind == "rmdir":
            entry.path.mkdir()
            self._directories[entry.path] = entry.made
        if entry.backup is not None:
            os.link(entry.backup, entry.target or entry.path)

    # --- What is remembered ---

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _note(
        self,
        kind: str,
        path: Path,
        *,
        target: Path | None = None,
        backup: Path | None = None,
        made: int = 0,
    ) -> None:
        directory = self._directories[path.parent]
        self._entries.append(_Entry(self._next(), directory, kind, path, target, backup, made))

    def _back_up(self, path: Path) -> Path:
        backup = self._backups / str(self._next())
        os.link(path, backup)
        return backup

    def _drop_backups(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            if entry.backup is not None:
                entry.backup.unlink()

    def _file(self, fd: int) -> _File:
        inode = os.fstat(fd).st_ino
        file = self._files.get(inode)
        if file is None:
            file = self._files[inode] = _File(os.dup(fd))
        return file

    def _forget_file(self, inode: int) -> None:
        file = self._files.pop(inode, None)
        if file is not None:
            os.close(file.descriptor)


def _lose_data(file: _File, chooser: Chooser) -> None:
    """Bring each sector and the size of a file back to one of its versions."""
    status = os.fstat(file.descriptor)
    size = status.st_size
    if file.sizes:
        kept = chooser.kept("size", [number for number, _ in file.sizes])
        size = file.sizes[kept][1] if kept < len(file.sizes) else size
    for sector, versions in sorted(file.sectors.items()):
        if sector * SECTOR >= size:
            continue
        kept = chooser.kept("data", [number for number, _ in versions])
        if kept < len(versions):
            os.pwrite(file.descriptor, versions[kept][1], sector * SECTOR)
    os.ftruncate(file.descriptor, size)
    os.utime(file.descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
