"""The settings of a dispatched root, and the check that the root still matches its log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.config import (
    BROKER_CONF,
    BrokerVersion,
    StoreConfig,
    check_shape,
    config_from_shape,
    load_config,
)
from store.errors import ConfigError, DamageError
from store.root.progress import ProgressView, read_progress_view
from store.unsupported import refuse_dledger_directory, refuse_unsupported_store

_OMIT_HINT = "omit the option: the root records its own settings"


def find_config(
    store_root: Path, output: Path | None, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings of a store, those recorded at ``output`` if it was dispatched there.

    Raises ConfigError if something is missing or contradictory, UnsupportedFormatError, and for
    the progress record DamageError, StoreIOError.
    """
    for path in (store_root, output):
        if path is not None and not path.is_dir():
            raise ConfigError(f"{path} is not a directory")
    refuse_dledger_directory(store_root)
    progress = None if output is None else read_progress_view(output)
    if progress is None:
        config = load_config(store_root, broker_conf, broker_version)
        refuse_unsupported_store(store_root, config)
    else:
        config = config_of_root(progress, store_root, broker_conf, broker_version)
    paths = config.commit_log_paths(store_root)
    if not any(path.is_dir() for path in paths):
        raise ConfigError(f"{paths[0]} does not exist: {store_root} has no commit log")
    return config


def config_of_root(
    progress: ProgressView, root: Path, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings that a root was created with.

    Raises ConfigError if ``broker_conf`` or ``broker_version`` contradicts them.
    """
    config = replace(
        config_from_shape(progress.shape, commit_log=progress.commit_log),
        store_path_root_dir=progress.store,  # the store may have been moved since
    )
    if broker_version is not None:
        given = replace(config, version=BrokerVersion.parse(broker_version))
        check_shape(progress.shape, given, "this root", _OMIT_HINT)
    if broker_conf is None and not (root / BROKER_CONF).exists():
        return config
    given = load_config(root, broker_conf, str(config.version))
    if broker_conf is not None:
        check_shape(progress.shape, given, "this root", _OMIT_HINT)
    return replace(
        config,
        store_path_root_dir=given.store_path_root_dir,
        store_path_commit_log=given.store_path_commit_log,
        answers=given.answers,
    )


def check_last_record(progress: ProgressView, log: CommitLog, root: Path, output: Path) -> None:
    """Raise unless the log still holds the last dispatched record, or that record has expired."""
    last = progress.last_record
    if last is None or last.offset < log.min_offset():
        return
    reason = "the log no longer holds the record dispatched last"
    try:
        found = log.message(last.offset, last.size)
        is_same = (found.store_timestamp, found.body_crc) == (last.store_timestamp, last.body_crc)
    except DamageError as e:
        is_same, reason = False, f"{reason}: {e.reason}"
    if is_same:
        return
    error = other_store_error(output, progress.store, root, reason)
    if error is not None:
        raise error
    raise DamageError(log.path_of(last.offset), last.offset, reason, "it was truncated or replaced")


def other_store_error(output: Path, made_from: str, root: Path, reason: str) -> ConfigError | None:
    """Return the error for a changed log if the root was made from a store at another path.

    None if the path is the same. A store that was moved or copied holds the same records, so it is
    read at its new path and gets here only if its log differs.
    """
    if made_from == str(root.resolve()):
        return None
    return ConfigError(f"{output} was made from {made_from}, not from {root}: {reason}")
