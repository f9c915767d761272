"""The scan: from the bytes of a commit log file to columns of dispatch requests, as one kernel.

A record becomes the content of a broker's DispatchRequest (format notes §3): its queue, its tags
code, and the hashes of its index keys. Topic and queue id become a number in the scan's own queue
table, so a row is a few integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.kernels import record as rk
from store.kernels.java import hash_utf8, index_key_hash, is_blank, parse_int
from store.kernels.jit import inlined, kernel
from store.kernels.properties import (
    DELAY,
    INNER_BASE,
    INNER_NUM,
    KEYS,
    MULTI_NAMES,
    MULTI_OFFSETS,
    TAGS,
    UNIQ_KEY,
    find_byte,
    find_properties,
)
from store.kernels.record import Parts, Rules, check_record, read_i32, read_i64
from store.kernels.topic import (
    IS_EXCLUDED,
    IS_SCHEDULE,
    IS_UNUSABLE,
    LMQ_PREFIX,
    MULTI_OFF,
    starts_with,
    topic_kind,
)

_INT_MAX, _SHORT_MAX, _LONG_MAX = 2**31 - 1, 2**15 - 1, 2**63 - 1
_HASH = ord("#")
_SPACE = ord(" ")
_ONE = np.uintp(1)

# Fields of a queue in QueueTable.rows.
TOPIC_AT, TOPIC_END, QUEUE_ID, KEY_PREFIX, KIND = range(5)
QUEUE_FIELDS = 5


class QueueTable(NamedTuple):
    """The queues found by a scan: open addressing over (topic bytes, queue id)."""

    slots: NDArray[np.int32]  # number of the queue + 1, 0 = free; the length is a power of two
    rows: NDArray[np.int64]  # one row per queue; KEY_PREFIX is the hash of `topic#`
    used: NDArray[np.int64]  # one element: the number of rows in use


class Columns(NamedTuple):
    """The scan's output, one element per record unless stated otherwise."""

    commit_log_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    queue: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    tags_code: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    transaction: NDArray[np.uint8]
    key_end: NDArray[np.int32]  # end of the record's hashes in key_hash
    key_hash: NDArray[np.int32]  # one element per key
    multi_row: NDArray[np.int32]  # one element per multi-dispatch unit: its record's row
    multi_queue: NDArray[np.int32]
    multi_offset: NDArray[np.int64]


class ScanEnd(NamedTuple):
    """Where and why a scan ended: OK at its limit, BLANK, FULL, or the fault of a record."""

    reason: int
    at: int
    rows: int
    keys: int
    multis: int


@inlined
def _same(buf: NDArray[np.uint8], begin: int, end: int, other: int) -> bool:
    """Return whether ``buf[begin:end]`` equals the bytes at ``other``."""
    at, stop, to = np.uintp(begin), np.uintp(end), np.uintp(other)
    while at < stop and buf[at] == buf[to]:
        at += _ONE
        to += _ONE
    return at >= stop


@kernel
def _queue_number(
    buf: NDArray[np.uint8], name: tuple[int, int], queue_id: int, multi: int, table: QueueTable
) -> int:
    """Return the number of a queue in the table, adding it if it is new."""
    slots, rows, used = table
    at, end = name
    topic_hash = hash_utf8(buf, at, end, np.uint32(0))
    mask = len(slots) - 1
    slot = (np.int64(topic_hash) * 0x9E3779B1 + queue_id * 0x85EBCA77) >> 7 & mask
    while slots[slot] != 0:
        q = np.int64(slots[slot]) - 1
        known = rows[q, TOPIC_AT]
        if rows[q, QUEUE_ID] == queue_id and rows[q, TOPIC_END] - known == end - at:
            if _same(buf, at, end, known):
                return q
        slot = (slot + 1) & mask
    q = used[0]
    slots[slot] = q + 1
    rows[q, TOPIC_AT] = at
    rows[q, TOPIC_END] = end
    rows[q, QUEUE_ID] = queue_id
    rows[q, KEY_PREFIX] = np.uint32(topic_hash * np.uint32(31) + np.uint32(_HASH))
    rows[q, KIND] = topic_kind(buf, at, end, multi)
    used[0] = q + 1
    return q


@kernel
def _queue_fault(kind: int, queue_offset: int) -> int:
    """Return why a queue of this kind cannot hold a unit at an offset, OK if it can."""
    if kind & IS_UNUSABLE:
        return rk.BAD_TOPIC
    if queue_offset < 0 or queue_offset > layout.QUEUE_OFFSET_MAX:
        return rk.BAD_QUEUE_OFFSET
    return rk.OK


