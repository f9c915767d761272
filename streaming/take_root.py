"""Taking the root of a rebuild, without Spark."""

from __future__ import annotations

from pathlib import Path

from checkpoints.root import DispatchRoot
from checkpoints.settings import resolve_config
from store.errors import ConfigError
from store.foreign import refuse_foreign_store, require_log_files


def take_root(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> DispatchRoot:
    """Take the root of a rebuild: all that can be refused is refused without Spark."""
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    config = resolve_config(store_root, output, broker_conf, broker_version)
    refuse_foreign_store(store_root, config)
    require_log_files(store_root, config)
    return DispatchRoot.replacing(output.absolute(), store_root.absolute(), config)
