"""The codec of one message as a record of the commit log.

::

    48 bytes   total_size, magic, body_crc, queue_id, flag, queue_offset, physical_offset,
               sys_flag, born_timestamp
    8 or 20    born host: 4 or 16 bytes of address (by the IPv6 bits of sys_flag), port
    8          store_timestamp
    8 or 20    store host
    16         reconsume_times, prepared_transaction_offset, body length
    …          body; topic length (1 byte in V1, 2 in V2), topic; properties length, properties

Decoding accepts what the scan accepts (``store.kernels.record``), except for the two checks that
depend on the configuration: the property CRC, and V2 before 5.1.0. Format notes §2.1–§2.6.
"""

from __future__ import annotations

import ipaddress
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from typing import Any

from store import layout
from store.commitlog.message import (
    COPIED_MAX,
    MappedBytes,
    Message,
    Origin,
    host_text,
    limit_bodies,
    limited,
    make_message,
    parse_properties,
)
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, StoreError, UnsupportedFormatError, shown
from store.layout import BLANK_RECORD, COMMIT_LOG_DIR, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, struct_of

__all__ = [
    "IllegalMessageError",
    "Message",
    "NewMessage",
    "appends_property_crc",
    "decode_message",
    "decode_msg_id",
    "encode_host",
    "encode_property_crc",
    "encode_record",
    "host_text",
    "inner_batch_error",
    "limit_bodies",
    "limited",
    "make_properties",
    "offset_msg_id",
    "parse_properties",
    "record_crc",
]

_NAME_VALUE = chr(layout.NAME_VALUE_SEPARATOR)
_PROPERTY_END = chr(layout.PROPERTY_SEPARATOR)
_V4, _V6 = layout.HOST_V4_SIZE, layout.HOST_V6_SIZE
_BORN_V6, _STORE_V6 = layout.SYS_BORN_HOST_V6, layout.SYS_STORE_HOST_V6
_HOSTS_V6 = _BORN_V6 | _STORE_V6
_CRC_MASK = 0x7FFFFFFF
_TOPIC_UNITS_MAX_V1 = 127  # UTF-16 code units
_MSG_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")
_START = struct_of(BLANK_RECORD)
_PORT = struct_of(layout.PORT)
_OFFSET = struct_of(layout.RECORD_HEAD["physical_offset"])
_TOPIC_LENGTH = {
    MAGIC_V1: struct_of(layout.TOPIC_LENGTH_V1),
    MAGIC_V2: struct_of(layout.TOPIC_LENGTH_V2),
}
_PROPERTIES_LENGTH = struct_of(layout.PROPERTIES_LENGTH)
# Positions among the values before the body.
BODY_CRC, QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET, SYS_FLAG, STORE_TIMESTAMP = 2, 3, 5, 6, 7, 10


def _struct_before_body(hosts_v6: int) -> struct.Struct:
    born = _V6 if hosts_v6 & _BORN_V6 else _V4
    store = _V6 if hosts_v6 & _STORE_V6 else _V4
    return struct_of(layout.RECORD_HEAD, born, layout.TIMESTAMP, store, layout.RECORD_MIDDLE)


# The fields before the body, by the IPv6 bits of the system flag.
_BEFORE_BODY = {f: _struct_before_body(f) for f in (0, _BORN_V6, _STORE_V6, _HOSTS_V6)}
_V4_BODY_AT, _unpack_v4 = _BEFORE_BODY[0].size, _BEFORE_BODY[0].unpack_from

# Why bytes are not a record, worded as in store.kernels.record, which is slow to load.
_NO_ROOM = "too few bytes for a record"
_IS_BLANK = "the blank record at the end of a file, not a message"
_BAD_MAGIC = "no record starts here (bad magic)"
_BAD_LENGTH = "the record's lengths do not add up"
_BAD_OFFSET = "the record names another physical offset than its position"
_BAD_BODY_CRC = "the body does not match its CRC"
_EMPTY = "zeroed space where a record should be"


class IllegalMessageError(StoreError):
    """A message that does not fit in a record (a broker answers MESSAGE_ILLEGAL)."""


def decode_message(
    data: bytes | memoryview,
    at: int = 0,
    *,
    offset: int | None = None,
    path: Path | str = COMMIT_LOG_DIR,
    splits_properties: bool = False,
) -> tuple[Message, int]:
    """Decode the record at ``data[at]``; return the message and the position after it.

    ``offset`` is the record's offset in the log, if the caller knows it: the record must then name
    the same one. ``path`` only names the file in errors. ``splits_properties`` as in
    ``parse_properties``. A record of more than ``COPIED_MAX`` bytes is not copied: its message
    keeps a reference to ``data``. Raises DamageError.
    """
    assert at >= 0
    found = _decode(data, at, offset, (path, splits_properties))
    if isinstance(found, str):
        raise DamageError(path, at if offset is None else offset, found)
    return found, at + found.size


