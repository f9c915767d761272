"""The entries of directories in a root, by name and kind, and which of them are foreign."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from checkpoints.state_paths import BULK_DIR, NEW_ROOT_DIR, OLD_ROOT_DIR, REPUT_DIR
from store import layout
from store.errors import StoreIOError
from store.index.file import is_index_file_name
from store.io.mapped_file import is_mapped_file_name

BUILT_DIRS = (layout.CONSUME_QUEUE_DIR, layout.CONSUME_QUEUE_EXT_DIR, layout.INDEX_DIR)
_TEMPORARY = re.compile(r"(\.[0-9]+)?\.tmp$")
_BUILT = {f"{name}/" for name in BUILT_DIRS}
_OF_A_REBUILD = {  # parents first
    BULK_DIR: {"boot", "new/", "old/"},
    OLD_ROOT_DIR: _BUILT,
    NEW_ROOT_DIR: {layout.ABORT_FILE, layout.CHECKPOINT_FILE, f"{REPUT_DIR}/", *_BUILT},
    NEW_ROOT_DIR / REPUT_DIR: {"progress", "batch"},
}


class EntryKind(Enum):
    """The kind of a directory entry; links are not followed."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Built:
    """The number of files below the directories that a dispatch builds; the first foreign one."""

    files: int = 0
    foreign: Path | None = None


def list_built(output: Path) -> Built:
    """List the directories that a dispatch builds, recursively. Raises StoreIOError."""
    files, pending = 0, [Path(name) for name in BUILT_DIRS]
    while pending:
        directory = pending.pop()
        is_index = directory.parts[0] == layout.INDEX_DIR
        for name, kind in list_entries(output / directory).items():
            is_named = is_index_file_name(name) if is_index else is_mapped_file_name(name)
            if kind is EntryKind.FILE and is_named:
                files += 1
            elif kind is EntryKind.DIRECTORY and not is_index:
                pending.append(directory / name)
            else:
                return Built(files, directory / name)
    return Built(files)


def find_foreign_in_bulk(output: Path, kind: EntryKind | None) -> Path | None:
    """Return the first entry of ``reput/bulk``, of this kind, that no rebuild writes.

    Links are foreign. Raises StoreIOError.
    """
    if kind is not EntryKind.DIRECTORY:
        return None
    for directory, known in _OF_A_REBUILD.items():
        for name, entry in sorted(list_entries(output / directory).items()):
            is_directory = entry is EntryKind.DIRECTORY
            as_known = f"{name}/" if is_directory else _TEMPORARY.sub("", name)
            if as_known not in known or not (is_directory or entry is EntryKind.FILE):
                return directory / name
        foreign = list_built(output / directory).foreign
        if foreign is not None:
            return directory / foreign
    return None


def list_entries(
    directory: Path, kind: EntryKind | None = EntryKind.DIRECTORY
) -> dict[str, EntryKind]:
    """Return the entries of a directory; none if ``kind``, its own kind, is not DIRECTORY.

    Raises StoreIOError.
    """
    if kind is not EntryKind.DIRECTORY:
        return {}
    try:
        with os.scandir(directory) as entries:
            return {entry.name: _entry_kind(entry) for entry in entries}
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise StoreIOError("list", directory, e) from e


def _entry_kind(entry: os.DirEntry[str]) -> EntryKind:
    if entry.is_symlink():
        return EntryKind.LINK
    if entry.is_dir(follow_symlinks=False):
        return EntryKind.DIRECTORY
    return EntryKind.FILE if entry.is_file(follow_symlinks=False) else EntryKind.OTHER
