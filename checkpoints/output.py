"""The check whether a directory may be OUTPUT, from a listing, before anything is written.

===========  =======================================================================================
kind         the directory holds
===========  =======================================================================================
``EMPTY``    at most ``lost+found`` and the ``lock`` of a start that was refused
``OURS``     a state file in ``reput/`` with a valid checksum, and any files of an operator; or,
             without one, only names of reput and RocketMQ: a start that was interrupted before
             its first progress, or a damaged progress file
``BROKERS``  a queue or an index file, a broker's ``checkpoint``, or nothing but a broker's names
``FOREIGN``  anything else; refused
===========  =======================================================================================

A commit log, and a directory inside or around one, is refused too, unless OUTPUT is STORE. A
rebuild replaces whole directories, so it refuses foreign files in them. Directories that are
deleted below ``reput/`` may hold names of reput only (``checkpoints.output_state``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from checkpoints.entries import (
    BUILT_DIRS,
    NOTHING_BUILT,
    Built,
    EntryKind,
    list_built,
    list_entries,
)
from checkpoints.output_state import STATE_FILES, STATE_NAMES, find_foreign, list_state
from checkpoints.state_paths import REPUT_DIR
from store import layout
from store.errors import ConfigError
from store.io.mapped_file import is_mapped_file_name
from store.io.user_path import check_output_path

NEW_OUTPUT_HINT = "give a new OUTPUT"
_TEMPORARY = ".tmp"
_IGNORED = frozenset({"lost+found", layout.LOCK_FILE})
_FILES = (layout.CHECKPOINT_FILE, layout.ABORT_FILE, layout.LOCK_FILE)
_BROKERS_NAMES = frozenset({*BUILT_DIRS, *_FILES, REPUT_DIR.name, "config", "broker.conf"})


class RootKind(Enum):
    """The kind of a directory that is to be OUTPUT."""

    EMPTY = "empty"
    OURS = "ours"
    BROKERS = "a broker's"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a directory, as far as it decides the kind."""

    entries: Mapping[str, EntryKind]
    state: frozenset[str] = frozenset()  # below ``reput/``, and a new root's progress
    has_checkpoint: bool = False  # of the size that a broker writes
    built: Built = NOTHING_BUILT
    unproven: frozenset[str] = frozenset()  # state files without a valid checksum
    foreign_state: Path | None = None  # below ``reput/``, if no state file is proven

    @property
    def is_proven(self) -> bool:
        """Whether a state file proves that a dispatch or a rebuild wrote the root."""
        return bool(self.state & STATE_FILES - self.unproven)


def kind_of(listing: Listing) -> RootKind:
    """Return the kind of a directory, by the table in the module's docstring."""
    names = listing.entries.keys() - _IGNORED
    if not names:
        return RootKind.EMPTY
    if listing.is_proven:
        return RootKind.OURS
    is_brokers = listing.built.files > 0 or listing.has_checkpoint
    state = {name.removesuffix(_TEMPORARY) for name in listing.state}
    foreign = listing.built.foreign or listing.foreign_state
    is_known = names <= _BROKERS_NAMES and state <= STATE_NAMES and foreign is None
    if (state and is_known) or (listing.state & STATE_FILES and is_brokers):
        return RootKind.OURS
    return RootKind.BROKERS if is_brokers or is_known else RootKind.FOREIGN


def check_output(
    output: Path, store_root: Path, logs: Sequence[Path], *, is_replaced: bool = False
) -> None:
    """Refuse a directory that may not be OUTPUT; ``logs`` are STORE's commit log directories.

    With ``is_replaced``, its queues and index are about to be replaced. Writes nothing. Raises
    ConfigError, StoreIOError.
    """
    check_output_path(output)
    _check_place(output, store_root, logs)
    listing = list_output(output)
    for name in (*BUILT_DIRS, *_FILES, REPUT_DIR.name):
        if listing.entries.get(name) is EntryKind.LINK:
            raise ConfigError(
                f"{output / name} is a link, and links inside OUTPUT are not followed: link OUTPUT "
                f"itself, mount a file system there, or {NEW_OUTPUT_HINT}"
            )
    is_store = _real(output) == _real(store_root) and any(log.is_dir() for log in logs)
    if not is_store and kind_of(listing) is RootKind.FOREIGN:
        raise ConfigError(
            f"OUTPUT {output} is neither empty nor a root of reput or of a broker: it holds "
            f"{_first_foreign(listing)}; {NEW_OUTPUT_HINT}"
        )
    foreign = find_foreign(output)
    if foreign is not None:
        raise ConfigError(
            f"{output / foreign} is not a file of a rebuild, and {foreign.parent}/ is deleted with "
            f"the remains of a rebuild: move it away, or {NEW_OUTPUT_HINT}"
        )
    if is_replaced:
        check_replaced(output)


def check_replaced(output: Path) -> None:
    """Refuse to replace directories that hold foreign files.

    Raises ConfigError, StoreIOError.
    """
    foreign = list_built(output).foreign
    if foreign is not None:
        raise ConfigError(
            f"{output / foreign} {_is_not_ours(output / foreign)}, and a rebuild replaces "
            f"{foreign.parts[0]}/ as a whole: move it away, or {NEW_OUTPUT_HINT}"
        )


def is_empty(output: Path) -> bool:
    """Return whether a directory holds nothing to recover. Raises StoreIOError."""
    return kind_of(list_output(output)) is RootKind.EMPTY


def list_output(output: Path) -> Listing:
    """List a directory; a missing one has an empty listing. Raises StoreIOError."""
    entries = list_entries(output)
    known = Listing(entries, has_checkpoint=_has_checkpoint(output, entries))
    if entries.get(REPUT_DIR.name) is EntryKind.DIRECTORY:
        state = list_state(output)
        unproven = (STATE_FILES & state.names) - state.proven
        known = replace(known, state=state.names, unproven=unproven, foreign_state=state.foreign)
    if known.is_proven or entries.keys().isdisjoint(BUILT_DIRS):
        return known
    return replace(known, built=list_built(output))


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


def _first_foreign(listing: Listing) -> str:
    if listing.built.foreign is not None:
        return str(listing.built.foreign)
    names = listing.entries.keys() - _IGNORED - _BROKERS_NAMES
    unknown = {name for name in listing.state if name.removesuffix(_TEMPORARY) not in STATE_NAMES}
    return min(names or unknown or {str(listing.foreign_state)})


def _is_not_ours(path: Path) -> str:
    return "is a symbolic link" if path.is_symlink() else "is not a file of RocketMQ's"


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _has_checkpoint(output: Path, entries: Mapping[str, EntryKind]) -> bool:
    if entries.get(layout.CHECKPOINT_FILE) is not EntryKind.FILE:
        return False
    return (output / layout.CHECKPOINT_FILE).stat().st_size == layout.CHECKPOINT_SIZE


def _holds_mapped_files(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(is_mapped_file_name(entry.name) and entry.is_file() for entry in entries)
    except OSError:  # no permission to list it
        return False
