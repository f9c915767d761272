"""Search in the log: record boundaries, and the first record stored at or after a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.scanner import LogRange, scan_rules
from store.config import StoreConfig
from store.errors import ConfigError
from store.io.mapped_file import MappedFile, intact, map_file
from store.kernels import record as rk
from store.kernels.log_walk import NO_CUTS, first_stored, stored_between, walk
from store.kernels.record import Rules, check_record, read_i64

_TIME_MAX = (1 << 63) - 1


def check_boundary(log: CommitLog, offset: int) -> None:
    """Raise ConfigError, naming the two nearest boundaries, if ``offset`` is inside a record.

    The end of the log is a boundary. So is any offset below its minimum, where nothing can be
    checked. Walks the chain of one file at most.
    """
    if log.find(offset) is None and offset > log.max_offset():
        raise ConfigError(f"offset {offset} is beyond the log's end {log.max_offset()}")
    before, after = boundaries_around(log, offset)
    if before != offset:
        raise ConfigError(
            f"offset {offset} is not a record boundary; the nearest boundaries are {before} and "
            f"{after}"
        )


@intact()
def boundaries_around(log: CommitLog, offset: int) -> tuple[int, int]:
    """Return the nearest boundaries, twice ``offset`` if it is one or in no file.

    If the chain of records breaks before ``offset``, both are the offset where it does.
    """
    file = log.find(offset)
    if file is None or offset == file.base or offset == log.max_offset():
        return offset, offset
    end = walk(file.view(), (file.base, 0, offset - file.base), _fast_rules(log), True, NO_CUTS)
    at = file.base + end.at
    if end.reason == rk.OK:
        return (at, at) if at == offset else (file.base + end.last, at)
    if end.reason == rk.BLANK and at < offset:
        return at, log.roll_next_file(offset)
    return at, at


def is_boundary(log: CommitLog, offset: int) -> bool:
    """Return whether a record begins or the log ends at ``offset``, by the chain of its file."""
    try:
        check_boundary(log, offset)
    except ConfigError:
        return False
    return True


@intact()
def first_stored_at(log: CommitLog, timestamp_ms: int) -> int:
    """Return the offset of the first record stored at or after a time, else the log's end.

    Finds the file by binary search over the files' first store times, and the record by walking the
    file. If the clock stepped back across files, the result is a crossing point: the record before
    it in its file was stored earlier, and this one was not.
    """
    last = log.last_file()
    if last is None:
        return 0
    files = [f for f in log.files if f.base <= last.base]
    low, high = 0, len(files)
    while low < high:  # the first file that begins at or after the time
        middle = (low + high) // 2
        if first_timestamp(files[middle], log) >= timestamp_ms:
            high = middle
        else:
            low = middle + 1
    for file in files[max(low - 1, 0) :]:
        at = int(first_stored(file.view(), file.base, timestamp_ms, _fast_rules(log)))
        if at >= 0:
            return file.base + at
    return log.max_offset()


def first_stored_after(log: CommitLog, timestamp_ms: int) -> int:
    """Return the offset of the first record stored after a time, else the log's end."""
    if timestamp_ms >= _TIME_MAX:
        return log.max_offset()
    return first_stored_at(log, timestamp_ms + 1)


@intact()
def narrow_to_times(part: LogRange, config: StoreConfig, times_ms: tuple[int, int]) -> LogRange:
    """Return the part of a range that holds its records stored between two times (inclusive).

    It begins and ends at a record, and is empty without any. Damage is part of it, so a range that
    the file no longer holds is returned whole. Walks the chain of the range, without reading
    bodies. Raises StoreIOError.
    """
    if part.gap or not Path(part.path).exists():
        return part
    view = map_file(Path(part.path))
    span = part.base, part.begin - part.base, part.end - part.base
    if len(view) < span[2]:
        return part
    first, end = stored_between(view, span, times_ms, _without_crc(config))
    if first < 0:
        return replace(part, end=part.begin)
    return replace(part, begin=part.base + int(first), end=part.base + int(end))


def requested_offset(log: CommitLog, offset: int | None, timestamp_ms: int | None) -> int | None:
    """Return the requested start, given as an offset or as a time; None if neither is given.

    Raises ConfigError for an offset that is outside the log or inside a record.
    """
    if timestamp_ms is not None:
        return first_stored_at(log, timestamp_ms)
    if offset is None:
        return None
    if not max(log.min_offset(), 0) <= offset <= log.max_offset():
        raise ConfigError(
            f"offset {offset} is not in the log, which holds "
            f"{log.min_offset()} to {log.max_offset()}"
        )
    check_boundary(log, offset)
    return offset


@intact()
def first_timestamp(file: MappedFile, log: CommitLog) -> int:
    """Return the store time of a file's first record, -1 if it has none."""
    view = file.view()
    parts = check_record(view, 0, file.base, _fast_rules(log))
    return int(read_i64(view, parts.store_timestamp_at)) if parts.reason == rk.OK else -1


def _fast_rules(log: CommitLog) -> Rules:
    return _without_crc(log.config)


def _without_crc(config: StoreConfig) -> Rules:
    return scan_rules(config)._replace(check_crc=False, check_property_crc=False)
