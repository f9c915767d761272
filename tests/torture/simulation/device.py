"""A device beneath real files: it tracks what is not yet durable, and can lose it.

A change is visible to every process at once, as in a page cache. Until it is synced, the device
keeps what is needed to undo it: the previous content of each sector, the previous size of each
file, and what each directory change replaced. An fsync of a file makes its data durable, an fsync
of a directory its entries. ``power_loss`` then leaves one of the legal states:

* a sector, or a file's size, is as after any one of its unsynced writes, or as before the first;
* the changes to one name survive as a prefix, in order; a rename is atomic;
* the content of a directory that is lost is lost too.
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
    """Decides which of the unsynced changes a power loss keeps."""

    def kept(self, kind: str, numbers: Sequence[int]) -> int:
        """Return how many of the changes are kept, counted from the first: 0 to all.

        ``numbers`` are the positions of the changes among all changes issued. ``kind`` is "data",
        "size" or "entry".
        """


@dataclass
class _File:
    """The unsynced changes of one file: the number of each, and the content before it."""

    descriptor: int  # kept open because the file may be unlinked
    sectors: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """An unsynced change of a directory; ``backup`` links to the file that it removed."""

    number: int
    directory: int
    kind: str
    path: Path
    target: Path | None = None  # of a rename
    backup: Path | None = None
    made: int = 0  # the directory that a mkdir created or a rmdir removed

    @property
    def names(self) -> tuple[Path, ...]:
        return (self.path,) if self.target is None else (self.path, self.target)


def make_directory(parent: Path | None = None) -> Path:
    """Create a directory for a device, on an in-memory file system if there is one."""
    if parent is None and os.access(_MEMORY, os.W_OK):
        parent = _MEMORY
    return Path(tempfile.mkdtemp(prefix="reput-torture-", dir=parent)).resolve()


class Device:
    """Holds one directory tree below ``root``; every change to it is one of these calls."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self._backups = directory / "backups"
        self.root.mkdir(parents=True, exist_ok=True)
        self._backups.mkdir()
        self._files: dict[int, _File] = {}
        self._entries: list[_Entry] = []
        found = [self.root, *(p for p in sorted(self.root.rglob("*")) if p.is_dir())]
        self._directories = {path: -n for n, path in enumerate(found)}  # those that exist now
        self._number = 0

    @property
    def last_number(self) -> int:
        """The number of the most recent change."""
        return self._number

    @property
    def pending(self) -> int:
        """The number of changes that are not yet durable."""
        changes = (sum(map(len, f.sectors.values())) + len(f.sizes) for f in self._files.values())
        return len(self._entries) + sum(changes)

    # --- Changes to files ---

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write, and record the sectors that change."""
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
        """Extend a file."""
        before = os.fstat(fd).st_size
        assert size >= before, "the device cannot undo a truncation"
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
        """Create a directory."""
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
        """Lose what the chooser does not keep; the rest becomes durable."""
        for entry in reversed(self._lost_entries(chooser)):
            self._undo(entry)
        self._drop_backups(self._entries)
        self._entries = []
        for inode, file in list(self._files.items()):
            if os.fstat(file.descriptor).st_nlink:
                _lose_data(file, chooser)
            self._forget_file(inode)

    def _lost_entries(self, chooser: Chooser) -> list[_Entry]:
        """Choose the lost directory changes; later changes to the same names are lost too."""
        lost: list[_Entry] = []
        stuck: set[tuple[int, Path]] = set()
        missing: set[int] = set()  # directories that are lost
        for entry in self._entries:
            names = {(entry.directory, name) for name in entry.names}
            is_lost = entry.directory in missing or bool(names & stuck)
            if is_lost or not chooser.kept("entry", [entry.number]):
                lost.append(entry)
                stuck |= names
                missing |= {entry.made} if entry.kind == "mkdir" else set()
        return lost

    def _undo(self, entry: _Entry) -> None:
        """Undo a directory change; all later lost changes have been undone."""
        if self._directories.get(entry.path.parent) != entry.directory:
            return  # The directory itself was removed durably.
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

    # --- Records of changes ---

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
    """Restore each sector and the size of a file to one of its versions."""
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