def _decode(data: bytes | memoryview, at: int, offset: int | None, origin: Origin) -> Message | str:
    """Decode a record, or return why it is invalid."""
    found = find_parts(data, at, len(data) - at)
    if isinstance(found, str):
        return found
    values, spans = found
    if offset is not None and values[PHYSICAL_OFFSET] != offset:
        return _BAD_OFFSET
    begin, end, *_ = spans
    if values[0] > COPIED_MAX:
        shared = memoryview(data)[at : at + values[0]]
        if end > begin and record_crc(shared[begin:end]) != values[BODY_CRC]:
            return _BAD_BODY_CRC
        return make_message(values, MappedBytes(shared), spans, origin)
    record = bytes(data[at : at + values[0]])
    if end > begin and record_crc(record[begin:end]) != values[BODY_CRC]:
        return _BAD_BODY_CRC
    return make_message(values, record, spans, origin)


def find_parts(
    data: bytes | memoryview | mmap, at: int, room: int
) -> tuple[tuple[Any, ...], tuple[int, ...]] | str:
    """Return the values before the body and the spans (as in Spans) of the record at ``data[at]``.

    A string is why no record of at most ``room`` bytes begins there; CRCs are not checked.
    Java parity: a negative length of the body or of the properties counts as 0.
    """
    if room < layout.RECORD_MIN_SIZE:
        return _why_no_record(data, at, room)
    body_at = _V4_BODY_AT
    values = _unpack_v4(data, at)
    size, topic_length = values[0], _TOPIC_LENGTH.get(values[1])
    if topic_length is None:
        return _why_no_record(data, at, room)
    if size < layout.RECORD_MIN_SIZE or size > room:
        return _BAD_LENGTH
    if values[SYS_FLAG] & _HOSTS_V6:
        fixed = _BEFORE_BODY[values[SYS_FLAG] & _HOSTS_V6]
        body_at = fixed.size
        if body_at > size:
            return _BAD_LENGTH
        values = fixed.unpack_from(data, at)
    body_end = body_at + values[-1] if values[-1] > 0 else body_at
    topic_at, last = body_end + topic_length.size, size - _PROPERTIES_LENGTH.size
    if topic_at > last:
        return _BAD_LENGTH
    topic_end = topic_at + topic_length.unpack_from(data, at + body_end)[0]
    if not topic_at <= topic_end <= last:
        return _BAD_LENGTH
    properties_at = topic_end + _PROPERTIES_LENGTH.size
    (properties_size,) = _PROPERTIES_LENGTH.unpack_from(data, at + topic_end)
    if size != (properties_at + properties_size if properties_size > 0 else properties_at):
        return _BAD_LENGTH
    return values, (body_at, body_end, topic_at, topic_end, properties_at)


def _why_no_record(data: bytes | memoryview | mmap, at: int, room: int) -> str:
    if room < _START.size:
        return _NO_ROOM
    size, magic = _START.unpack_from(data, at)
    if magic in _TOPIC_LENGTH:
        return _BAD_LENGTH
    if magic == MAGIC_BLANK:
        return _IS_BLANK
    return _BAD_MAGIC if size or magic else _EMPTY


def inner_batch_error(path: Path | str, offset: int) -> UnsupportedFormatError:
    """Return the error for a record that is an inner batch, which holds several messages."""
    return UnsupportedFormatError(
        f"{path} at offset {offset}: an inner batch (a BatchCQ topic); "
        "batch consume queues are not supported"
    )


def offset_msg_id(message: Message) -> str:
    """Return the id made of store host and commit log offset, as upper-case hex."""
    return (message.raw_store_host + _OFFSET.pack(message.commit_log_offset)).hex().upper()


