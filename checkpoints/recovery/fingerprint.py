"""Fingerprints of log records, and the detection of a log that has changed since."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.commitlog.commit_log import CommitLog
from store.commitlog.scanner import scan_rules
from store.errors import DamageError
from store.io.mapped_file import intact
from store.kernels.log_walk import NO_CUTS, walk
from store.kernels.record import BLANK, OK, check_record, find_parts, read_i32, read_i64
from store.output.progress import Fingerprint

OTHER_LOG_HINT = "it was truncated or is another log; dispatch it into a new OUTPUT"


@intact()
def read_fingerprint(log: CommitLog, offset: int) -> Fingerprint | None:
    """Return the fingerprint of the record at ``offset``, None if no record begins there."""
    file = log.find(offset)
    if file is None or file.length != log.file_size:
        return None
    return fingerprint_at(file.view(), offset - file.base, offset)


def fingerprint_at(view: NDArray[np.uint8], at: int, offset: int) -> Fingerprint | None:
    """Return the fingerprint of the record at a position of its file, None if there is none."""
    parts = find_parts(view, at, len(view))
    if parts.reason != OK or read_i64(view, at + layout.PHYSICAL_OFFSET_AT) != offset:
        return None
    return Fingerprint(
        offset=offset,
        size=int(parts.size),
        store_timestamp=int(read_i64(view, parts.store_timestamp_at)),
        body_crc=int(read_i32(view, at + layout.BODY_CRC_AT)),
        record_crc=zlib.crc32(view[at : at + int(parts.size)].tobytes()),
    )


@intact()
def find_log_change(
    log: CommitLog, last: Fingerprint | None, end: int | None = None, *, verb: str = "dispatched"
) -> str:
    """Return why the log no longer matches what was read from it; "" if it matches.

    The log must still hold ``last``, the last record that was read. If ``end`` is given, the
    offset at which reading stopped, nothing but a file's blank may separate the two: a broker
    that restarts overwrites the blank of its last file. An expired record proves nothing, and the
    log matches. ``verb`` completes "the record … last".
    """
    if last is None or last.offset < log.min_offset():
        return ""
    if read_fingerprint(log, last.offset) != last:
        return f"the log changed: it no longer holds the record {verb} last"
    if end is not None and not _is_followed_by_blank(log, last.offset + last.size, end):
        return f"the log changed: other messages follow the record {verb} last"
    return ""


def _is_followed_by_blank(log: CommitLog, at: int, end: int) -> bool:
    """Return whether ``[at, end)`` is empty or the blank of its file, as far as the file exists."""
    file = log.find(at)
    if at == end or file is None or file.length != log.file_size:
        return True
    is_blank = read_i32(file.view(), at - file.base + layout.MAGIC_AT) == layout.MAGIC_BLANK
    return bool(is_blank) and log.roll_next_file(at) == end


@intact()
def find_other_record(
    log: CommitLog,
    dispatched: Sequence[Fingerprint],
    begin: int,
    was_dispatched: Callable[[int], bool],
) -> int:
    """Return the offset at which the log's last file departs from dispatched records, else -1.

    A broker that starts after a crash overwrites the end of its log. Records after the new ones may
    still parse, including the last dispatched one. ``dispatched`` are fingerprints of some
    dispatched records, in log order. The chain is followed from ``begin``, a record boundary, or
    the start of the file. If it breaks at a record that was dispatched, that record is damaged.
    """
    file, rules = log.last_file(), scan_rules(log.config)
    if file is None or file.length != log.file_size:
        return -1
    view, at = file.view(), max(begin - file.base, 0)
    fast = rules._replace(check_crc=False, check_property_crc=False)
    for known in dispatched:
        to = known.offset - file.base
        if to < at:
            continue
        end = walk(view, (file.base, at, to), fast, False, NO_CUTS)
        if end.reason not in (OK, BLANK):
            broken_at = file.base + int(end.at)
            return -1 if was_dispatched(broken_at) else broken_at
        if end.reason == BLANK or end.at != to:
            return file.base + max(int(end.last), 0)
        is_sound = check_record(view, to, file.base, rules).reason == OK
        if is_sound and read_fingerprint(log, known.offset) != known:
            return known.offset
        at = to
    return -1


def check_unchanged(
    log: CommitLog, last: Fingerprint | None, end: int | None = None, *, hint: str = OTHER_LOG_HINT
) -> None:
    """Raise DamageError if the log no longer matches what was dispatched (``find_log_change``)."""
    why = find_log_change(log, last, end)
    if why and last is not None:
        raise DamageError(log.path_of(last.offset), last.offset, why, hint)
