"""The byte layout of every on-disk structure of a RocketMQ store, defined only here.

All integers are big-endian and signed. Sizes are asserted beside each structure. Section numbers
point to ``docs/format.md``.

=================  =====  ==========================================================
structure          bytes  fields
=================  =====  ==========================================================
record, fixed 48B  48     total_size i32, magic i32, body_crc i32, queue_id i32, flag i32,
                          queue_offset i64, physical_offset i64, sys_flag i32,
                          born_timestamp i64; then born host (8 or 20 bytes),
                          store_timestamp i64, store host (8 or 20), reconsume_times i32,
                          prepared_transaction_offset i64, body_length i32, body, topic
                          length (i8 in V1, i16 in V2), topic, properties length i16,
                          properties
blank record       8      size i32 (the rest of the file), magic i32
consume queue unit 20     commit_log_offset i64, size i32, tags_code i64
ext unit           20+n   size i16, tags_code i64, store_timestamp i64, bitmap length i16
index header       40     begin/end timestamp i64, begin/end phy offset i64, slots i32, count i32
index slot         4      number of the slot's newest entry i32, 0 = none
index entry        20     key_hash i32, phy_offset i64, time_diff_seconds i32, prev_index i32
checkpoint         4096   physic, logics, index timestamp i64, master flushed, confirm, logics
                          physical offset i64
timer checkpoint   32+    read time ms, log flush position, queue offset, master's i64
=================  =====  ==========================================================
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

# --- record ------------------------------------------------------------------------------------

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB, since 5.1.0
MAGIC_BLANK = -875286124  # 0xCBD43194

RECORD_HEAD = np.dtype(
    [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
assert RECORD_HEAD.itemsize == 48

MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
for _name, _at in (
    ("magic", MAGIC_AT),
    ("body_crc", BODY_CRC_AT),
    ("queue_id", QUEUE_ID_AT),
    ("flag", FLAG_AT),
    ("queue_offset", QUEUE_OFFSET_AT),
    ("physical_offset", PHYSICAL_OFFSET_AT),
    ("sys_flag", SYS_FLAG_AT),
    ("born_timestamp", BORN_TIMESTAMP_AT),
):
    assert RECORD_HEAD.fields is not None and RECORD_HEAD.fields[_name][1] == _at

HOST_V4_SIZE = 8  # 4-byte address, port as i32
HOST_V6_SIZE = 20  # 16-byte address, port as i32

DLEDGER_HEADER_SIZE = 48  # the header of a DLedger entry, before the record in it

# The last fields before the body. Between the born host and these are the store timestamp and
# the store host.
RECORD_MIDDLE = np.dtype(
    [("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_length", ">i4")]
)
assert RECORD_MIDDLE.itemsize == 16

TOPIC_LENGTH_V1 = np.dtype(">i1")
TOPIC_LENGTH_V2 = np.dtype(">i2")
TOPIC_BYTES_MAX = 255  # the limit of a broker, and of a file name
PROPERTIES_LENGTH = np.dtype(">i2")
TIMESTAMP = np.dtype(">i8")
PORT = np.dtype(">i4")  # the last part of a host
TIMESTAMP_SIZE = 8
assert TIMESTAMP.itemsize == TIMESTAMP_SIZE
PROPERTIES_LENGTH_SIZE = 2
RECORD_MIN_SIZE = 91  # V1, two IPv4 hosts, empty body, topic and properties
BLANK_SIZE = 8  # also the space a record must leave at the end of its file
BLANK_RECORD = np.dtype(
    [("size", ">i4"), ("magic", ">i4")]
)  # a record begins with the same two fields
assert BLANK_RECORD.itemsize == BLANK_SIZE
PROPERTIES_SIZE_MAX = 32767
assert np.iinfo(PROPERTIES_LENGTH).max == PROPERTIES_SIZE_MAX

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_TRANSACTION = 0xC
SYS_PREPARED = 0x4
SYS_COMMIT = 0x8
SYS_ROLLBACK = 0xC
SYS_BORN_HOST_V6 = 0x10
SYS_STORE_HOST_V6 = 0x20
SYS_INNER_BATCH = 0x80
SYS_COMPRESSION_TYPE = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300

NAME_VALUE_SEPARATOR = 0x01
PROPERTY_SEPARATOR = 0x02

PROPERTY_CRC_SIZE = 20  # `__CRC32#`, 0x01, ten reversed digits, 0x02
PROPERTY_CRC_DIGITS = 10

# The properties that the store itself reads or writes.
PROPERTY_TAGS = "TAGS"
PROPERTY_KEYS = "KEYS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_DELAY = "DELAY"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_CRC = "__CRC32#"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
RETRY_PREFIX = "%RETRY%"  # of a consumer group's retry topic
DLQ_PREFIX = "%DLQ%"  # of the topic of its dead letters
LMQ_TOPIC_PREFIX = "%LMQ%"  # of a lite queue's name
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
OP_REMOVE_TAG = "d"  # TransactionalMessageUtil.REMOVE_TAG
PROPERTY_TIMER_OUT = "TIMER_OUT_MS"
PROPERTY_TIMER_DELETE = "TIMER_DEL_UNIQKEY"
PROPERTY_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_CHECK_IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"

# --- consume queue -----------------------------------------------------------------------------

CQ_UNIT = np.dtype([("commit_log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
CQ_UNIT_SIZE = 20
assert CQ_UNIT.itemsize == CQ_UNIT_SIZE
NO_QUEUE_YET = -1  # as the end of a queue: it has no files

QUEUE_OFFSET_MAX = (2**63 - 2**31) // CQ_UNIT_SIZE  # keeps the file's end a 64-bit position
PRE_BLANK_SIZE = 0x7FFFFFFF  # the size field of a pre-fill unit; its offset and tags code are 0

EXT_UNIT = np.dtype(
    [
        ("size", ">i2"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bitmap_length", ">i2"),
    ]
)
EXT_UNIT_SIZE = 20
assert EXT_UNIT.itemsize == EXT_UNIT_SIZE
EXT_END_BLANK_SIZE = 4  # reserved at the end of an ext file
EXT_END_MARK = np.dtype(">i2")  # -1: the rest of the ext file is unused
EXT_ADDRESS_BASE = -(2**63)  # address = real offset + this
EXT_ADDRESS_MAX = -2147483649  # a tags code at or below this is an ext address

# --- index -------------------------------------------------------------------------------------

INDEX_HEADER = np.dtype(
    [
        ("begin_timestamp", ">i8"),
        ("end_timestamp", ">i8"),
        ("begin_phy_offset", ">i8"),
        ("end_phy_offset", ">i8"),
        ("hash_slot_count", ">i4"),
        ("index_count", ">i4"),
    ]
)
INDEX_HEADER_SIZE = 40
assert INDEX_HEADER.itemsize == INDEX_HEADER_SIZE

INDEX_SLOT = np.dtype(">i4")
INDEX_SLOT_SIZE = 4
assert INDEX_SLOT.itemsize == INDEX_SLOT_SIZE

INDEX_ENTRY = np.dtype(
    [
        ("key_hash", ">i4"),
        ("phy_offset", ">i8"),
        ("time_diff_seconds", ">i4"),
        ("prev_index", ">i4"),
    ]
)
INDEX_ENTRY_SIZE = 20
assert INDEX_ENTRY.itemsize == INDEX_ENTRY_SIZE


def index_slot_at(slot: int) -> int:
    """Return the byte position of a slot in an index file."""
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slot


def index_entry_at(number: int, max_hash_slot_num: int) -> int:
    """Return the byte position of an entry in an index file (entry 0 is never used)."""
    return index_slot_at(max_hash_slot_num) + INDEX_ENTRY_SIZE * number


def index_file_size(max_hash_slot_num: int, max_index_num: int) -> int:
    """Return the full size of an index file: 40 + 4 S + 20 N."""
    return index_entry_at(max_index_num, max_hash_slot_num)


assert index_file_size(5_000_000, 20_000_000) == 420_000_040

# --- checkpoint --------------------------------------------------------------------------------

CHECKPOINT = np.dtype(
    [
        ("physic_msg_timestamp", ">i8"),
        ("logics_msg_timestamp", ">i8"),
        ("index_msg_timestamp", ">i8"),
        ("master_flushed_offset", ">i8"),
        ("confirm_phy_offset", ">i8"),
        ("logics_physical_offset", ">i8"),  # since 5.5.0
    ]
)
CHECKPOINT_SIZE = 4096
assert CHECKPOINT.itemsize == 48

# --- config/timercheck, since 5.0: the timer wheel's own checkpoint; only what is read here ------

TIMER_CHECKPOINT = np.dtype(
    [
        ("last_read_time_ms", ">i8"),  # up to which due messages were delivered
        ("last_timer_log_flush_pos", ">i8"),
        ("last_timer_queue_offset", ">i8"),  # up to which TIMER_TOPIC was put into the wheel
        ("master_timer_queue_offset", ">i8"),
    ]
)
assert TIMER_CHECKPOINT.itemsize == 32

# --- names -------------------------------------------------------------------------------------

MAPPED_FILE_NAME_DIGITS = 20
INDEX_FILE_NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
MAPPED_FILE_SIZE_MAX = 2**31 - 1  # Java parity: the limit of FileChannel.map
COMMIT_LOG_DIR = "commitlog"
CONSUME_QUEUE_DIR = "consumequeue"
CONSUME_QUEUE_EXT_DIR = "consumequeue_ext"
BATCH_CONSUME_QUEUE_DIR = "batchconsumequeue"  # not supported
DLEDGER_DIR_PREFIX = "dledger-"  # then dLegerSelfId; not supported
INDEX_DIR = "index"
CONFIG_DIR = "config"
CHECKPOINT_FILE = "checkpoint"
ABORT_FILE = "abort"
LOCK_FILE = "lock"
LOCK_CONTENT = b"lock"

# --- one record of a dtype ---------------------------------------------------------------------

_STRUCT_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q"}


def struct_of(*parts: np.dtype[Any] | int) -> struct.Struct:
    """Return the Struct of consecutive dtypes; an int stands for that many opaque bytes."""
    codes = [">"]
    for part in parts:
        if isinstance(part, int):
            codes.append(f"{part}s")
            continue
        types = [part[name] for name in part.names] if part.names else [part]
        codes += [_STRUCT_CODES[t.str[1:]] for t in types]
    return struct.Struct("".join(codes))


assert struct_of(RECORD_HEAD, 2 * HOST_V4_SIZE).size == RECORD_HEAD.itemsize + 2 * HOST_V4_SIZE
