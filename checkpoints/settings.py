"""The settings for a root: those given, else those recorded when it was created."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from checkpoints.progress import read_progress
from store.config import BROKER_CONF, StoreConfig, config_from_shape, load_config
from store.consumequeue.extension import refuse_filter_bitmaps
from store.errors import ConfigError
from store.rocksdb import require_no_rocksdb, rocksdb_queues
from store.unsupported import (
    refuse_controller_mode,
    refuse_unsupported_store,
    require_log_files,
)


def open_store_config(
    store_root: Path,
    output: Path | None,
    broker_conf: Path | None,
    broker_version: str | None,
    *,
    needs_log: bool,
) -> StoreConfig:
    """Return the settings for STORE, after checking that its format is supported.

    If there is an OUTPUT, they are those of ``resolve_config``. ``needs_log`` refuses a commit log
    without files. Raises ConfigError, StoreIOError, UnsupportedFormatError.
    """
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    if output is None:
        config = load_config(store_root, broker_conf, broker_version)
    else:
        config = resolve_config(store_root, output, broker_conf, broker_version)
    refuse_unsupported_store(store_root, config)
    if output is not None:
        refuse_controller_mode(store_root, config)
        require_no_rocksdb(store_root, output, config.rocksdb_queues)
        if read_progress(output) is None:
            refuse_filter_bitmaps(output)
    if needs_log:
        require_log_files(store_root, config)
    return config


def resolve_config(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings for ``output``: those given, else those it was created with.

    A ``broker.conf``, given or found in ``store_root``, takes precedence over the progress record.
    ``DispatchRoot`` checks that they match the root. Raises ConfigError, StoreIOError,
    UnsupportedFormatError.
    """
    progress = read_progress(output)
    if progress is None or broker_conf is not None or (store_root / BROKER_CONF).exists():
        if broker_version is None and progress is not None:
            broker_version = str(progress.shape["version"])
        return load_config(store_root, broker_conf, broker_version)
    shape = dict(progress.shape)
    if broker_version is not None:
        shape["version"] = broker_version
    config = config_from_shape(shape, commit_log=progress.commit_log)
    return replace(config, rocksdb_queues=rocksdb_queues(store_root, {}))
