"""Which settings a root is worked on with: those given, else those it was made with."""

from __future__ import annotations

from pathlib import Path

from checkpoints.progress import read_progress
from store.config import BROKER_CONF, StoreConfig, config_from_shape, load_config


def resolve_config(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> StoreConfig:
    """Return the settings for ``output``: those given, else those it was made with.

    A ``broker.conf`` given, or lying in ``store_root``, wins over what the progress record holds;
    whether they fit the root is checked where it is opened. Raises ConfigError, StoreIOError,
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
    return config_from_shape(shape, commit_log=progress.commit_log)
