"""The files of OUTPUT that a broker deletes once the log's oldest messages have expired (§12).

A queue file expires if the unit in its last 20 bytes is below the log's minimum; a pre-fill unit
is. The newest file that holds a unit is kept, so that a queue whose messages have all expired
keeps its end. An ext file expires if it ends below the ext unit of the first message that has not
expired (``ConsumeQueueExt.truncateByMinAddress``), an index file if its last entry is below the
minimum and it is not the newest file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue, units_in, written_units
from store.consumequeue.names import list_queues, queue_directory
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.file_parts import entries_of, map_index_file, read_header
from store.io.mapped_file import MappedFile, MappedFileQueue, intact
from store.kernels.index import END_PHY
from store.layout import (
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
)

_log = logging.getLogger(__name__)


def expired_queue_files(output: Path, config: StoreConfig, min_offset: int) -> Iterator[list[Path]]:
    """Yield the expired files of each directory that has any, oldest first.

    ``min_offset`` is the log's minimum. A damaged queue is left untouched. Raises StoreIOError.
    """
    for topic, queue_id in list_queues(output):
        directory = queue_directory(output / CONSUME_QUEUE_DIR, topic, queue_id)
        ext_directory = queue_directory(output / CONSUME_QUEUE_EXT_DIR, topic, queue_id)
        try:
            queue = ConsumeQueue(directory, config.mapped_file_size_consume_queue)
            expired = _expired(queue, min_offset)
            ext = _expired_ext(queue.files[len(expired) :], ext_directory, config, min_offset)
        except DamageError as e:
            _log.warning("keeping expired files: %s", e)
            continue
        yield from filter(None, (expired, ext))


@intact()
def _expired(queue: ConsumeQueue, min_offset: int) -> list[Path]:
    if any(file.length != queue.file_size for file in queue.files):
        return []
    expired = []
    for file, follower in zip(queue.files[:-1], queue.files[1:], strict=True):
        last = units_in(file)[-1]
        if last["size"] <= 0 or last["commit_log_offset"] >= min_offset:
            break
        # A file is created even for a message that the broker's rules then drop, so it may
        # hold no unit.
        if units_in(follower)[0]["size"] <= 0:
            break
        expired.append(file.path)
    return expired


@intact()
def _expired_ext(
    files: list[MappedFile], directory: Path, config: StoreConfig, min_offset: int
) -> list[Path]:
    """Return the expired ext files of a queue that keeps ``files``."""
    if not config.enable_consume_queue_ext or not files:
        return []
    ext_files = MappedFileQueue([directory], config.mapped_file_size_consume_queue_ext).files
    if len(ext_files) <= 1:
        return []
    units = written_units(files[0])
    first = int(np.searchsorted(units["commit_log_offset"], min_offset))
    address = int(units["tags_code"][first]) if first < len(units) else 0
    if address > EXT_ADDRESS_MAX:  # no unit, or a plain tags code
        return []
    # Java parity: a file that ends exactly where that unit begins is kept.
    at, size = address - EXT_ADDRESS_BASE, config.mapped_file_size_consume_queue_ext
    return [file.path for file in ext_files if file.base + size < at]


def expired_index_files(
    output: Path, config: StoreConfig, first: str, min_offset: int
) -> list[Path]:
    """Return the expired index files, starting with the file named ``first``, oldest first."""
    files = [path for path in list_index_files(output) if path.name >= first]
    expired = []
    for path in files[:-1]:
        try:
            with intact():
                view = map_index_file(path, config)
                entries = entries_of(view, config)
                ends = (int(read_header(view)[END_PHY]), *map(int, entries["phy_offset"][-1:]))
        except DamageError as e:
            _log.warning("keeping expired files: %s", e)
            break
        # A header has no checksum, so both the header and the last entry must be below.
        if max(ends) >= min_offset:
            break
        expired.append(path)
    return expired
