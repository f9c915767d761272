"""Checking one record in place and finding its parts, as kernels: the log's acceptance rule.

A record is accepted if its magic is V1 or V2, its length arithmetic holds, its physical offset
equals its position, and its body CRC holds (where the body is not empty), and its property CRC
(where the configuration enables it and it is present). Format notes §2.1, §2.6, §2.9.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.kernels.crc32 import crc32
from store.kernels.jit import inlined, kernel

# The results of check_record. REASONS has the texts for messages.
OK = 0
BLANK = 1  # a blank record: the chain continues in the next file
NO_ROOM = 2
BAD_MAGIC = 3
BAD_LENGTH = 4
BAD_OFFSET = 5
BAD_BODY_CRC = 6
BAD_PROPERTY_CRC = 7
BAD_DELAY = 8
BAD_INNER_BATCH = 9
BAD_MULTI_DISPATCH = 10
NEEDS_V2 = 11
INNER_BATCH = 12
EMPTY = 13
FULL = 14  # the output of a scan is full: says nothing about the record
BAD_TOPIC = 15
BAD_QUEUE_OFFSET = 16
VANISHED = 17  # of a scan, in Python: see ``store.io.mapped_file.intact``

REASONS = {
    NO_ROOM: "the file ends without a blank record",
    BAD_MAGIC: "no record starts here (bad magic)",
    BAD_LENGTH: "the record's lengths do not add up",
    BAD_OFFSET: "the record names another physical offset than its position",
    BAD_BODY_CRC: "the body does not match its CRC",
    BAD_PROPERTY_CRC: "the record does not match its property CRC",
    BAD_DELAY: "DELAY of a schedule message is not an integer; a broker cannot dispatch it",
    BAD_INNER_BATCH: "INNER_NUM or INNER_BASE is not an integer; a broker cannot dispatch it",
    BAD_MULTI_DISPATCH: "INNER_MULTI_QUEUE_OFFSET is not a list of integers, "
    "a broker's dispatch hangs on it",
    NEEDS_V2: "a V2 record, which needs broker version 5.1.0 or later (see --broker-version)",
    EMPTY: "zeroed space where a record should be",
    BAD_TOPIC: "the topic or a multi-dispatch queue cannot name a directory",
    BAD_QUEUE_OFFSET: "the queue offset is negative or beyond what a queue can hold",
    VANISHED: "the bytes vanished while they were read (was the file truncated?)",
}

_MAGIC_V1 = layout.MAGIC_V1
_MAGIC_V2 = layout.MAGIC_V2
_MAGIC_BLANK = layout.MAGIC_BLANK
_V4, _V6 = layout.HOST_V4_SIZE, layout.HOST_V6_SIZE
_BORN_HOST_AT = layout.BORN_HOST_AT
_MIDDLE_SIZE = layout.RECORD_MIDDLE.itemsize
_BODY_LENGTH_BACK = 4  # the body length is the last field before the body
_CRC_SIZE = layout.PROPERTY_CRC_SIZE
_CRC_DIGITS = layout.PROPERTY_CRC_DIGITS
_CRC_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)


class Rules(NamedTuple):
    """What a scan checks and reads, by version and configuration; all fields are scalars."""

    accepts_v2: bool
    check_crc: bool
    check_property_crc: bool
    splits_properties: bool
    checks_inner_batch: bool
    indexes_keys: bool
    indexes_tags: bool
    multi_dispatch: int
    multi_skips_slash: bool
    lmq: bool


class Parts(NamedTuple):
    """The positions in the buffer of the parts of a checked record."""

    reason: int
    size: int
    store_timestamp_at: int
    body_at: int
    body_end: int
    topic_at: int
    topic_end: int
    properties_at: int
    end: int


@inlined
def read_i16(buf: NDArray[np.uint8], at: int) -> int:
    """Read a big-endian i16."""
    return np.int64(np.int16((np.uint16(buf[at]) << 8) | np.uint16(buf[at + 1])))


@inlined
def read_i32(buf: NDArray[np.uint8], at: int) -> int:
    """Read a big-endian i32."""
    high = (np.uint32(buf[at]) << np.uint32(24)) | (np.uint32(buf[at + 1]) << np.uint32(16))
    low = (np.uint32(buf[at + 2]) << np.uint32(8)) | np.uint32(buf[at + 3])
    return np.int64(np.int32(high | low))


@inlined
def read_i64(buf: NDArray[np.uint8], at: int) -> int:
    """Read a big-endian i64."""
    return (read_i32(buf, at) << 32) | (read_i32(buf, at + 4) & 0xFFFFFFFF)


@kernel
def _failed(reason: int, size: int) -> Parts:
    return Parts(reason, size, 0, 0, 0, 0, 0, 0, 0)


@kernel
def find_parts(buf: NDArray[np.uint8], at: int, end: int) -> Parts:
    """Check the magic and length arithmetic of the record at ``at``, and find its parts."""
    if end - at < layout.BLANK_SIZE:
        return _failed(NO_ROOM, 0)
    size = read_i32(buf, at)
    magic = read_i32(buf, at + layout.MAGIC_AT)
    if magic == _MAGIC_BLANK:
        return _failed(BLANK, size)
    if magic != _MAGIC_V1 and magic != _MAGIC_V2:
        return _failed(EMPTY if size == 0 and magic == 0 else BAD_MAGIC, size)
    if size < layout.RECORD_MIN_SIZE or size > end - at:
        return _failed(BAD_LENGTH, size)
    stop = at + size
    sys_flag = read_i32(buf, at + layout.SYS_FLAG_AT)
    store_at = at + _BORN_HOST_AT + (_V6 if sys_flag & layout.SYS_BORN_HOST_V6 else _V4)
    store_host = _V6 if sys_flag & layout.SYS_STORE_HOST_V6 else _V4
    body_at = store_at + layout.TIMESTAMP_SIZE + store_host + _MIDDLE_SIZE
    if body_at + 3 > stop:
        return _failed(BAD_LENGTH, size)
    body_end = body_at + max(read_i32(buf, body_at - _BODY_LENGTH_BACK), 0)
    if magic == _MAGIC_V1:
        topic_at = body_end + 1
        if topic_at + 2 > stop:
            return _failed(BAD_LENGTH, size)
        topic_size = np.int64(np.int8(buf[body_end]))
    else:
        topic_at = body_end + 2
        if topic_at + 2 > stop:
            return _failed(BAD_LENGTH, size)
        topic_size = read_i16(buf, body_end)
    topic_end = topic_at + topic_size
    if topic_size < 0 or topic_end + 2 > stop:
        return _failed(BAD_LENGTH, size)
    properties_at = topic_end + layout.PROPERTIES_LENGTH_SIZE
    if properties_at + max(read_i16(buf, topic_end), 0) != stop:
        return _failed(BAD_LENGTH, size)
    return Parts(OK, size, store_at, body_at, body_end, topic_at, topic_end, properties_at, stop)


@kernel
def _property_crc_holds(buf: NDArray[np.uint8], at: int, parts: Parts) -> bool:
    """Check the CRC at the end of the properties, if present (format notes §2.6)."""
    begin = parts.end - _CRC_SIZE
    if begin < parts.properties_at:
        return True
    for i in range(len(_CRC_NAME)):
        if buf[begin + i] != _CRC_NAME[i]:
            return True
    expected = crc32(buf, at, begin) & 0x7FFFFFFF
    for i in range(_CRC_DIGITS):  # least significant digit first
        if buf[begin + len(_CRC_NAME) + i] != ord("0") + expected % 10:
            return False
        expected //= 10
    return buf[parts.end - 1] == layout.PROPERTY_SEPARATOR


@kernel
def check_record(buf: NDArray[np.uint8], at: int, base: int, rules: Rules) -> Parts:
    """Apply the acceptance rule to the record at ``at`` of a file that begins at ``base``."""
    parts = find_parts(buf, at, len(buf))
    if parts.reason != OK:
        return parts
    if read_i64(buf, at + layout.PHYSICAL_OFFSET_AT) != base + at:
        return _failed(BAD_OFFSET, parts.size)
    if not rules.accepts_v2 and read_i32(buf, at + layout.MAGIC_AT) == _MAGIC_V2:
        return _failed(NEEDS_V2, parts.size)
    if rules.check_crc and parts.body_end > parts.body_at:
        crc = crc32(buf, parts.body_at, parts.body_end) & 0x7FFFFFFF
        if crc != read_i32(buf, at + layout.BODY_CRC_AT):
            return _failed(BAD_BODY_CRC, parts.size)
    if rules.check_property_crc and not _property_crc_holds(buf, at, parts):
        return _failed(BAD_PROPERTY_CRC, parts.size)
    return parts


@kernel
def is_complete(buf: NDArray[np.uint8], at: int, base: int, rules: Rules) -> bool:
    """Return whether an accepted record at the live end is completely written.

    No checksum covers the properties, so a half-written tail can pass all checks. The record is
    complete if its last byte is not zero, or if a valid record or a blank follows it.
    """
    parts = find_parts(buf, at, len(buf))
    if parts.reason != OK or buf[parts.end - 1] != 0:
        # Without properties, the last byte belongs to their length, which is zero: check the
        # topic's last byte instead.
        return parts.reason == OK
    if parts.end == parts.properties_at and parts.topic_end > parts.topic_at:
        if buf[parts.topic_end - 1] != 0:
            return True
    reason = check_record(buf, parts.end, base, rules).reason
    return reason == OK or reason == BLANK
