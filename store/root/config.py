"""A root that a dispatch of ours made: its settings, and whether it still fits its log."""

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
from store.root.progress import ProgressView

_OMIT_HINT = "leave the option out: the root knows its own settings"


def config_of(
    dispatched: ProgressView, root: Path, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings a root was made with; those given must not contradict them."""
    config = replace(
        config_from_shape(dispatched.shape, commit_log=dispatched.commit_log),
        store_path_root_dir=dispatched.store,  # a store may lie elsewhere now
    )
    if broker_version is not None:
        given = replace(config, version=BrokerVersion.parse(broker_version))
        check_shape(dispatched.shape, given, "this root", _OMIT_HINT)
    if broker_conf is None and not (root / BROKER_CONF).exists():
        return config
    given = load_config(root, broker_conf, str(config.version))
    if broker_conf is not None:
        check_shape(dispatched.shape, given, "this root", _OMIT_HINT)
    return replace(
        config,
        store_path_root_dir=given.store_path_root_dir,
        store_path_commit_log=given.store_path_commit_log,
    )


def check_last_record(dispatched: ProgressView, log: CommitLog, root: Path, output: Path) -> None:
    """Raise unless the log still holds the record that was dispatched last, if not expired."""
    last = dispatched.last_record
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
    other = other_store(output, dispatched.store, root, reason)
    if other is not None:
        raise other
    raise DamageError(log.path_of(last.offset), last.offset, reason, "it was cut off or replaced")


def other_store(output: Path, made_from: str, root: Path, reason: str) -> ConfigError | None:
    """Return the error for a root whose log has changed, if the store lies elsewhere too.

    A store that was moved or copied has the same records, and is read where it lies now.
    """
    if made_from == str(root.resolve()):
        return None
    return ConfigError(f"{output} was made from {made_from}, not from {root}: {reason}")
