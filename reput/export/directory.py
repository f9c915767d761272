"""The directory of an export: one writer at a time, and recovery from a kill at any point.

Files are written below ``_reput_export.tmp``, synced, moved to their places, and then committed by
the record (``reput.export.export_record``). A file's name holds the range of the log it covers.
So files beyond the record's end are known to be uncommitted, and the next export deletes them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from reput.export.export_record import RECORD, ExportRecord, encode_record, read_record
from reput.export.task import StagedFile, partition_directory
from store.errors import ConfigError, OutputInUseError, StoreIOError, shown
from store.io.disk import Disk

STAGING = "_reput_export.tmp"
_LOCK = "_reput_export.lock"
_DISCARDED = "_reput_export.discarded"
_NEW_RECORD = f"{RECORD}.tmp"  # the remains of a process that was killed before the rename
_NOT_DATA = {_LOCK, _NEW_RECORD, "lost+found"}
_BROKER = "broker="  # begins the names of the directories of several exports
_FILE = re.compile(r"part-([0-9]{20})-[0-9]{20}-[0-9]{3,}\.(parquet|jsonl|jsonl\.gz|jsonl\.zst)")


def check_directory(to: Path, *, append: bool) -> ExportRecord | None:
    """Return the record of a directory to append to, None if it is new or empty.

    Raises ConfigError for any other directory, DamageError for a damaged record.
    """
    names = _names_in(to)
    if not names:
        return None
    if not append:
        raise _not_empty(to, has_export=RECORD in names)
    record = read_record(to)
    if record is None:
        raise ConfigError(f"--to {to} is not empty and holds no export to append to ({RECORD})")
    return record


@contextmanager
def several_exports(to: Path, *, append: bool) -> Iterator[None]:
    """Check the parent of several exports; if it is new, and remains empty, remove it at the end.

    Each export has the directory ``broker_directory``. Raises ConfigError for a directory with
    anything else, StoreIOError.
    """
    names = sorted(_names_in(to))
    exports = [name for name in names if name.startswith(_BROKER)]
    if names and not append:
        raise _not_empty(to, has_export=names == exports)
    if names != exports:
        other = next(name for name in names if name not in exports)
        raise ConfigError(f"--to {to} holds {shown(other)}, which no export of several stores made")
    is_new = not to.exists()
    try:
        yield
    finally:
        if is_new and to.is_dir():
            disk = Disk()
            disk.remove_directory(to)
            disk.close()


def broker_directory(to: Path, name: str) -> Path:
    """Return the directory of one of several exports: a Hive partition, as those of a topic."""
    return to / partition_directory("broker", name)


def _names_in(to: Path) -> set[str]:
    """Return what a target directory holds, nothing if it does not exist."""
    try:
        return set(os.listdir(to)) - _NOT_DATA
    except FileNotFoundError:
        return set()
    except NotADirectoryError as e:
        raise ConfigError(f"--to {to} is not a directory") from e
    except OSError as e:
        raise StoreIOError("read", to, e) from e


def _not_empty(to: Path, *, has_export: bool) -> ConfigError:
    hint = "; --append continues the export in it" if has_export else ""
    return ConfigError(f"--to {to} exists and is not empty: give a new directory{hint}")


class ExportDirectory:
    """The locked target directory of an export. Raises StoreIOError."""

    def __init__(self, path: Path) -> None:
        """Lock the directory, and create it if missing. Raises OutputInUseError."""
        self.path = path
        self.staging = path / STAGING
        self._existed = path.is_dir()
        self._disk = Disk()
        self._lock = self._take_lock()
        self._has_record = os.path.lexists(path / RECORD)
        self._record: ExportRecord | None = None

    def _take_lock(self) -> IO[bytes]:
        try:
            return self._disk.lock(self.path / _LOCK, b"\0")
        except OutputInUseError as e:
            raise OutputInUseError(f"{self.path} is in use by another export") from e

    def check_in_place(self, error: BaseException) -> None:
        """Raise StoreIOError from ``error`` if the directory no longer has the lock of this export.

        It was moved or deleted, so nothing at its path is this export's to delete.
        """
        try:
            found = os.stat(self.path / _LOCK)
        except OSError:
            is_in_place = False
        else:
            is_in_place = os.path.samestat(found, os.fstat(self._lock.fileno()))
        if not is_in_place:
            reason = "the directory was moved or deleted while the export ran"
            raise StoreIOError("export to", self.path, OSError(errno.ENOENT, reason)) from error

    def begin(self, record: ExportRecord) -> None:
        """Start from a record: delete the files that it does not cover."""
        self._record = record
        self._delete_uncommitted()
        if not self._has_record:
            self._disk.replace(self.path / RECORD, encode_record(record))
        self._disk.make_directory(self.staging)

    def commit(self, files: Iterable[StagedFile], record: ExportRecord) -> None:
        """Move staged files to their places and commit them in the record."""
        disk = self._disk
        # On a cluster, the shared file system has already synced what the executors wrote.
        disk.sync_all(self.path)
        for file in files:
            disk.move(self.staging / file.name, self.path / file.target)
        disk.sync()
        disk.replace(self.path / RECORD, encode_record(record))
        self._record, self._has_record = record, True
        self._delete_staging()

    def roll_back(self) -> None:
        """Delete files that the record does not cover; after a first export, the directory too."""
        self._delete_uncommitted()
        if self._has_record:
            return
        for name in (RECORD, _NEW_RECORD, _LOCK):
            self._disk.remove(self.path / name)
        if not self._existed:
            self._disk.remove_directory(self.path)

    def close(self) -> None:
        """Release the directory."""
        self._disk.unlock(self._lock)
        self._disk.close()

    def _delete_uncommitted(self) -> None:
        if self._record is None:
            return
        self._delete_staging()
        for path in list(_files_from(self.path, self._record.end_offset)):
            self._disk.remove(path)
            self._disk.remove_directory(path.parent)
            self._disk.remove_directory(path.parent.parent)
        self._disk.sync()

    def _delete_staging(self) -> None:
        """Delete the staging directory; rename it first, so that late tasks write nothing."""
        discarded = self.path / _DISCARDED
        if discarded.is_dir():
            self._disk.remove_tree(discarded)
        if self.staging.is_dir():
            self._disk.move(self.staging, discarded)
            self._disk.remove_tree(discarded)


def _files_from(to: Path, offset: int) -> Iterator[Path]:
    """Yield the files whose ranges begin at or after an offset of the log."""
    for topic in _directories(to, "topic="):
        for day in _directories(topic, "day="):
            with os.scandir(day) as entries:
                names = [entry.name for entry in entries]
            for name in names:
                found = _FILE.fullmatch(name)
                if found is not None and int(found[1]) >= offset:
                    yield day / name


def _directories(parent: Path, prefix: str) -> list[Path]:
    with os.scandir(parent) as entries:
        return [
            parent / entry.name
            for entry in entries
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        ]
