"""The entries of directories in OUTPUT, by name and kind, and which of them are foreign."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from checkpoints.state_paths import BULK_DIR, NEW_OUTPUT_DIR, OLD_OUTPUT_DIR, REPUT_DIR
from store import layout
from store.errors import StoreIOError
from store.index.file import is_index_file_name
from store.io.mapped_file import is_mapped_file_name

BUILT_DIRS = (layout.CONSUME_QUEUE_DIR, layout.CONSUME_QUEUE_EXT_DIR, layout.INDEX_DIR)
Known = Mapping[Path, Set[str]]  # by directory, parents first; a directory's name ends with a slash
_BUILT = {f"{name}/" for name in BUILT_DIRS}
_OF_A_REBUILD: Known = {
    BULK_DIR: {"boot", "new/", "old/"},
    OLD_OUTPUT_DIR: _BUILT,
    NEW_OUTPUT_DIR: {layout.ABORT_FILE, layout.CHECKPOINT_FILE, f"{REPUT_DIR}/", *_BUILT},
    NEW_OUTPUT_DIR / REPUT_DIR: {"progress", "batch"},
}
_TEMPORARY = re.compile(r"(\.[0-9]+)?\.tmp$")


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


def find_foreign_in_bulk(output: Path) -> Path | None:
    """Return the first entry of ``reput/bulk`` that no rebuild writes. Raises StoreIOError."""
    foreign = find_unknown(output, _OF_A_REBUILD)
    for directory in (NEW_OUTPUT_DIR, OLD_OUTPUT_DIR) if foreign is None else ():
        built = list_built(output / directory).foreign
        if built is not None:
            return directory / built
    return foreign


def find_unknown(output: Path, known: Known) -> Path | None:
    """Return the first entry of the directories of ``known`` that is not named there.

    Temporaries of files that are named count as named, links do not. Raises StoreIOError.
    """
    for directory, names in known.items():
        for name, kind in sorted(list_entries(output / directory).items()):
            is_file = kind is EntryKind.FILE and _TEMPORARY.sub("", name) in names
            if not is_file and not (kind is EntryKind.DIRECTORY and f"{name}/" in names):
                return directory / name
    return None


def list_entries(directory: Path) -> dict[str, EntryKind]:
    """Return the entries of a directory; a missing one has none. Raises StoreIOError."""
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
