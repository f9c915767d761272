"""The check whether a directory may be OUTPUT, before anything is written.

OUTPUT is accepted if it

* is empty: ``lost+found``, ``lock``, and what a start writes before its first state file do not
  count;
* has a state file with a valid checksum, beside any files of an operator; or
* is STORE.

``reput recover`` also accepts the files of a broker, to adopt them. Everything else is refused, and
so is a commit log, and a directory inside or around one that is not STORE. Directories that are
replaced or deleted may hold no foreign entries (``checkpoints.output_entries``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from checkpoints.output_entries import BUILT_DIRS, find_foreign_in_bulk, find_unknown, list_built
from checkpoints.state_paths import BATCH, BULK_DIR, REPUT_DIR
from store import layout
from store.errors import ConfigError, DamageError
from store.io.checked_json import is_sealed, read_state_file
from store.io.mapped_file import is_mapped_file_name
from store.io.user_path import check_output_path
from store.output.progress import PROGRESS, SWAP

NEW_OUTPUT_HINT = "give a new OUTPUT"
_FILES = (layout.CHECKPOINT_FILE, layout.ABORT_FILE, layout.LOCK_FILE)
_NEVER_LINKS = (*BUILT_DIRS, *_FILES, REPUT_DIR, BULK_DIR)
_STATE_FILES = (PROGRESS, BATCH, SWAP)
_BEFORE_STATE = {"bulk/", *(path.name for path in _STATE_FILES)}
_EMPTY = {Path(): {"lost+found/", layout.LOCK_FILE, f"{REPUT_DIR}/"}, REPUT_DIR: _BEFORE_STATE}
_ADOPTED = {REPUT_DIR: {*_BEFORE_STATE, "spark/", "recovered", "verified"}}


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
    for name in _NEVER_LINKS:
        if os.path.islink(output / name):
            raise ConfigError(
                f"{output / name} is a link, and links inside OUTPUT are not followed: link OUTPUT "
                f"itself, mount a file system there, or {NEW_OUTPUT_HINT}"
            )
    is_store = _real(output) == _real(store_root) and any(log.is_dir() for log in logs)
    if not _has_state(output) and not is_store:
        _check_stateless(output, adopts=adopts)
    foreign = find_foreign_in_bulk(output)
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
        is_link = (output / foreign).is_symlink()
        what = "is a symbolic link" if is_link else "is not a file of RocketMQ's"
        raise ConfigError(
            f"{output / foreign} {what}, and a rebuild replaces "
            f"{foreign.parts[0]}/ as a whole: move it away, or {NEW_OUTPUT_HINT}"
        )


def is_empty(output: Path) -> bool:
    """Return whether a directory counts as empty. Raises DamageError, StoreIOError."""
    return not _has_state(output) and _find_other(output) is None


def _has_state(output: Path) -> bool:
    """Return whether a state file has a valid checksum.

    Raises DamageError if there are state files, but none with a valid checksum.
    """
    found = [output / path for path in _STATE_FILES if os.path.isfile(output / path)]
    if any(is_sealed(read_state_file(path) or b"") for path in found):
        return True
    if found:
        raise DamageError(found[0], 0, f"the {found[0].name} record does not match its checksum")
    return False


def _check_stateless(output: Path, *, adopts: bool) -> None:
    """Refuse a directory without a state file, unless it is empty or adopted."""
    other = _find_other(output)
    if other is None:
        return
    if not adopts:
        raise ConfigError(
            f"OUTPUT {output} is neither empty nor made by reput: it holds {other}; "
            f"{NEW_OUTPUT_HINT}, or adopt a broker's files with reput recover"
        )
    built = list_built(output)
    foreign = built.foreign or find_unknown(output, _ADOPTED)
    if foreign is not None:
        raise ConfigError(
            f"{output / foreign} is neither a broker's nor reput's, so the files in {output} are "
            f"not adopted: move it away, or {NEW_OUTPUT_HINT}"
        )
    if not built.files:
        raise ConfigError(
            f"OUTPUT {output} holds {other}, but no queue or index file that could be adopted; "
            f"{NEW_OUTPUT_HINT}"
        )


def _find_other(output: Path) -> Path | None:
    """Return the first entry that a start does not write before its first state file."""
    temporaries = (path.with_name(f"{path.name}.tmp") for path in _STATE_FILES)
    kept = (path for path in temporaries if not _may_be_torn(output / path))
    return find_unknown(output, _EMPTY) or next(kept, None)


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
