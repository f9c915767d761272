"""The content of ``OUTPUT/reput``: state files, and foreign entries that no release writes.

A start or a rebuild deletes ``reput/bulk``, so it may hold known names only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpoints.entries import BUILT_DIRS, Built, EntryKind, list_built, list_entries
from checkpoints.state_paths import (
    BULK_DIR,
    NEW_ROOT_DIR,
    OLD_ROOT_DIR,
    REPUT_DIR,
    SPARK_DIR,
)
from store.errors import StoreError
from store.io.checked_json import is_sealed, read_state_file
from store.root.progress import PROGRESS

_NEW_PROGRESS = str((NEW_ROOT_DIR / PROGRESS).relative_to(REPUT_DIR))
STATE_FILES = frozenset({"progress", "batch", "swap", _NEW_PROGRESS})  # below ``reput/``
STATE_NAMES = STATE_FILES | {"bulk", "spark"}
_TEMPORARIES = frozenset({"progress.tmp", "batch.tmp", "swap.tmp"})
_TEMPORARY = re.compile(r"(\.[0-9]+)?\.tmp$")
_EPOCH_NAME = re.compile("epoch-([0-9]{1,18})")
_SPARK_CHECKPOINT_NAMES = frozenset({"metadata", "offsets", "commits", "sources", "state", "spool"})
_NAMES = {  # of the files in directories below reput/
    BULK_DIR: re.compile("boot"),
    NEW_ROOT_DIR: re.compile("abort|checkpoint"),
    NEW_ROOT_DIR / REPUT_DIR: re.compile("progress|batch"),
}


@dataclass(frozen=True, slots=True)
class State:
    """The content of ``reput/``: ``proven`` names the state files with a valid checksum.

    ``foreign`` is the first entry that no release writes; None if a state file is proven.
    """

    names: frozenset[str] = frozenset()
    proven: frozenset[str] = frozenset()
    foreign: Path | None = None


def list_state(output: Path) -> State:
    """List ``reput/``, which must be a directory. Raises StoreIOError."""
    entries = list_entries(output / REPUT_DIR)
    names = set(entries)
    if _has_file(output / REPUT_DIR, _NEW_PROGRESS):
        names.add(_NEW_PROGRESS)
    checks = {n: _check_file(output / REPUT_DIR / n) for n in (STATE_FILES | _TEMPORARIES) & names}
    proven = frozenset(name for name in STATE_FILES & names if checks[name][0])
    if proven:
        return State(frozenset(names), proven)
    others = [REPUT_DIR / name for name, (_, is_state) in sorted(checks.items()) if not is_state]
    foreign = others[0] if others else find_foreign(output) or _foreign_in_spark(output, entries)
    return State(frozenset(names), proven, foreign)


def find_foreign(output: Path) -> Path | None:
    """Return the first foreign entry of ``reput/bulk``.

    Links are foreign, and so are all files below ``new`` and ``old`` that are not RocketMQ's.
    Raises StoreIOError.
    """
    reput, subdirectories = list_entries(output / REPUT_DIR), (NEW_ROOT_DIR, OLD_ROOT_DIR)
    entries = list_entries(output / BULK_DIR, reput.get(BULK_DIR.name))
    names = [directory.name for directory in subdirectories]
    foreign = _foreign_name(BULK_DIR, entries, names.__contains__)
    below = (_foreign_below(output, d) for d in subdirectories if d.name in entries)
    return foreign or next(filter(None, below), None)


def numbered_epochs(directory: Path) -> dict[Path, int]:
    """Return the Spark checkpoint directories of a root, and links with such names, by number."""
    if not directory.is_dir():
        return {}
    found = [(path, _EPOCH_NAME.fullmatch(path.name)) for path in sorted(directory.iterdir())]
    return {
        path: int(match[1])
        for path, match in found
        if match is not None and (path.is_dir() or path.is_symlink())
    }


def is_spark_checkpoint(epoch: Path) -> bool:
    """Return whether a directory holds only names of a Spark checkpoint, or is a link.

    Raises StoreIOError.
    """
    if epoch.is_symlink():
        return True
    return all(
        name in _SPARK_CHECKPOINT_NAMES or name.startswith(".") for name in list_entries(epoch)
    )


def _check_file(path: Path) -> tuple[bool, bool]:
    """Return whether a file is a valid state file, and whether it may be a damaged one."""
    try:
        data = read_state_file(path)
    except StoreError:  # not a regular file, or a huge one: reading it raises
        return False, not path.is_dir()
    head = (data or b"").lstrip(b"\0")  # zeros, as a power loss leaves
    return data is not None and is_sealed(data), not head or head.startswith(b'{"')


def _foreign_below(output: Path, directory: Path) -> Path | None:
    entries = list_entries(output / directory)
    if directory not in (NEW_ROOT_DIR, OLD_ROOT_DIR):
        return _foreign_name(directory, entries, lambda _: False)
    state = {REPUT_DIR.name} & entries.keys() if directory == NEW_ROOT_DIR else set()
    foreign = _foreign_name(directory, entries, {*BUILT_DIRS, *state}.__contains__)
    if foreign is None and state:
        foreign = _foreign_below(output, directory / REPUT_DIR)
    built: Built = list_built(output / directory) if foreign is None else Built()
    return directory / built.foreign if built.foreign is not None else foreign


def _has_file(directory: Path, name: str) -> bool:
    """Return whether a file exists at a path without links."""
    kind: EntryKind | None = EntryKind.DIRECTORY
    for part in Path(name).parts:
        kind = list_entries(directory, kind).get(part)
        directory /= part
    return kind is EntryKind.FILE


def _foreign_name(
    directory: Path, entries: Mapping[str, EntryKind], is_directory: Callable[[str], bool]
) -> Path | None:
    files = _NAMES.get(directory)
    for name, kind in sorted(entries.items()):
        if kind is EntryKind.DIRECTORY and is_directory(name):
            continue
        is_named = files is not None and files.fullmatch(_TEMPORARY.sub("", name))
        if kind is not EntryKind.FILE or not is_named:
            return directory / name
    return None


def _foreign_in_spark(output: Path, entries: Mapping[str, EntryKind]) -> Path | None:
    for name, kind in sorted(list_entries(output / SPARK_DIR, entries.get("spark")).items()):
        is_epoch = kind is EntryKind.DIRECTORY and _EPOCH_NAME.fullmatch(name) is not None
        if not is_epoch or not is_spark_checkpoint(output / SPARK_DIR / name):
            return SPARK_DIR / name
    return None
