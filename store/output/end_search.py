"""Where the files of OUTPUT ended at an earlier offset of the log, found by search.

Units and index entries of a dispatch are in log order, so each file is searched for its
end. Units alone do not show everything about a queue with messages that the broker's rules dropped
(a file created, or an ext unit written, for a message without a unit): the caller passes those
queues.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.consumequeue.extension import ExtFiles
from store.consumequeue.files import ConsumeQueue, units_in, written_units
from store.consumequeue.names import list_queues, queue_directory
from store.consumequeue.queue_ends import QueueEnd
from store.index.file import list_index_files
from store.index.file_parts import entries_of, map_index_file, read_header
from store.index.index_end import INDEX_HEADER_FIELDS, IndexEnd
from store.io.mapped_file import MappedFileQueue
from store.kernels.index import (
    BEGIN_PHY,
    BEGIN_TIMESTAMP,
    END_PHY,
    END_TIMESTAMP,
    INDEX_COUNT,
    SLOT_COUNT,
    fill_slots,
)
from store.kernels.record import read_i32
from store.layout import (
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    CQ_UNIT_SIZE,
    EXT_ADDRESS_MAX,
    INDEX_ENTRY_SIZE,
    MAGIC_AT,
    MAGIC_BLANK,
    NO_QUEUE_YET,
    PRE_BLANK_SIZE,
)
from store.output.progress import Fingerprint

RecordAt = Callable[[int], Fingerprint | None]


def find_queue_ends(
    output: Path, config: StoreConfig, offset: int, also: Collection[tuple[str, int]]
) -> Iterator[QueueEnd]:
    """Yield the ends at ``offset`` of the queues that extend beyond it.

    ``also`` are queues that may extend beyond it by more than units.
    """
    for topic, queue_id in list_queues(output):
        directory = queue_directory(output / CONSUME_QUEUE_DIR, topic, queue_id)
        queue = ConsumeQueue(directory, config.mapped_file_size_consume_queue)
        if (topic, queue_id) in also or _reaches(queue, offset):
            yield _find_queue_end((topic, queue_id), queue, config, offset)


def _reaches(queue: ConsumeQueue, offset: int) -> bool:
    """Return whether a queue's last unit is of a message at ``offset`` or beyond."""
    for file in reversed(queue.files):
        units = written_units(file)
        if len(units):
            return int(units[-1]["commit_log_offset"]) >= offset
    return False


def _find_queue_end(
    key: tuple[str, int], queue: ConsumeQueue, config: StoreConfig, offset: int
) -> QueueEnd:
    for file in reversed(queue.files):
        units = written_units(file)
        kept = int(np.searchsorted(units["commit_log_offset"], offset))
        if kept and (units["size"][:kept] != PRE_BLANK_SIZE).any():
            end = file.base + kept * CQ_UNIT_SIZE
            ext_count = count_ext_units(queue, config, end) or _ext_count_before(queue, config)
            return QueueEnd(*key, end, file.base + queue.file_size, ext_count)
    return QueueEnd(*key, ext_count=_ext_count_before(queue, config))


