"""Write CommitLogs as a broker does: encode messages, lay them out in files.

Independent of the product's encoder and of the model's parser. `random_logs` makes messages.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
BLANK_SIZE_MIN = 8
PROPERTY_CRC_SIZE = 20
BORN_IPV6, STORE_IPV6 = 0x10, 0x20
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

PropertyList = Sequence[tuple[str | bytes, str | bytes]]


@dataclass(frozen=True)
class Message:
    """A message before it is appended to the log.

    Text is encoded as UTF-8, bytes are taken as they are. Addresses are 4 or 16 bytes; the sys
    flag gets its IPv6 bits from them. A None leaves the choice to `encode`, as a broker would.
    """

    topic: str | bytes = "TopicTest"
    queue_id: int = 0
    queue_offset: int = 0
    body: bytes = b"hello"
    properties: bytes | PropertyList = ()
    sys_flag: int = 0
    flag: int = 0
    born_timestamp: int = 1_700_000_000_000
    born_host: bytes = b"\x0a\x00\x00\x01"
    born_port: int = 50000
    store_timestamp: int = 1_700_000_000_123
    store_host: bytes = b"\x0a\x00\x00\x02"
    store_port: int = 10911
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    is_v2: bool | None = None
    body_crc: int | None = None


Batch = Sequence[Message]


def to_bytes(text: str | bytes) -> bytes:
    """Encode text; leave bytes."""
    return text.encode("utf-8") if isinstance(text, str) else text


def encode_properties(properties: PropertyList, *, trailing: bool = True) -> bytes:
    """Join name 0x01 value 0x02 …; `trailing` False leaves the last 0x02 out (4.9.1 … 5.1)."""
    items = [to_bytes(name) + b"\x01" + to_bytes(value) for name, value in properties]
    return b"\x02".join(items) + (b"\x02" if items and trailing else b"")


def encode(message: Message, physical_offset: int, *, prop_crc: bool = False) -> bytes:
    """Encode the record of a message at `physical_offset`.

    The version follows from the topic's length as in a broker; prop_crc appends the CRC property.
    """
    topic = to_bytes(message.topic)
    is_v2 = message.is_v2
    if is_v2 is None:
        is_v2 = len(topic.decode("utf-8", "replace").encode("utf-16-be")) // 2 > 127
    properties = message.properties
    if not isinstance(properties, bytes):
        properties = encode_properties(properties)
    if prop_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    body_crc = message.body_crc
    if body_crc is None:
        body_crc = zlib.crc32(message.body) & 0x7FFFFFFF
    sys_flag = message.sys_flag & ~(BORN_IPV6 | STORE_IPV6)
    sys_flag |= BORN_IPV6 if len(message.born_host) == 16 else 0
    sys_flag |= STORE_IPV6 if len(message.store_host) == 16 else 0
    properties_size = len(properties) + (PROPERTY_CRC_SIZE if prop_crc else 0)
    head = struct.pack(
        ">Iiiiqqiq",
        MAGIC_V2 if is_v2 else MAGIC_V1,
        body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        physical_offset,
        sys_flag,
        message.born_timestamp,
    )
    rest = b"".join(
        [
            head,
            message.born_host,
            struct.pack(">iq", message.born_port, message.store_timestamp),
            message.store_host,
            struct.pack(">ii", message.store_port, message.reconsume_times),
            struct.pack(">qi", message.prepared_transaction_offset, len(message.body)),
            message.body,
            struct.pack(">h" if is_v2 else ">b", len(topic)),
            topic,
            struct.pack(">h", properties_size),
            properties,
        ]
    )
    size = 4 + len(rest) + (PROPERTY_CRC_SIZE if prop_crc else 0)
    record = struct.pack(">i", size) + rest
    return record + encode_property_crc(record) if prop_crc else record


def encode_property_crc(record: bytes) -> bytes:
    """Encode the CRC of all that precedes it: ten digits, the least significant first."""
    crc = zlib.crc32(record) & 0x7FFFFFFF
    return b"__CRC32#\x01" + str(crc)[::-1].ljust(10, "0").encode() + b"\x02"


def build_log(
    messages: Iterable[Message | Batch],
    file_size: int,
    *,
    start: int = 0,
    stale_blank: bool = False,
    prop_crc: bool = False,
) -> dict[int, bytes]:
    """Lay messages out in files of `file_size` bytes, by base offset, the first at `start`.

    A batch (a sequence of messages) stays in one file. stale_blank fills the rest of a blank
    as 4.8.0 does, with the bytes of an earlier record in the buffer.
    """
    assert start % file_size == 0
    files = {start: bytearray()}
    base = start
    last_record = b""
    for item in messages:
        batch: Batch = [item] if isinstance(item, Message) else item
        size = sum(len(encode(message, 0, prop_crc=prop_crc)) for message in batch)
        if size + BLANK_SIZE_MIN > file_size:
            raise ValueError(f"{size} bytes do not fit a file of {file_size}")
        left = file_size - len(files[base])
        if size + BLANK_SIZE_MIN > left:
            blank = struct.pack(">iI", left, MAGIC_BLANK)
            blank += last_record[BLANK_SIZE_MIN:left] if stale_blank else b""
            files[base] += blank
            files[base] += bytes(file_size - len(files[base]))
            base += file_size
            files[base] = bytearray()
        for message in batch:
            last_record = encode(message, base + len(files[base]), prop_crc=prop_crc)
            files[base] += last_record
    files[base] += bytes(file_size - len(files[base]))
    return {base: bytes(content) for base, content in files.items()}


def write_log(files: Mapping[int, bytes], directory: Path) -> None:
    """Write a log's files into `directory` (a store's commitlog/), trailing zeros as holes."""
    directory.mkdir(parents=True, exist_ok=True)
    for base, content in files.items():
        with (directory / f"{base:020d}").open("wb") as file:
            file.write(content.rstrip(b"\x00"))
            file.truncate(len(content))


def flatten(messages: Iterable[Message | Batch]) -> list[Message]:
    """List all messages, those of batches too."""
    return [m for item in messages for m in ([item] if isinstance(item, Message) else item)]
