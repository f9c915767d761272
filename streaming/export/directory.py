"""The directory of an export: one writer at a time, and every state that a kill leaves is known.

Files are written below ``_reput_export.tmp``, synced, moved to their places, and counted by the
record (``streaming.export.record``), in this order. Their names hold the range of the log that they
are from, so those beyond the record's end are known as uncounted, and the next export deletes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from store.errors import ConfigError, RootInUseError, StoreIOError
from store.io.disk import Disk
from streaming.export.record import RECORD, ExportRecord, encode_record, read_record
from streaming.export.task import StagedFile

STAGING = "_reput_export.tmp"
_LOCK = "_reput_export.lock"
_DISCARDED = "_reput_export.discarded"
_NEW_RECORD = f"{RECORD}.tmp"  # of a process that was killed before it could rename it
_NOT_DATA = {_LOCK, _NEW_RECORD, "lost+found"}
_FILE = re.compile(r"part-([0-9]{20})-[0-9]{20}-[0-9]{3,}\.(parquet|jsonl|jsonl\.gz|jsonl\.zst)")


def check_directory(to: Path, *, append: bool) -> ExportRecord | None:
    """Return the record of a directory to append to, None if it is new or empty.

    Raises ConfigError for any other directory, DamageError for a damaged record.
    """
    try:
        names = set(os.listdir(to)) - _NOT_DATA
    except FileNotFoundError:
        return None
    except NotADirectoryError as e:
        raise ConfigError(f"--to {to} is not a directory") from e
    except OSError as e:
        raise StoreIOError("read", to, e) from e
    if not names:
        return None
    if not append:
        hint = "; --append continues the export in it" if RECORD in names else ""
        raise ConfigError(f"--to {to} exists and is not empty: give a new directory{hint}")
    record = read_record(to)
    if record is None:
        raise ConfigError(f"--to {to} is not empty and holds no export to append to ({RECORD})")
    return record


class ExportDirectory:
    """A directory that is being exported into. Raises StoreIOError."""

    def __init__(self, path: Path) -> None:
        """Lock the directory, made if missing. Raises RootInUseError."""
        self.path = path
        self.staging = path / STAGING
        self._existed = path.is_dir()
        self._disk = Disk()
        self._lock = self._take_lock()
        self._keeps_record = os.path.lexists(path / RECORD)
        self._record: ExportRecord | None = None

    def _take_lock(self) -> IO[bytes]:
        try:
            return self._disk.lock(self.path / _LOCK, b"\0")
        except RootInUseError as e:
            raise RootInUseError(f"{self.path} is in use by another export") from e

    def begin(self, record: ExportRecord) -> None:
        """Start from a record: files that it does not count are deleted."""
        self._record = record
        self._delete_uncounted()
        if not self._keeps_record:
            self._disk.replace(self.path / RECORD, encode_record(record))
        self._disk.make_directory(self.staging)

    def commit(self, files: Iterable[StagedFile], record: ExportRecord) -> None:
        """Move staged files to their places and count them."""
        disk = self._disk
        disk.sync_all(self.path)  # on a cluster the shared file system has synced its part
        for file in files:
            disk.move(self.staging / file.name, self.path / file.target)
        disk.sync()
        disk.replace(self.path / RECORD, encode_record(record))
        self._record, self._keeps_record = record, True
        self._delete_staging()

    def roll_back(self) -> None:
        """Delete files that the record does not count; of a first export, the directory too."""
        self._delete_uncounted()
        if self._keeps_record:
            return
        for name in (RECORD, _NEW_RECORD, _LOCK):
            self._disk.remove(self.path / name)
        if not self._existed:
            self._disk.remove_directory(self.path)

    def close(self) -> None:
        """Release the directory."""
        self._disk.unlock(self._lock)
        self._disk.close()

    def _delete_uncounted(self) -> None:
        if self._record is None:
            return
        self._delete_staging()
        for path in list(_files_from(self.path, self._record.end_offset)):
            self._disk.remove(path)
            self._disk.remove_directory(path.parent)
            self._disk.remove_directory(path.parent.parent)
        self._disk.sync()

    def _delete_staging(self) -> None:
        """Delete the staging directory: first its name, without which late tasks write nothing."""
        discarded = self.path / _DISCARDED
        if discarded.is_dir():
            self._disk.remove_tree(discarded)
        if self.staging.is_dir():
            self._disk.move(self.staging, discarded)
            self._disk.remove_tree(discarded)


def _files_from(to: Path, offset: int) -> Iterator[Path]:
    """Yield the files of ranges that begin at an offset of the log or later."""
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
