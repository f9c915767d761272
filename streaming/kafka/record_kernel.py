"""Kernels that encode messages as Kafka records (record format 2) and choose partitions.

A record; every integer except ``attributes`` is a zigzag varint::

    length  attributes=0 (one byte)  timestamp delta  offset delta
    key length (-1: null)  key  value length  value
    header count, then for each: name length  name  value length  value

Headers are the message's properties in their order, then those of ``HEADERS``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import kernel

# The headers added to the message's properties, in this order.
HEADERS = (
    "reput.topic", "reput.queue_id", "reput.queue_offset", "reput.commit_log_offset",
    "reput.born_timestamp", "reput.born_host",
)  # fmt: skip
HEADER_COUNT = len(HEADERS)
VARINT_MAX = 10
INTEGER_MAX = 20  # digits of an i64, and its sign
# Upper bound of a record's size without its key, value, properties, topic and host.
RECORD_OVERHEAD = (
    6 * VARINT_MAX + 1 + sum(map(len, HEADERS)) + HEADER_COUNT * 2 * VARINT_MAX + 4 * INTEGER_MAX
)
ENTRY_OVERHEAD = 2 * 5

_TOPIC, _QUEUE_ID, _QUEUE_OFFSET, _COMMIT_LOG_OFFSET, _BORN_TIMESTAMP, _BORN_HOST = range(
    HEADER_COUNT
)
_NAMES = np.frombuffer("".join(HEADERS).encode(), np.uint8)
_NAME_ENDS = np.cumsum([len(name) for name in HEADERS])
_SEVEN_BITS, _MORE = np.uint64(0x7F), np.uint64(0x80)
_MINUS, _ZERO, _TEN, _SPACE = 0x2D, 0x30, 10, 0x20
_KEYS = np.frombuffer(b"KEYS", np.uint8)
_UNIQ_KEY = np.frombuffer(b"UNIQ_KEY", np.uint8)
_U32 = 0xFFFFFFFF
_MURMUR_SEED, _MURMUR_M, _MURMUR_R = 0x9747B28C, 0x5BD1E995, 24
_POSITIVE = 0x7FFFFFFF
NO_KEY = -1
HAS_NO_QUEUES = -1


class Messages(NamedTuple):
    """The messages of a stretch: concatenated texts and bodies, and where each begins.

    ``…_at`` has one element more than there are values. Keys are spans of ``values``.
    """

    body_at: NDArray[np.int32]
    bodies: NDArray[np.uint8]
    entry_at: NDArray[np.int32]  # the first property of each message
    name_at: NDArray[np.int32]
    names: NDArray[np.uint8]
    value_at: NDArray[np.int32]
    values: NDArray[np.uint8]
    host_at: NDArray[np.int32]
    hosts: NDArray[np.uint8]
    key_begin: NDArray[np.int64]  # NO_KEY if there is none
    key_end: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    commit_log_offset: NDArray[np.int64]
    born_timestamp: NDArray[np.int64]
    topic: NDArray[np.int32]  # index into ``topics``
    topic_at: NDArray[np.int32]
    topics: NDArray[np.uint8]


class Batches(NamedTuple):
    """Record batches: one element per batch."""

    group: NDArray[np.int64]
    begin: NDArray[np.int64]  # in the output bytes
    end: NDArray[np.int64]
    records: NDArray[np.int64]  # their number
    base_timestamp: NDArray[np.int64]
    max_timestamp: NDArray[np.int64]
    first_row: NDArray[np.int64]
    largest_row: NDArray[np.int64]
    largest_size: NDArray[np.int64]


@kernel
def find_keys(m: Messages) -> None:
    """Find each message's key: the first of KEYS, else UNIQ_KEY, else none."""
    for r in range(len(m.entry_at) - 1):
        m.key_begin[r] = NO_KEY
        m.key_end[r] = NO_KEY
        for e in range(m.entry_at[r], m.entry_at[r + 1]):
            name, end = m.name_at[e], m.name_at[e + 1]
            at, stop = m.value_at[e], m.value_at[e + 1]
            if _equals(m.names, name, end, _KEYS):
                while at < stop and m.values[at] == _SPACE:
                    at += 1
                last = at
                while last < stop and m.values[last] != _SPACE:
                    last += 1
                if last > at:
                    m.key_begin[r], m.key_end[r] = at, last
                    break
            elif _equals(m.names, name, end, _UNIQ_KEY):
                m.key_begin[r], m.key_end[r] = at, stop