def count_ext_units(queue: ConsumeQueue, config: StoreConfig, end: int) -> int:
    """Count the ext units up to the last one that a unit before byte ``end`` refers to."""
    if not config.enable_consume_queue_ext:
        return 0
    for file in reversed(queue.files):
        addresses = _ext_addresses(units_in(file)[: max(end - file.base, 0) // CQ_UNIT_SIZE])
        if len(addresses):
            return ExtFiles(config).count_to(int(addresses[-1]))
    return 0


def _ext_count_before(queue: ConsumeQueue, config: StoreConfig) -> int:
    """Count the ext units written before an offset below which no unit refers to one.

    That is 0, unless older files of the queue have expired: then all before the first one referred
    to.
    """
    if not config.enable_consume_queue_ext or not queue.files or not queue.files[0].base:
        return 0
    for file in queue.files:
        addresses = _ext_addresses(written_units(file))
        if len(addresses):
            return ExtFiles(config).count_to(int(addresses[0])) - 1
    return 0


def _ext_addresses(units: NDArray[np.void]) -> NDArray[np.int64]:
    addresses: NDArray[np.int64] = units["tags_code"][units["tags_code"] <= EXT_ADDRESS_MAX]
    return addresses


def trim_to_remaining_files(output: Path, config: StoreConfig, end: QueueEnd) -> QueueEnd:
    """Return an end recorded earlier, adjusted to the files that have expired since.

    If all files that it covers have expired, the queue (or its ext units) counts as empty.
    """
    queue = queue_directory(Path(), end.topic, end.queue_id)
    begin = _first_base(output / CONSUME_QUEUE_DIR / queue, config.mapped_file_size_consume_queue)
    if begin >= end.allocated > 0:
        end = replace(end, end=NO_QUEUE_YET, allocated=NO_QUEUE_YET)
    if config.enable_consume_queue_ext:
        ext = ExtFiles(config)
        begin = _first_base(output / CONSUME_QUEUE_EXT_DIR / queue, ext.file_size)
        if begin >= ext.span(end.ext_count)[1] > 0:
            end = replace(end, ext_count=0)
    return end


def _first_base(directory: Path, file_size: int) -> int:
    files = MappedFileQueue([directory], file_size).files
    return files[0].base if files else 0


def find_index_end(
    output: Path, config: StoreConfig, offset: int, log: CommitLog, record_at: RecordAt
) -> IndexEnd:
    """Return where the index ended when the log had been dispatched up to ``offset``."""
    files = list_index_files(output)
    for number in range(len(files) - 1, -1, -1):
        view = map_index_file(files[number], config)
        entries = entries_of(view, config)
        count = int(np.searchsorted(entries["phy_offset"], offset))
        if not count:
            continue
        is_full = count == config.max_index_num - 1
        last = record_at(int(entries["phy_offset"][count - 1]))
        if is_full and number + 1 < len(files) and _has_record(log, last, offset):
            header = _empty_header(read_header(view))
            return IndexEnd(files[number + 1].name, tuple(header.tolist()))
        header = _header(view, config, count, last)
        return IndexEnd(files[number].name, tuple(header.tolist()))
    if not files:
        return IndexEnd()
    header, view = _empty_header(None), map_index_file(files[0], config)
    first = entries_of(view, config)["time_diff_seconds"][:1]
    if first.any():  # it followed an expired file, whose end time is known to the second
        begin_timestamp = read_header(view)[BEGIN_TIMESTAMP] - 1000 * int(first[0])
        header[BEGIN_TIMESTAMP] = header[END_TIMESTAMP] = begin_timestamp
    return IndexEnd(files[0].name, tuple(header.tolist()))


def _has_record(log: CommitLog, last: Fingerprint | None, offset: int) -> bool:
    """Return whether a record begins after ``last`` and before ``offset``."""
    if last is None:  # expired
        return True
    at = last.offset + last.size
    file = log.find(at)
    if file is not None and at < offset and file.length == log.file_size:
        is_blank = read_i32(file.view(), at - file.base + MAGIC_AT) == MAGIC_BLANK
        return not is_blank or log.roll_next_file(at) < offset
    return at < offset


def _empty_header(previous: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return the header of a new, empty file; ``previous`` is that of the file before it."""
    header = np.zeros(INDEX_HEADER_FIELDS, np.int64)
    header[INDEX_COUNT] = 1
    if previous is not None:
        header[BEGIN_PHY] = header[END_PHY] = max(previous[END_PHY], 0)
        header[BEGIN_TIMESTAMP] = header[END_TIMESTAMP] = max(previous[END_TIMESTAMP], 0)
    return header


def _header(
    view: NDArray[np.uint8], config: StoreConfig, count: int, last: Fingerprint | None
) -> NDArray[np.int64]:
    """Return a file's header as it was when the file had ``count`` entries."""
    header, entries = read_header(view), entries_of(view, config)[:count]
    if last is not None:
        header[END_TIMESTAMP] = last.store_timestamp
    elif count + 1 < header[INDEX_COUNT]:  # the record has expired: known to the second
        header[END_TIMESTAMP] = header[BEGIN_TIMESTAMP] + 1000 * int(
            entries["time_diff_seconds"][-1]
        )
    header[END_PHY] = entries["phy_offset"][-1]
    header[INDEX_COUNT] = count + 1
    slots = np.zeros(config.max_hash_slot_num, np.int32)
    used = fill_slots(entries.view(np.uint8).reshape(-1)[: count * INDEX_ENTRY_SIZE], slots)
    header[SLOT_COUNT] = count if config.counts_every_entry_as_slot else used
    return header


def was_dispatched(output: Path, config: StoreConfig, offset: int) -> bool:
    """Return whether a queue or the index of OUTPUT refers to the record at ``offset``."""
    for topic, queue_id in list_queues(output):
        directory = queue_directory(output / CONSUME_QUEUE_DIR, topic, queue_id)
        queue = ConsumeQueue(directory, config.mapped_file_size_consume_queue)
        for file in reversed(queue.files):
            units = written_units(file)
            units = units[units["size"] != PRE_BLANK_SIZE]
            if len(units) and int(units[0]["commit_log_offset"]) <= offset:
                if _contains(units["commit_log_offset"], offset):
                    return True
                break
    if not config.message_index_enable:
        return False
    views = (map_index_file(path, config) for path in reversed(list_index_files(output)))
    return any(_contains(entries_of(view, config)["phy_offset"], offset) for view in views)


def _contains(ascending: NDArray[np.int64], value: int) -> bool:
    at = int(np.searchsorted(ascending, value))
    return at < len(ascending) and int(ascending[at]) == value
