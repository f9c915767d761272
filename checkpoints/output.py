"""The check whether a directory may be OUTPUT, before anything is written.

OUTPUT is accepted if it

* is empty: ``lost+found``, ``lock``, and what a start writes before its first state file do not
  count;
* has a state file with a valid checksum, beside any files of an operator; or
* is STORE.

``reput recover`` also accepts the files of a broker, to adopt them. Everything else is refused, and
so is a commit log, and a directory inside or around one that is not STORE. Directories that are
replaced or deleted may hold no foreign entries (``checkpoints.entries``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpoints.entries import (
    BUILT_DIRS,
    EntryKind,
    find_foreign_in_bulk,
    list_built,
    list_entries,
)
from checkpoints.state_paths import BATCH, BULK_DIR, RECOVERED, REPUT_DIR, SPARK_DIR, VERIFIED
from store import layout
from store.errors import ConfigError, DamageError
from store.io.checked_json import is_sealed, read_state_file
from store.io.mapped_file import is_mapped_file_name
from store.io.user_path import check_output_path
from store.root.progress import PROGRESS, SWAP

NEW_OUTPUT_HINT = "give a new OUTPUT"
_REPUT = str(REPUT_DIR)
_OWNED = (*BUILT_DIRS, layout.CHECKPOINT_FILE, layout.ABORT_FILE, layout.LOCK_FILE, _REPUT)
_STATE_FILES = tuple(map(str, (PROGRESS, BATCH, SWAP)))
_TEMPORARIES = frozenset(f"{name}.tmp" for name in _STATE_FILES)
_EMPTY = frozenset({"lost+found", layout.LOCK_FILE, str(BULK_DIR), *_TEMPORARIES})
_STATELESS = frozenset(map(str, (SPARK_DIR, RECOVERED, VERIFIED)))  # they prove no root


def check_output(
    output: Path,
    store_root: Path,
    logs: Sequence[Path],
    *,
    adopts: bool = False,
    is_replaced: bool = False,
) -> None:
    """Refuse a directory that may not be OUTPUT; ``logs`` are STORE's commit log directories.

    With ``adopts``, a broker's files are accepted. With ``is_replaced``, the queues and the index
    are about to be replaced. Writes nothing. Raises ConfigError, DamageError if no state file that
    exists has a valid checksum, StoreIOError.
    """
    check_output_path(output)
    _check_place(output, store_root, logs)
    entries = _list_root(output)
    for name in _OWNED:
        if entries.get(name) is EntryKind.LINK:
            raise ConfigError(
                f"{output / name} is a link, and links inside OUTPUT are not followed: link OUTPUT "
                f"itself, mount a file system there, or {NEW_OUTPUT_HINT}"
            )
    foreign = find_foreign_in_bulk(output, entries.get(str(BULK_DIR)))
    if foreign is not None:
        raise ConfigError(
            f"{output / foreign} is not a file of a rebuild, and {foreign.parent}/ is deleted with "
            f"the remains of a rebuild: move it away, or {NEW_OUTPUT_HINT}"
        )
    is_store = _real(output) == _real(store_root) and any(log.is_dir() for log in logs)
    if not _has_state(output, entries) and not is_store:
        others = _others(output, entries)
        if others and not adopts:
            raise ConfigError(
                f"OUTPUT {output} is neither empty nor a root of reput: it holds {min(others)}; "
                f"{NEW_OUTPUT_HINT}, or adopt a broker's files with reput recover"
            )
        if others:
            _check_adopted(output, others)
    if is_replaced:
        check_replaced(output)


def check_replaced(output: Path) -> None:
    """Refuse to replace directories that hold foreign files.

    Raises ConfigError, StoreIOError.
    """
    foreign = list_built(output).foreign
    if foreign is not None:
        is_link = (output / foreign).is_symlink()
        what = "is a symbolic link" if is_link else "is not a file of RocketMQ's"
        raise ConfigError(
            f"{output / foreign} {what}, and a rebuild replaces "
            f"{foreign.parts[0]}/ as a whole: move it away, or {NEW_OUTPUT_HINT}"
        )


def is_empty(output: Path) -> bool:
    """Return whether a directory counts as empty. Raises StoreIOError."""
    return not _others(output, _list_root(output))


def _check_adopted(output: Path, others: set[str]) -> None:
    """Refuse a tree without a broker's files, or with foreign ones in a directory of a root."""
    built = list_built(output)
    below = {name for name in others - _STATELESS if Path(name).parts[0] == _REPUT}
    foreign = built.foreign or min(below, default=None)
    if foreign is not None:
        raise ConfigError(
            f"{output / foreign} is neither a broker's nor reput's, so the files in {output} are "
            f"not adopted: move it away, or {NEW_OUTPUT_HINT}"
        )
    if not built.files:
        raise ConfigError(
            f"OUTPUT {output} holds {min(others)}, but no queue or index file that could be "
            f"adopted; {NEW_OUTPUT_HINT}"
        )


def _list_root(output: Path) -> dict[str, EntryKind]:
    """List a directory and its ``reput/``; a missing one has no entries. Raises StoreIOError."""
    entries = list_entries(output)
    below = list_entries(output / REPUT_DIR, entries.get(_REPUT))
    return entries | {f"{_REPUT}/{name}": kind for name, kind in below.items()}


def _has_state(output: Path, entries: Mapping[str, EntryKind]) -> bool:
    """Return whether a state file has a valid checksum.

    Raises DamageError if there are state files, but none with a valid checksum.
    """
    found = [name for name in _STATE_FILES if entries.get(name) is EntryKind.FILE]
    if any(is_sealed(read_state_file(output / name) or b"") for name in found):
        return True
    if found:
        reason = f"the {Path(found[0]).name} record does not match its checksum"
        raise DamageError(output / found[0], 0, reason)
    return False


def _others(output: Path, entries: Mapping[str, EntryKind]) -> set[str]:
    """Return the entries that do not count as empty."""
    others = entries.keys() - _EMPTY
    if entries.get(_REPUT) is EntryKind.DIRECTORY:
        others -= {_REPUT}
    temporaries = entries.keys() & _TEMPORARIES
    return others | {name for name in temporaries if not _may_be_torn(output / name)}


def _may_be_torn(path: Path) -> bool:
    """Return whether a file holds the beginning of a record, or zeros, as a power loss leaves."""
    head = (read_state_file(path) or b"").lstrip(b"\0")
    return not head or head.startswith(b'{"')


def _check_place(output: Path, store_root: Path, logs: Sequence[Path]) -> None:
    """Refuse a commit log, a directory inside one, and one that contains another store's log."""
    place, store = _real(output), _real(store_root)
    for log in map(_real, logs):
        if place == log or log in place.parents:
            raise ConfigError(f"OUTPUT {output} is in the commit log {log}; {NEW_OUTPUT_HINT}")
        if place in log.parents and place != store:
            raise ConfigError(f"OUTPUT {output} contains the commit log {log}; {NEW_OUTPUT_HINT}")
    if place != store and (place / layout.COMMIT_LOG_DIR).is_dir():
        raise ConfigError(
            f"{output} has queues and a log of its own, {store_root} is another store; "
            f"{NEW_OUTPUT_HINT}"
        )
    for parent in place.parents:
        if _holds_mapped_files(parent):
            raise ConfigError(
                f"OUTPUT {output} is in {parent}, which holds the files of a log or a queue; "
                f"{NEW_OUTPUT_HINT}"
            )


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _holds_mapped_files(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(is_mapped_file_name(entry.name) and entry.is_file() for entry in entries)
    except OSError:  # no permission to list it
        return False