@kernel
def choose_partitions(
    m: Messages,
    partitions: NDArray[np.int32],
    queues: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Choose each message's partition; ``partitions`` and ``queues`` have one element per topic.

    By queue id if the topic has as many queues as partitions, or if the number of its queues is
    unknown (HAS_NO_QUEUES) and the partition exists; else by key as Kafka's own clients do, and
    without a key by queue id.
    """
    for r in range(len(m.queue_id)):
        count, known = partitions[m.topic[r]], queues[m.topic[r]]
        queue_id = m.queue_id[r]
        by_queue = known == HAS_NO_QUEUES or known == count
        if by_queue and 0 <= queue_id < count:
            out[r] = queue_id
        elif m.key_begin[r] == NO_KEY:
            out[r] = (queue_id & _POSITIVE) % count
        else:
            begin, end = m.key_begin[r], m.key_end[r]
            out[r] = (murmur2(m.values, begin, end) & _POSITIVE) % count


@kernel
def murmur2(data: NDArray[np.uint8], begin: int, end: int) -> int:
    """Return the hash that Kafka's clients partition by, as an unsigned 32-bit number."""
    length = end - begin
    h = (_MURMUR_SEED ^ length) & _U32
    at = begin
    while end - at >= 4:
        k = _byte(data, at) | _byte(data, at + 1) << 8
        k |= _byte(data, at + 2) << 16 | _byte(data, at + 3) << 24
        k = (k * _MURMUR_M) & _U32
        k ^= k >> _MURMUR_R
        k = (k * _MURMUR_M) & _U32
        h = ((h * _MURMUR_M) & _U32) ^ k
        at += 4
    left = end - at
    if left == 3:
        h ^= _byte(data, at + 2) << 16
    if left >= 2:
        h ^= _byte(data, at + 1) << 8
    if left >= 1:
        h ^= _byte(data, at)
        h = (h * _MURMUR_M) & _U32
    h ^= h >> 13
    h = (h * _MURMUR_M) & _U32
    return h ^ (h >> 15)


@kernel
def _byte(data: NDArray[np.uint8], at: int) -> int:
    return np.int64(data[at])


@kernel
def encode(
    order: tuple[NDArray[np.int64], NDArray[np.int64]],
    m: Messages,
    batch_bytes: int,
    out: NDArray[np.uint8],
    batches: Batches,
) -> int:
    """Write records into batches of one group each; return how many batches there are.

    ``order`` = (rows ordered by group, group of each row). A batch takes ``batch_bytes`` at most,
    or one record that is larger.
    """
    rows, groups = order
    n, at, size = -1, 0, 0
    for i in range(len(rows)):
        r = rows[i]
        is_new = n < 0 or batches.group[n] != groups[r]
        if not is_new:
            delta = m.timestamp[r] - batches.base_timestamp[n]
            size = _record_size(m, r, delta, batches.records[n])
            whole = size + _varint_size(_zigzag(size))
            is_new = at - batches.begin[n] + whole > batch_bytes
        if is_new:
            n += 1
            batches.group[n] = groups[r]
            batches.begin[n] = at
            batches.records[n] = 0
            batches.base_timestamp[n] = m.timestamp[r]
            batches.max_timestamp[n] = m.timestamp[r]
            batches.first_row[n] = r
            batches.largest_row[n] = r
            batches.largest_size[n] = 0
            size = _record_size(m, r, 0, 0)
        delta = m.timestamp[r] - batches.base_timestamp[n]
        begin = at
        at = _write_integer(out, at, size)
        at = _write_record(m, r, (delta, batches.records[n]), out, at)
        batches.records[n] += 1
        batches.end[n] = at
        batches.max_timestamp[n] = max(batches.max_timestamp[n], m.timestamp[r])
        if at - begin > batches.largest_size[n]:
            batches.largest_size[n] = at - begin
            batches.largest_row[n] = r
    return n + 1


@kernel
def _record_size(m: Messages, r: int, delta: int, number: int) -> int:
    """Return the length of a record: the number of bytes after the length field."""
    key = m.key_end[r] - m.key_begin[r] if m.key_begin[r] != NO_KEY else 0
    body = m.body_at[r + 1] - m.body_at[r]
    size = 1 + _integer_size(delta) + _integer_size(number)
    size += (_integer_size(key) if m.key_begin[r] != NO_KEY else 1) + key
    size += _integer_size(body) + body
    first, last = m.entry_at[r], m.entry_at[r + 1]
    size += _integer_size(last - first + HEADER_COUNT)
    for e in range(first, last):
        name = m.name_at[e + 1] - m.name_at[e]
        value = m.value_at[e + 1] - m.value_at[e]
        size += _integer_size(name) + name + _integer_size(value) + value
    t = m.topic[r]
    size += _header_size(_TOPIC, m.topic_at[t + 1] - m.topic_at[t])
    size += _header_size(_QUEUE_ID, _digits(np.int64(m.queue_id[r])))
    size += _header_size(_QUEUE_OFFSET, _digits(m.queue_offset[r]))
    size += _header_size(_COMMIT_LOG_OFFSET, _digits(m.commit_log_offset[r]))
    size += _header_size(_BORN_TIMESTAMP, _digits(m.born_timestamp[r]))
    return size + _header_size(_BORN_HOST, m.host_at[r + 1] - m.host_at[r])


@kernel
def _write_record(
    m: Messages, r: int, deltas: tuple[int, int], out: NDArray[np.uint8], at: int
) -> int:
    """Write a record after its length; return where it ends."""
    out[at] = 0
    at = _write_integer(out, at + 1, deltas[0])
    at = _write_integer(out, at, deltas[1])
    if m.key_begin[r] == NO_KEY:
        at = _write_integer(out, at, -1)
    else:
        at = _write_bytes(out, at, m.values, m.key_begin[r], m.key_end[r])
    at = _write_bytes(out, at, m.bodies, m.body_at[r], m.body_at[r + 1])
    first, last = m.entry_at[r], m.entry_at[r + 1]
    at = _write_integer(out, at, last - first + HEADER_COUNT)
    for e in range(first, last):
        at = _write_bytes(out, at, m.names, m.name_at[e], m.name_at[e + 1])
        at = _write_bytes(out, at, m.values, m.value_at[e], m.value_at[e + 1])
    t = m.topic[r]
    at = _write_name(out, at, _TOPIC)
    at = _write_bytes(out, at, m.topics, m.topic_at[t], m.topic_at[t + 1])
    at = _write_digits(out, _write_name(out, at, _QUEUE_ID), np.int64(m.queue_id[r]))
    at = _write_digits(out, _write_name(out, at, _QUEUE_OFFSET), m.queue_offset[r])
    at = _write_digits(out, _write_name(out, at, _COMMIT_LOG_OFFSET), m.commit_log_offset[r])
    at = _write_digits(out, _write_name(out, at, _BORN_TIMESTAMP), m.born_timestamp[r])
    at = _write_name(out, at, _BORN_HOST)
    return _write_bytes(out, at, m.hosts, m.host_at[r], m.host_at[r + 1])


@kernel
def _equals(data: NDArray[np.uint8], begin: int, end: int, wanted: NDArray[np.uint8]) -> bool:
    if end - begin != len(wanted):
        return False
    for i in range(len(wanted)):
        if data[begin + i] != wanted[i]:
            return False
    return True


@kernel
def _zigzag(value: int) -> np.uint64:
    value = np.int64(value)
    return np.uint64((value << 1) ^ (value >> 63))


@kernel
def _varint_size(number: np.uint64) -> int:
    size = 1
    while number > _SEVEN_BITS:
        number >>= np.uint64(7)
        size += 1
    return size


@kernel
def _integer_size(value: int) -> int:
    return _varint_size(_zigzag(value))


@kernel
def _write_integer(out: NDArray[np.uint8], at: int, value: int) -> int:
    number = _zigzag(value)
    while number > _SEVEN_BITS:
        out[at] = np.uint8((number & _SEVEN_BITS) | _MORE)
        number >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(number)
    return at + 1


@kernel
def _write_bytes(
    out: NDArray[np.uint8], at: int, data: NDArray[np.uint8], begin: int, end: int
) -> int:
    at = _write_integer(out, at, end - begin)
    # Unsigned: an index that cannot be negative lets the compiler make this one memcpy.
    source, target = np.uint64(begin), np.uint64(at)
    for i in range(np.uint64(end) - source):
        out[target + i] = data[source + i]
    return at + end - begin


@kernel
def _write_name(out: NDArray[np.uint8], at: int, number: int) -> int:
    return _write_bytes(
        out, at, _NAMES, _NAME_ENDS[number - 1] if number else 0, _NAME_ENDS[number]
    )


@kernel
def _header_size(number: int, value: int) -> int:
    name = _NAME_ENDS[number] - (_NAME_ENDS[number - 1] if number else 0)
    return _integer_size(name) + name + _integer_size(value) + value


@kernel
def _digits(value: int) -> int:
    """Return the number of characters of a decimal number."""
    count, number = (1, np.uint64(value)) if value >= 0 else (2, _magnitude(value))
    while number >= np.uint64(_TEN):
        number //= np.uint64(_TEN)
        count += 1
    return count


@kernel
def _magnitude(value: int) -> np.uint64:
    """Return the absolute value of a negative number; negating the minimum would overflow."""
    return np.uint64(-(value + 1)) + np.uint64(1)


@kernel
def _write_digits(out: NDArray[np.uint8], at: int, value: int) -> int:
    """Write a number in decimal, preceded by its length."""
    size = _digits(value)
    at = _write_integer(out, at, size)
    end = at + size
    if value < 0:
        out[at] = _MINUS
    i = end
    number = np.uint64(value) if value >= 0 else _magnitude(value)
    while True:
        i -= 1
        out[i] = np.uint8(number % np.uint64(_TEN)) + np.uint8(_ZERO)
        number //= np.uint64(_TEN)
        if number == np.uint64(0):
            break
    return end