def decode_msg_id(text: str) -> tuple[str, int]:
    """Return the store host (``address:port``) and the commit log offset that an id names.

    Raises ConfigError unless the id is 32 (IPv4) or 56 (IPv6) hex digits.
    """
    if not _MSG_ID.fullmatch(text):
        raise ConfigError(f"message id {shown(text)} is not 32 or 56 hexadecimal digits")
    data = bytes.fromhex(text)
    (offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
    return host_text(data[: -_OFFSET.size]), offset


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to append. Hosts are ``address:port``, times are in milliseconds.

    ``body`` is stored unchanged: if ``sys_flag`` flags it as compressed, it already is. The IPv6
    bits of ``sys_flag`` are set from the hosts. Properties are written in their order.
    """

    topic: str
    queue_id: int = 0
    body: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None  # None: the time of storing
    born_host: str = "127.0.0.1:50000"
    store_host: str = "127.0.0.1:10911"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


def make_properties(
    *, uniq_key: str = "", keys: str | Iterable[str] = (), tags: str = "", **others: str
) -> dict[str, str]:
    """Return the properties of a message, without empty ones."""
    names = (layout.PROPERTY_UNIQ_KEY, layout.PROPERTY_KEYS, layout.PROPERTY_TAGS)
    values = (uniq_key, keys if isinstance(keys, str) else " ".join(keys), tags)
    named = {**dict(zip(names, values, strict=True)), **others}
    return {name: value for name, value in named.items() if value}


def encode_record(
    message: NewMessage,
    config: StoreConfig,
    *,
    queue_offset: int,
    commit_log_offset: int,
    store_timestamp: int,
) -> bytes:
    """Encode a message at an offset of the log as a broker of ``config.version`` does.

    Raises IllegalMessageError if the message does not fit in a record.
    """
    topic, magic = _encode_text(message.topic), _choose_magic(message.topic, config)
    properties = _encode_properties(message.properties, config)
    crc_size = layout.PROPERTY_CRC_SIZE if appends_property_crc(config) else 0
    born_host, store_host = encode_host(message.born_host), encode_host(message.store_host)
    sys_flag = message.sys_flag & ~_HOSTS_V6
    sys_flag |= _BORN_V6 if len(born_host) == _V6 else 0
    sys_flag |= _STORE_V6 if len(store_host) == _V6 else 0
    born = store_timestamp if message.born_timestamp is None else message.born_timestamp
    fixed, topic_length = _BEFORE_BODY[sys_flag & _HOSTS_V6], _TOPIC_LENGTH[magic]
    size = fixed.size + len(message.body) + topic_length.size + len(topic)
    size += _PROPERTIES_LENGTH.size + len(properties) + crc_size
    fields: tuple[Any, ...] = (
        size, magic, record_crc(message.body), message.queue_id, message.flag, queue_offset,
        commit_log_offset, sys_flag, born, born_host, store_timestamp, store_host,
        message.reconsume_times, message.prepared_transaction_offset, len(message.body),
    )  # fmt: skip
    try:
        parts = (
            fixed.pack(*fields),
            message.body,
            topic_length.pack(len(topic)),
            topic,
            _PROPERTIES_LENGTH.pack(len(properties) + crc_size),
            properties,
        )
    except struct.error as e:
        reason = f"a number or a length does not fit its field: {e}"
        raise IllegalMessageError(f"message for topic {message.topic[:40]!r}: {reason}") from e
    record = b"".join(parts)
    return record + encode_property_crc(record) if crc_size else record


def encode_property_crc(record: bytes | memoryview) -> bytes:
    """Encode the property that ends a record: the CRC of all before it (format notes §2.6)."""
    digits = f"{record_crc(record):0{layout.PROPERTY_CRC_DIGITS}d}"[::-1]
    return _encode_text(layout.PROPERTY_CRC + _NAME_VALUE + digits + _PROPERTY_END)


@lru_cache(maxsize=1024)
def encode_host(text: str) -> bytes:
    """Encode ``address:port``; an IPv6 address may be abbreviated. Raises IllegalMessageError."""
    address, _, port = text.rpartition(":")
    try:
        return ipaddress.ip_address(address).packed + _PORT.pack(int(port))
    except (ValueError, struct.error) as e:
        raise IllegalMessageError(f"host {text!r} is not an IP address and a port: {e}") from e


def _encode_properties(properties: Mapping[str, str], config: StoreConfig) -> bytes:
    """Join the properties; whether a separator follows the last one depends on the version.

    Java parity: a broker that appends the CRC drops a CRC property sent with the message.
    """
    dropped = layout.PROPERTY_CRC if appends_property_crc(config) else None
    items = [f"{n}{_NAME_VALUE}{value}" for n, value in properties.items() if n != dropped]
    ends_last = items and not (4, 9, 1) <= config.version < (5, 2, 0)
    return _encode_text(_PROPERTY_END.join(items) + (_PROPERTY_END if ends_last else ""))


def appends_property_crc(config: StoreConfig) -> bool:
    """Return whether each record's properties end with the record's CRC."""
    return config.enabled_append_prop_crc and config.version >= (5, 2, 0)


def _choose_magic(topic: str, config: StoreConfig) -> int:
    """Return V2 for a topic of more than 127 UTF-16 units (since 5.1.0), else V1."""
    units = len(topic.encode("utf-16-be", "surrogatepass")) // 2
    return MAGIC_V2 if config.accepts_v2 and units > _TOPIC_UNITS_MAX_V1 else MAGIC_V1


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # Java parity: a lone surrogate becomes a question mark


def record_crc(data: bytes | memoryview) -> int:
    """Return the CRC-32 without its highest bit, as records store it (``UtilAll.crc32``)."""
    return zlib.crc32(data) & _CRC_MASK
