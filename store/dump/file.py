"""The dump of one file of any kind: detects the kind, finds the settings, and yields the rows.

The kind follows from the file's directory and name, else from its first bytes. The settings (index
size, version rules) are the given ones, else those of the STORE or OUTPUT that contains the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.config import BROKER_CONF, StoreConfig, config_from_shape, load_config
from store.dump.index import CHECKPOINT_MEANINGS, INDEX_MEANINGS, dump_checkpoint, dump_index
from store.dump.log import LOG_MEANINGS, dump_commit_log, first_offset
from store.dump.queue import (
    EXT_MEANINGS,
    QUEUE_MEANINGS,
    dump_consume_queue,
    dump_consume_queue_ext,
)
from store.dump.rows import COMMON_MEANINGS, Meanings, Sections, Source
from store.errors import ConfigError, DamageError, UnsupportedFormatError
from store.index.file import is_index_file_name
from store.index.file_parts import index_file_size
from store.io.mapped_file import each_intact, intact, is_mapped_file_name, map_file
from store.layout import (
    BATCH_CONSUME_QUEUE_DIR,
    CHECKPOINT_FILE,
    CHECKPOINT_SIZE,
    COMMIT_LOG_DIR,
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    INDEX_DIR,
)
from store.output.file_sizes import IndexShape, index_shape
from store.output.progress import read_progress_view

_FOREIGN_DIRS = (BATCH_CONSUME_QUEUE_DIR, "timerlog", "compaction")


class FileKind(StrEnum):
    """The files of a store that can be dumped."""

    COMMIT_LOG = "commitlog"
    CONSUME_QUEUE = "consumequeue"
    CONSUME_QUEUE_EXT = "consumequeue_ext"
    INDEX = "index"
    CHECKPOINT = "checkpoint"


_DIRECTORIES = {
    COMMIT_LOG_DIR: FileKind.COMMIT_LOG,
    CONSUME_QUEUE_DIR: FileKind.CONSUME_QUEUE,
    CONSUME_QUEUE_EXT_DIR: FileKind.CONSUME_QUEUE_EXT,
    INDEX_DIR: FileKind.INDEX,
}
_DUMPS: dict[FileKind, tuple[Callable[[Source], Sections], Meanings]] = {
    FileKind.COMMIT_LOG: (dump_commit_log, LOG_MEANINGS),
    FileKind.CONSUME_QUEUE: (dump_consume_queue, QUEUE_MEANINGS),
    FileKind.CONSUME_QUEUE_EXT: (dump_consume_queue_ext, EXT_MEANINGS),
    FileKind.INDEX: (dump_index, INDEX_MEANINGS),
    FileKind.CHECKPOINT: (dump_checkpoint, CHECKPOINT_MEANINGS),
}


@dataclass(frozen=True, slots=True)
class Dump:
    """A file's kind, its first offset in its stream, the meanings of its fields, and its rows."""

    path: Path
    kind: FileKind
    base: int
    size: int
    meanings: Meanings
    sections: Sections


@intact()
def dump_file(
    path: Path,
    *,
    kind: FileKind | None = None,
    start: int = 0,
    broker_conf: Path | None = None,
    broker_version: str | None = None,
) -> Dump:
    """Open a file of a store for a dump from position ``start``, where a structure must begin.

    ``kind`` None: detect it. The rows continue after damage, and iterating over them does not raise
    for it, only VanishedError. Raises ConfigError if the file is not a store's or its size does not
    match the settings, UnsupportedFormatError, StoreIOError.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: name one of its files")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file")
    path = path.absolute()
    view = map_file(path)
    kind = kind if kind is not None else detect_kind(path, view)
    if start and start >= len(view):
        raise ConfigError(f"position {start} is beyond {path}, which has {len(view)} bytes")
    config, is_known = _find_config(path, broker_conf, broker_version)
    if kind is FileKind.INDEX:
        _check_index_size(path, len(view), config, is_known=is_known)
    source = Source(path, view, 0, config, start)
    source = Source(path, view, _base(source, kind), config, start)
    dump, meanings = _DUMPS[kind]
    sections = dump(source) if len(view) else (iter([source.end(0, "the file is empty")]),)
    sections = tuple(each_intact(rows) for rows in sections)
    return Dump(path, kind, source.base, len(view), {**meanings, **COMMON_MEANINGS}, sections)


def detect_kind(path: Path, view: NDArray[np.uint8]) -> FileKind:
    """Return the kind of a store's file. Raises ConfigError, UnsupportedFormatError."""
    directory = _directory_of(path)
    if directory is not None:
        return _DIRECTORIES[directory.name]
    for part in path.parts[:-1]:
        if part in _FOREIGN_DIRS:
            raise UnsupportedFormatError(f"{path} is a file of {part}/; those are not supported")
    if path.name == CHECKPOINT_FILE and len(view) <= CHECKPOINT_SIZE:
        return FileKind.CHECKPOINT
    if first_offset(Source(path, view, 0, StoreConfig())) is not None:
        return FileKind.COMMIT_LOG
    if is_index_file_name(path.name):
        return FileKind.INDEX
    known = ", ".join(FileKind)
    raise ConfigError(
        f"{path} is in none of a store's directories and does not begin with a record; name its "
        f"kind: --kind {known}"
    )


def _find_config(
    path: Path, broker_conf: Path | None, broker_version: str | None
) -> tuple[StoreConfig, bool]:
    """Return the settings for a file, and whether they are certain to be those of its writer."""
    directory = (_directory_of(path) or path).parent
    if broker_conf is not None:
        return load_config(directory, broker_conf, broker_version), True
    try:
        view = read_progress_view(directory)
    except (DamageError, UnsupportedFormatError):
        view = None  # fall back to broker.conf
    if view is not None and broker_version is None:
        return config_from_shape(view.shape), True
    config = load_config(directory, None, broker_version)
    if (directory / BROKER_CONF).exists():
        return config, True
    default = IndexShape(config.max_hash_slot_num, config.max_index_num)
    shape = index_shape([path], (None, None), default)
    if shape is None:
        return config, False
    return replace(config, max_hash_slot_num=shape.slots, max_index_num=shape.entries), True


def _directory_of(path: Path) -> Path | None:
    """Return the store directory that contains a file: for a queue, the one above topic and id."""
    if path.parent.name in (COMMIT_LOG_DIR, INDEX_DIR):
        return path.parent
    for directory in path.parents:
        if directory.name in (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR):
            return directory
    return None


def _base(source: Source, kind: FileKind) -> int:
    """Return a file's first offset in its stream, by its name or by a log's first record."""
    if kind in (FileKind.INDEX, FileKind.CHECKPOINT):
        return 0
    if is_mapped_file_name(source.path.name):
        return int(source.path.name)
    first = first_offset(source) if kind is FileKind.COMMIT_LOG else None
    return first if first is not None else 0


def _check_index_size(path: Path, size: int, config: StoreConfig, *, is_known: bool) -> None:
    full = index_file_size(config)
    if size and size != full and not (is_known and size < full):
        raise ConfigError(
            f"{path} has {size} bytes; with {config.max_hash_slot_num} slots and "
            f"{config.max_index_num} entries it has {full}: pass the broker.conf that it was "
            "written with (--broker-conf)"
        )
