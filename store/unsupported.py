"""Unsupported kinds of store: detected by their files, and refused with one sentence each.

Every read that opens a broker's root runs these checks, so they must not load a kernel.
"""

from __future__ import annotations

import os
from pathlib import Path

from store.broker_files import read_topic_configs
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, StoreIOError, UnsupportedFormatError
from store.io.mapped_file import MappedFileQueue, is_mapped_file_name
from store.layout import (
    BATCH_CONSUME_QUEUE_DIR,
    BLANK_RECORD,
    DLEDGER_HEADER_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    struct_of,
)

_SIZE_AND_MAGIC = struct_of(BLANK_RECORD)  # the first fields of every record


def refuse_unsupported_store(store_root: Path, config: StoreConfig) -> None:
    """Raise UnsupportedFormatError if the store is of an unsupported kind.

    Raises ConfigError if it has no commit log at all.
    """
    batch = store_root / BATCH_CONSUME_QUEUE_DIR
    if batch.is_dir() and any(batch.iterdir()):
        raise UnsupportedFormatError(
            f"{batch} holds batch consume queues (BatchCQ topics); those are not supported"
        )
    _refuse_batch_topics(store_root)
    _refuse_dledger(store_root, config)
    require_log_directory(store_root, config)


def require_log_directory(store_root: Path, config: StoreConfig) -> None:
    """Raise ConfigError if there is no directory of a commit log."""
    paths = config.commit_log_paths(store_root)
    if not any(path.is_dir() for path in paths):
        raise ConfigError(
            f"{paths[0]} does not exist: {store_root} is not a broker's storePathRootDir, or its "
            "storePathCommitLog is elsewhere (--broker-conf)"
        )


def require_log_files(store_root: Path, config: StoreConfig) -> None:
    """Raise ConfigError if the commit log has no file, the usual sign of a wrong path.

    Not for a dispatch or a stream, which wait for a new broker's first file.
    """
    paths = config.commit_log_paths(store_root)
    for path in paths:
        try:
            if any(map(is_mapped_file_name, os.listdir(path))):
                return
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            raise StoreIOError("list", path, e) from e
    names = " and ".join(map(str, paths))
    raise ConfigError(
        f"{names} holds no commit log file (a name of 20 digits); is this the broker's log "
        "(storePathCommitLog, --broker-conf)? Only a running dispatch, mirror or stream waits for "
        "the first file"
    )


def _refuse_batch_topics(store_root: Path) -> None:
    """Refuse a topic whose attribute ``queue.type`` is ``BatchCQ``."""
    try:
        file = read_topic_configs(store_root)
    except StoreIOError:
        return  # without a topic list, inner batches are still refused when the log is read
    for name, topic in (file.content or {}).items():
        for key, value in topic.attributes.items():
            if key.lstrip("+") == "queue.type" and value == "BatchCQ":
                raise UnsupportedFormatError(
                    f"{file.read_from}: topic {name!r} has queue.type=BatchCQ; batch consume "
                    "queues are not supported"
                )


def _refuse_dledger(store_root: Path, config: StoreConfig) -> None:
    """Refuse a DLedger log, by its directory or by its entries."""
    paths = config.commit_log_paths(store_root)
    if not any(p.is_dir() for p in paths):
        for found in sorted(store_root.glob("dledger-*")):
            raise UnsupportedFormatError(f"{found} is a DLedger log; that is not supported")
    try:
        files = MappedFileQueue(paths, config.mapped_file_size_commit_log, follows_links=True).files
    except DamageError:
        return  # reported when the log is read
    magics = (MAGIC_V1, MAGIC_V2)
    for file in files[:1]:
        view = file.view()
        if len(view) < DLEDGER_HEADER_SIZE + _SIZE_AND_MAGIC.size:
            return
        _, first = _SIZE_AND_MAGIC.unpack_from(view.data, 0)
        _, inside = _SIZE_AND_MAGIC.unpack_from(view.data, DLEDGER_HEADER_SIZE)
        if inside in magics and first not in magics:
            raise UnsupportedFormatError(
                f"{file.path} is a DLedger log: its records are inside DLedger entries; that is "
                "not supported"
            )