@kernel
def _put_keys(
    buf: NDArray[np.uint8],
    found: NDArray[np.int64],
    prefix: np.uint32,
    tags: bool,
    target: tuple[NDArray[np.int32], int],
) -> int:
    """Write the record's index key hashes in the broker's order; return where they end.

    The order is UNIQ_KEY, each non-empty part of KEYS between single spaces, then (5.4.0+) the
    tags. ``target`` is the array and the position to write at.
    """
    out, n = target
    if found[UNIQ_KEY, 0] >= 0:
        h = hash_utf8(buf, found[UNIQ_KEY, 0], found[UNIQ_KEY, 1], prefix)
        out[n] = index_key_hash(h)
        n += 1
    if found[KEYS, 0] >= 0:
        at, end = found[KEYS, 0], found[KEYS, 1]
        while at < end:
            stop = find_byte(buf, at, end, _SPACE)
            if stop > at:
                out[n] = index_key_hash(hash_utf8(buf, at, stop, prefix))
                n += 1
            at = stop + 1
    if tags and found[TAGS, 0] >= 0:
        typed = np.uint32(prefix * np.uint32(31) + np.uint32(ord("T")))
        typed = np.uint32(typed * np.uint32(31) + np.uint32(_HASH))
        out[n] = index_key_hash(hash_utf8(buf, found[TAGS, 0], found[TAGS, 1], typed))
        n += 1
    return n


@kernel
def _tags_code(
    buf: NDArray[np.uint8],
    found: NDArray[np.int64],
    is_schedule: bool,
    store_timestamp: int,
    delays: NDArray[np.int64],
) -> tuple[bool, int]:
    """Return the tags code, or the delivery time of a schedule message; False: bad DELAY."""
    code = np.int64(0)
    if found[TAGS, 0] >= 0:
        h = hash_utf8(buf, found[TAGS, 0], found[TAGS, 1], np.uint32(0))
        code = np.int64(np.int32(h))
    if is_schedule and found[DELAY, 0] >= 0:
        is_valid, level = parse_int(buf, found[DELAY, 0], found[DELAY, 1], _INT_MAX)
        if not is_valid:
            return False, 0
        level = min(level, len(delays))
        if level > 0:
            code = store_timestamp + delays[level - 1]
    return True, code


@kernel
def _inner_batch_fault(buf: NDArray[np.uint8], found: NDArray[np.int64], sys_flag: int) -> int:
    """Return INNER_BATCH or BAD_INNER_BATCH (its fields do not parse), else OK."""
    if sys_flag & layout.SYS_INNER_BATCH:
        return rk.INNER_BATCH
    if found[INNER_NUM, 0] < 0 or found[INNER_BASE, 0] < 0:
        return rk.OK
    number, _ = parse_int(buf, found[INNER_NUM, 0], found[INNER_NUM, 1], _SHORT_MAX)
    base, _ = parse_int(buf, found[INNER_BASE, 0], found[INNER_BASE, 1], _LONG_MAX)
    return rk.OK if number and base else rk.BAD_INNER_BATCH


@kernel
def _count_parts(buf: NDArray[np.uint8], at: int, end: int) -> int:
    """Count the parts of ``split(",")`` without trailing empty ones; -1 if blank."""
    if is_blank(buf, at, end):
        return -1
    while end > at and buf[end - 1] == ord(","):
        end -= 1
    count = 1 if end > at else 0
    for i in range(at, end):
        if buf[i] == ord(","):
            count += 1
    return count


@kernel
def _part_end(buf: NDArray[np.uint8], at: int, end: int) -> int:
    while at < end and buf[at] != ord(","):
        at += 1
    return at


