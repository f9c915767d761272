"""Unsupported kinds of store: detected by their files, and refused with one sentence each.

Every read that opens a broker's store runs these checks, so they must not load a kernel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from store.broker_files import TopicConfig, files_state, read_topic_configs, topic_configs_paths
from store.config import StoreConfig
from store.errors import (
    ConfigError,
    DamageError,
    NoLogError,
    StoreIOError,
    UnsupportedFormatError,
    shown,
)
from store.io.mapped_file import MappedFileQueue, intact, is_mapped_file_name
from store.layout import (
    BATCH_CONSUME_QUEUE_DIR,
    BLANK_RECORD,
    DLEDGER_DIR_PREFIX,
    DLEDGER_HEADER_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    struct_of,
)

_CLEANUP_POLICY, _COMPACTION = "cleanup.policy", "COMPACTION"
_SIZE_AND_MAGIC = struct_of(BLANK_RECORD)  # the first fields of every record


def refuse_unsupported_store(store_root: Path, config: StoreConfig) -> None:
    """Raise UnsupportedFormatError if the store is of an unsupported kind.

    Raises NoLogError if it has no commit log at all, StoreIOError.
    """
    refuse_dledger_directory(store_root)
    batch = store_root / BATCH_CONSUME_QUEUE_DIR
    if batch.is_dir() and any(batch.iterdir()):
        raise UnsupportedFormatError(
            f"{batch} holds batch consume queues (BatchCQ topics); those are not supported"
        )
    _refuse_batch_topics(store_root)
    require_log_directory(store_root, config)
    _refuse_dledger_entries(store_root, config)


def require_log_directory(store_root: Path, config: StoreConfig) -> None:
    """Raise NoLogError if there is no directory of a commit log."""
    paths = config.commit_log_paths(store_root)
    if not any(path.is_dir() for path in paths):
        raise NoLogError(
            f"{paths[0]} does not exist: {store_root} is not a broker's storePathRootDir, or its "
            "storePathCommitLog is elsewhere (--broker-conf)"
        )


def refuse_dledger_directory(store_root: Path) -> None:
    """Raise UnsupportedFormatError if the store has a directory ``dledger-ID``, StoreIOError.

    A broker that changes to DLedger keeps its ordinary log until it expires, and queues and index
    refer to both. DLedger keeps its index there even if storePathDLedgerCommitLog is elsewhere. A
    link that leads nowhere counts: it is of a file system that is not mounted.
    """
    try:
        with os.scandir(store_root) as entries:
            found = [e for e in entries if e.name.startswith(DLEDGER_DIR_PREFIX)]
            names = sorted(e.name for e in found if not e.is_file())
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreIOError("list", store_root, e) from e
    for name in names:
        raise UnsupportedFormatError(
            f"{store_root / name} is a DLedger log; a store with one is not supported"
        )


def refuse_controller_mode(store_root: Path, config: StoreConfig) -> None:
    """Raise UnsupportedFormatError if the broker may have to leave out the end of its log.

    In controller mode, a broker dispatches up to its confirm offset, which it computes from the
    replicas in sync. The copy in ``checkpoint`` is not updated while a master has no replica in
    sync, when all of its log is dispatched, so it does not tell where queues and index must end.
    """
    if config.enable_controller_mode:
        raise UnsupportedFormatError(
            f"{store_root}: in controller mode (enableControllerMode=true) a broker dispatches its "
            "log up to the confirm offset, which no file records; its queues and index are "
            "neither built nor compared. To treat the whole log as confirmed, give a --broker-conf "
            "without that setting"
        )


class CompactionTopics:
    """The topics from whose queues messages are not read by queue offset.

    With ``cleanup.policy=COMPACTION``, a broker answers such reads from its compacted store, which
    holds other messages than the queue; all else it answers from queue, index and log. Which topics
    these are is known from ``config/topics.json`` alone. It is read again when it has changed.
    """

    def __init__(self, store_root: Path, config: StoreConfig) -> None:
        self._store_root = store_root
        self._paths = topic_configs_paths(store_root)
        self._is_compacted = config.answers.compacts_topics and config.version >= (5, 1, 0)
        self._seen: object = None  # the state of the files when _topics was read
        self._topics: frozenset[str] = frozenset()

    def refuse(self, topic: str) -> None:
        """Raise UnsupportedFormatError if a broker reads this topic from its compacted store."""
        if self._is_compacted and topic in self._current():
            raise UnsupportedFormatError(
                f"topic {shown(topic)} has {_CLEANUP_POLICY}={_COMPACTION}: a broker reads it by "
                "queue offset from its compacted store, which is not supported; reput search, "
                "reput export and SQL read its messages from the log"
            )

    def _current(self) -> frozenset[str]:
        state = files_state(self._paths)
        if state != self._seen:
            try:
                topics = read_topic_configs(self._store_root).content
            except StoreIOError:
                topics = None  # as without the file, nothing is known
            self._topics = _topics_with(topics, _CLEANUP_POLICY, _COMPACTION)
            self._seen = state
        return self._topics


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
    for name in _topics_with(file.content, "queue.type", "BatchCQ"):
        raise UnsupportedFormatError(
            f"{file.read_from}: topic {name!r} has queue.type=BatchCQ; batch consume queues are "
            "not supported"
        )


def _topics_with(
    topics: Mapping[str, TopicConfig] | None, attribute: str, value: str
) -> frozenset[str]:
    """Return the topics that have a value of an attribute."""
    return frozenset(
        name
        for name, topic in (topics or {}).items()
        if value in (topic.attributes.get(attribute), topic.attributes.get(f"+{attribute}"))
    )


@intact()
def _refuse_dledger_entries(store_root: Path, config: StoreConfig) -> None:
    """Refuse a commit log whose first file holds DLedger entries."""
    paths = config.commit_log_paths(store_root)
    try:
        files = MappedFileQueue(paths, config.mapped_file_size_commit_log, is_log=True).files
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
