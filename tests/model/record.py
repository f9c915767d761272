"""How a broker reads one CommitLog record: Java strings, both property parsers, every field.

Slow and plain on purpose: a second opinion on the product's scan kernel, written from the
format description alone.

    totalSize i32 | magic i32 | bodyCRC i32 | queueId i32 | flag i32 | queueOffset i64
    physicalOffset i64 | sysFlag i32 | bornTimestamp i64 | bornHost 4|16 + port i32
    storeTimestamp i64 | storeHost 4|16 + port i32 | reconsumeTimes i32 | preparedOffset i64
    bodyLength i32 | body | topicLength i8 (V1) i16 (V2) | topic | propertiesLength i16 | properties
"""

import re
import struct
import unicodedata
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from mmap import mmap

from tests.model.config import ModelConfig, Version

Content = bytes | bytearray | mmap
Properties = dict[str, str]

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
PROPERTY_CRC = re.compile(rb"__CRC32#\x01([0-9]{10})\x02\Z")
PROPERTY_CRC_SIZE = 20


class InvalidRecordError(Exception):
    """The bytes at a position are not a record a broker's dispatch takes."""


@dataclass(frozen=True)
class Record:
    """One parsed record; `keys` are the strings the index hashes, in the order it puts them."""

    commit_log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    tags_code: int
    keys: tuple[str, ...]
    key_hashes: tuple[int, ...]
    flag: int
    body_crc: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_host: tuple[bytes, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes = field(repr=False)
    properties: Mapping[str, str] = field(hash=False)

    @property
    def transaction_type(self) -> int:
        """0, PREPARED, COMMIT or ROLLBACK."""
        return self.sys_flag & 0xC


# --- Java's strings and numbers ---------------------------------------------------------------


def to_signed(number: int, bits: int) -> int:
    """Wrap a number as Java's int (32) or long (64) does."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def divide(dividend: int, divisor: int) -> int:
    """Divide as Java does, truncating toward zero; the divisor is positive."""
    return -(-dividend // divisor) if dividend < 0 else dividend // divisor


def decode_utf8(raw: bytes) -> str:
    """Decode as `new String(raw, UTF_8)`: an encoded surrogate becomes a single U+FFFD."""
    return re.sub(rb"\xED[\xA0-\xBF][\x80-\xBF]?", b"\xff", raw).decode("utf-8", "replace")


def string_hash(text: str) -> int:
    """Compute `String.hashCode()`, which walks UTF-16 code units."""
    units = text.encode("utf-16-be")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + units[at] * 256 + units[at + 1]) & 0xFFFFFFFF
    return to_signed(code, 32)


def index_hash(key: str) -> int:
    """Compute the hash the index stores: `Math.abs`, with the smallest int becoming 0."""
    code = abs(string_hash(key))
    return 0 if code == 1 << 31 else code


def split(text: str, separator: str) -> list[str]:
    """Split as `String.split`: trailing empty strings go, unless nothing was there to split."""
    parts = text.split(separator)
    while len(parts) > 1 and parts[-1] == "":
        parts.pop()
    return [] if parts == [""] and text else parts


def is_blank(text: str) -> bool:
    """Return whether commons-lang's StringUtils.isBlank would be true."""
    return all(
        c in "\t\n\v\f\r\x1c\x1d\x1e\x1f"
        or (unicodedata.category(c) in ("Zs", "Zl", "Zp") and c not in "\u00a0\u2007\u202f")
        for c in text
    )


def parse_integer(text: str, bits: int) -> int | None:
    """Parse as Integer.parseInt (32), Long.parseLong (64) …; None where Java throws."""
    if not re.fullmatch(r"[+-]?\d+", text) or any(c > "\uffff" for c in text):
        return None
    number = int(text)
    return number if to_signed(number, bits) == number else None


# --- Properties -------------------------------------------------------------------------------


def parse_properties(text: str, version: Version) -> Properties:
    """Parse a properties string the way a broker of `version` does."""
    return parse_by_index(text) if version >= (4, 9, 1) else parse_by_split(text)


def parse_by_index(text: str) -> Properties:
    """4.9.1 and later: no empty names or values; further 0x01 belong to the value."""
    properties = {}
    for segment in text.split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def parse_by_split(text: str) -> Properties:
    """4.8 and 4.9.0: exactly two parts; an empty name is possible, an empty value is not."""
    properties = {}
    for item in split(text, "\x02"):
        parts = split(item, "\x01")
        if len(parts) == 2:
            properties[parts[0]] = parts[1]
    return properties


def tags_code_of(
    properties: Properties, topic: str, store_timestamp: int, config: ModelConfig
) -> int:
    """Hash the tags; in the schedule topic a delay level gives the delivery time instead."""
    code = string_hash(properties["TAGS"]) if properties.get("TAGS") else 0
    if topic != SCHEDULE_TOPIC or "DELAY" not in properties:
        return code
    level = parse_integer(properties["DELAY"], 32)
    if level is None:
        raise InvalidRecordError("DELAY is not an integer")
    delays = config.delays_ms
    level = min(level, len(delays))
    return to_signed(store_timestamp + delays[level - 1], 64) if level > 0 else code


def index_keys_of(properties: Properties, topic: str, version: Version) -> tuple[str, ...]:
    """List the strings the index is to hold: unique key, keys and, since 5.4.0, the tag."""
    keys = []
    if "UNIQ_KEY" in properties:
        keys.append(f"{topic}#{properties['UNIQ_KEY']}")
    keys += [f"{topic}#{part}" for part in properties.get("KEYS", "").split(" ") if part]
    if version >= (5, 4, 0) and properties.get("TAGS"):
        keys.append(f"{topic}#T#{properties['TAGS']}")
    return tuple(keys)


# --- Records ----------------------------------------------------------------------------------


class Cursor:
    """Reads big-endian fields off one record, none beyond its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size < 0 or self.at + size > len(self.data):
            raise InvalidRecordError("a field reaches beyond the record")
        self.at += size
        return self.data[self.at - size : self.at]

    def integer(self, width: int) -> int:
        """Return the next signed integer of `width` bytes."""
        return int.from_bytes(self.take(width), "big", signed=True)

    def host(self, *, ipv6: bool) -> tuple[bytes, int]:
        """Return the next address and port."""
        return self.take(16 if ipv6 else 4), self.integer(4)


def is_blank_record(content: Content, at: int) -> bool:
    """Return whether the rest of the file is a blank record, by its magic alone."""
    return content[at + 4 : at + 8] == MAGIC_BLANK.to_bytes(4, "big")


def parse_record(content: Content, at: int, commit_log_offset: int, config: ModelConfig) -> Record:
    """Parse the record at content[at:], whose offset in the log is `commit_log_offset`.

    Raises InvalidRecordError where dispatch must not take it.
    """
    if at + 8 > len(content):
        raise InvalidRecordError("too few bytes")
    size, magic = struct.unpack(">iI", content[at : at + 8])
    if magic != MAGIC_V1 and (magic != MAGIC_V2 or config.version < (5, 1, 0)):
        raise InvalidRecordError("not the magic of a record")
    if size <= 0 or at + size > len(content):
        raise InvalidRecordError("size out of bounds")
    data = bytes(content[at : at + size])
    cursor = Cursor(data)
    cursor.take(8)
    body_crc, queue_id, flag = cursor.integer(4), cursor.integer(4), cursor.integer(4)
    queue_offset, physical_offset = cursor.integer(8), cursor.integer(8)
    sys_flag, born_timestamp = cursor.integer(4), cursor.integer(8)
    born_host = cursor.host(ipv6=bool(sys_flag & 0x10))
    store_timestamp = cursor.integer(8)
    store_host = cursor.host(ipv6=bool(sys_flag & 0x20))
    reconsume_times, prepared_offset = cursor.integer(4), cursor.integer(8)
    body = cursor.take(max(0, cursor.integer(4)))
    topic = decode_utf8(cursor.take(cursor.integer(1 if magic == MAGIC_V1 else 2)))
    raw_properties = cursor.take(max(0, cursor.integer(2)))
    if cursor.at != size:
        raise InvalidRecordError("the fields do not add up to the size")
    if physical_offset != commit_log_offset:
        raise InvalidRecordError("a record of another position")
    if body and zlib.crc32(body) & 0x7FFFFFFF != body_crc:
        raise InvalidRecordError("body CRC")
    check_property_crc(data, raw_properties)
    properties = parse_properties(decode_utf8(raw_properties), config.version)
    check_inner_batch(properties, config.version)
    keys = index_keys_of(properties, topic, config.version)
    return Record(
        commit_log_offset,
        size,
        topic,
        queue_id,
        queue_offset,
        sys_flag,
        store_timestamp,
        tags_code_of(properties, topic, store_timestamp, config),
        keys,
        tuple(index_hash(key) for key in keys),
        flag,
        body_crc,
        born_timestamp,
        born_host,
        store_host,
        reconsume_times,
        prepared_offset,
        body,
        properties,
    )


def check_property_crc(data: bytes, raw_properties: bytes) -> None:
    """Check the CRC the properties may end with: ten digits, the least significant first."""
    found = PROPERTY_CRC.search(raw_properties)
    if not found:
        return
    expected = zlib.crc32(data[:-PROPERTY_CRC_SIZE]) & 0x7FFFFFFF
    if int(found[1][::-1]) != expected:
        raise InvalidRecordError("property CRC")


def check_inner_batch(properties: Properties, version: Version) -> None:
    """Refuse a 5.x record whose inner batch fields are both there but do not parse."""
    if version < (5, 0, 0) or not {"INNER_NUM", "INNER_BASE"} <= properties.keys():
        return
    count = parse_integer(properties["INNER_NUM"], 16)
    if count is None or parse_integer(properties["INNER_BASE"], 64) is None:
        raise InvalidRecordError("inner batch fields are not integers")