@kernel
def _put_multi(
    buf: NDArray[np.uint8],
    found: NDArray[np.int64],
    row: tuple[int, int],
    state: tuple[Rules, QueueTable, Columns],
    n: int,
) -> int:
    """Write the record's multi-dispatch units after the first ``n``; return their new count.

    ``row`` is (row number, queue id). A negative count is the negated fault of the record: if an
    offset does not parse, a broker's reput would hang on it (format notes §5.4).
    """
    rules, table, out = state
    at, end = found[MULTI_NAMES, 0], found[MULTI_NAMES, 1]
    offset_at, offset_end = found[MULTI_OFFSETS, 0], found[MULTI_OFFSETS, 1]
    if at < 0 or offset_at < 0:
        return n
    count = _count_parts(buf, at, end)
    if count < 0 or count != _count_parts(buf, offset_at, offset_end):
        return n
    for _ in range(count):
        stop = _part_end(buf, at, end)
        offset_stop = _part_end(buf, offset_at, offset_end)
        has_slash = False
        for i in range(at, stop):
            has_slash = has_slash or buf[i] == ord("/")
        if not (rules.multi_skips_slash and has_slash):
            is_valid, offset = parse_int(buf, offset_at, offset_stop, _LONG_MAX)
            if not is_valid:
                return -rk.BAD_MULTI_DISPATCH
            is_lmq = rules.lmq and starts_with(buf, at, stop, LMQ_PREFIX)
            queue_id = 0 if is_lmq else row[1]
            q = _queue_number(buf, (at, stop), queue_id, rules.multi_dispatch, table)
            fault = _queue_fault(table.rows[q, KIND], offset)
            if fault != rk.OK:
                return -fault
            out.multi_row[n] = row[0]
            out.multi_queue[n] = q
            out.multi_offset[n] = offset
            n += 1
        at, offset_at = stop + 1, offset_stop + 1
    return n


@kernel
def scan(
    buf: NDArray[np.uint8],
    span: tuple[int, int, int],
    rules: Rules,
    delays: NDArray[np.int64],
    state: tuple[QueueTable, Columns, NDArray[np.int64]],
) -> ScanEnd:
    """Scan the records of ``span`` = (base of the file, begin, end), positions in the file.

    ``state`` is what the scan writes to; its last part is scratch space for ``find_properties``.
    The columns are written from row 0. They must hold ``(end - begin) // 91 + 1`` rows, and half
    as many keys and multi-dispatch units as there are bytes.
    """
    base, at, end = span
    table, out, found = state
    queues = table.rows
    key_hash = out.key_hash
    n, keys, multis = 0, 0, 0
    while at < end:
        parts: Parts = check_record(buf, at, base, rules)
        if parts.reason != rk.OK:
            return ScanEnd(parts.reason, at, n, keys, multis)
        if n >= len(out.size):
            return ScanEnd(rk.FULL, at, n, keys, multis)
        find_properties(buf, parts.properties_at, parts.end, rules.splits_properties, found)
        sys_flag = read_i32(buf, at + layout.SYS_FLAG_AT)
        fault = _inner_batch_fault(buf, found, sys_flag) if rules.checks_inner_batch else rk.OK
        if fault != rk.OK:
            return ScanEnd(fault, at, n, keys, multis)
        queue_id = read_i32(buf, at + layout.QUEUE_ID_AT)
        topic = (parts.topic_at, parts.topic_end)
        q = _queue_number(buf, topic, queue_id, rules.multi_dispatch, table)
        store_timestamp = read_i64(buf, parts.store_timestamp_at)
        is_schedule = queues[q, KIND] & IS_SCHEDULE != 0
        is_valid, tags_code = _tags_code(buf, found, is_schedule, store_timestamp, delays)
        if not is_valid:
            return ScanEnd(rk.BAD_DELAY, at, n, keys, multis)
        transaction = sys_flag & layout.SYS_TRANSACTION
        queue_offset = read_i64(buf, at + layout.QUEUE_OFFSET_AT)
        if transaction == 0 or transaction == layout.SYS_COMMIT:
            fault = _queue_fault(queues[q, KIND], queue_offset)
            if fault == rk.OK and rules.multi_dispatch != MULTI_OFF:
                if not queues[q, KIND] & IS_EXCLUDED:
                    put = _put_multi(buf, found, (n, queue_id), (rules, table, out), multis)
                    fault, multis = (rk.OK, put) if put >= 0 else (-put, multis)
            if fault != rk.OK:
                return ScanEnd(fault, at, n, keys, multis)
        if rules.indexes_keys and transaction != layout.SYS_ROLLBACK:
            prefix = np.uint32(queues[q, KEY_PREFIX])
            keys = _put_keys(buf, found, prefix, rules.indexes_tags, (key_hash, keys))
        out.commit_log_offset[n] = base + at
        out.size[n] = parts.size
        out.queue[n] = q
        out.queue_offset[n] = queue_offset
        out.tags_code[n] = tags_code
        out.store_timestamp[n] = store_timestamp
        out.transaction[n] = transaction
        out.key_end[n] = keys
        n += 1
        at = parts.end
    return ScanEnd(rk.OK, at, n, keys, multis)
