"""One stored message, as reads return it: its fields, and the parts decoded on first access.

``store.commitlog.record`` creates messages from the log's bytes. A message that a queue or the
index refers to is checked, its body's CRC included, before it is created. A large record stays in
the map of its file: only what is asked for is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

from store import java, layout
from store.commitlog.compression import (
    BODY_BYTES_MAX,
    BodyPieces,
    is_compressed,
    readable_body,
    readable_head,
    readable_pieces,
)
from store.errors import BodyTooLargeError
from store.io.guarded_map import GuardedMap
from store.io.mapped_file import intact, vanished
from store.layout import struct_of

_NAME_VALUE = chr(layout.NAME_VALUE_SEPARATOR)
_PROPERTY_END = chr(layout.PROPERTY_SEPARATOR)
_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_PORT = struct_of(layout.PORT)
_new = tuple.__new__  # skips the named arguments, which cost as much as the rest
COPIED_MAX = 1 << 20  # bytes of a record that a message copies
_CALL_FACTOR = 4  # of bodies of the largest size that the messages of one call may keep


class Spans(NamedTuple):
    """The positions of the variable-length parts in a record."""

    body_at: int
    body_end: int
    topic_at: int
    topic_end: int
    properties_at: int


class MappedBytes:
    """Bytes that stay in a map. Slices are copies; making one raises VanishedError.

    It does so, too, after a read of the same map by others has met bytes that vanished.
    """

    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, part: slice) -> bytes:
        with intact():
            copied = bytes(self._data[part])
        opened = self._data.obj
        if isinstance(opened, GuardedMap) and not opened.is_intact():
            raise vanished()
        return copied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MappedBytes) and self._data == other._data

    def __hash__(self) -> int:
        return crc32(self._data)

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        return bytes, (self[:],)

    def part(self, begin: int, end: int) -> MappedBytes:
        """Return a part without a copy."""
        return MappedBytes(self._data[begin:end])


class BodyLimit:
    """The limits on the decompressed bodies of one call's messages, in bytes: of each, and of all.

    The limit of all is four times that of one. It applies to bodies that ``Message.body`` keeps.
    """

    def __init__(self, body_bytes: int = BODY_BYTES_MAX) -> None:
        self.body_bytes = body_bytes
        self.call_bytes = _CALL_FACTOR * body_bytes
        self._kept = 0

    def keep(self, size: int) -> None:
        """Count a body towards the limit of all. Raises BodyTooLargeError."""
        if self._kept + size > self.call_bytes:
            raise BodyTooLargeError.of_call(self.call_bytes)
        self._kept += size


class _Fields(NamedTuple):
    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commit_log_offset: int
    sys_flag: int
    born_timestamp: int
    raw_born_host: bytes
    store_timestamp: int
    raw_store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_length: int  # a negative one counts as 0
    record: bytes | MappedBytes
    spans: Spans
    path: Path | str
    splits_properties: bool


class Message(_Fields):
    """A stored message; fields in on-disk order, timestamps in milliseconds since the epoch.

    Strings and body are decoded on first access. It is a tuple because that is created fastest.
    """

    _limit: BodyLimit | None = None  # set on each instance by the call that returns it

    def __eq__(self, other: object) -> bool:
        """Return whether both are one record, at one offset of a log, in whatever file."""
        return isinstance(other, Message) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, commit_log_offset={self.commit_log_offset})"

    def _key(self) -> tuple[bytes | MappedBytes, bool]:
        return self.record, self.splits_properties

    @cached_property
    def topic(self) -> str:
        """The topic."""
        return java.decode(self.record[self.spans.topic_at : self.spans.topic_end])

    @cached_property
    def properties(self) -> dict[str, str]:
        """The properties, as the broker's version parses them."""
        text = java.decode(self.record[self.spans.properties_at :])
        return parse_properties(text, splits=self.splits_properties)

    @cached_property
    def body(self) -> bytes:
        """The body as the producer sent it: decompressed, or as stored if that fails.

        Raises BodyTooLargeError if the body, or all bodies of its call, exceed the limit.
        """
        data, limit = self.read_body(), self._limit
        if limit is not None and is_compressed(self._stored_body, self.sys_flag):
            limit.keep(len(data))
        return data

    def read_body(self) -> bytes:
        """Return the body without keeping it: only the limit of one body applies.

        Raises BodyTooLargeError.
        """
        offset, limit = self.commit_log_offset, self._body_bytes_max
        return readable_body(self._stored_body, self.sys_flag, offset=offset, limit=limit)

    def body_pieces(self) -> BodyPieces:
        """Return the body in pieces: private memory does not grow with it.

        Raises BodyTooLargeError.
        """
        offset, limit = self.commit_log_offset, self._body_bytes_max
        return readable_pieces(self._stored_body, self.sys_flag, offset=offset, limit=limit)

    def body_head(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the body, decompressing little more.

        Raises BodyTooLargeError if even these exceed the limit.
        """
        offset, limit = self.commit_log_offset, self._body_bytes_max
        return readable_head(self._stored_body, self.sys_flag, size, offset=offset, limit=limit)

    @property
    def _body_bytes_max(self) -> int:
        return BODY_BYTES_MAX if self._limit is None else self._limit.body_bytes

    @property
    def raw_body(self) -> bytes:
        """The body as stored, possibly compressed."""
        return self._stored_body[:]

    @property
    def _stored_body(self) -> bytes | MappedBytes:
        record, (begin, end, *_) = self.record, self.spans
        return record[begin:end] if isinstance(record, bytes) else record.part(begin, end)

    @property
    def born_host(self) -> str:
        """The producer's ``address:port``."""
        return host_text(self.raw_born_host)

    @property
    def store_host(self) -> str:
        """The ``address:port`` of the broker that stored the message."""
        return host_text(self.raw_store_host)

    @property
    def tags(self) -> str | None:
        """Property TAGS."""
        return self.properties.get(layout.PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """Property KEYS: the keys, separated by single spaces."""
        return self.properties.get(layout.PROPERTY_KEYS)

    @property
    def uniq_key(self) -> str | None:
        """Property UNIQ_KEY, which clients call the message id."""
        return self.properties.get(layout.PROPERTY_UNIQ_KEY)


Origin = tuple[Path | str, bool]  # path of the file, splits_properties


def make_message(
    values: tuple[Any, ...], record: bytes | MappedBytes, spans: tuple[int, ...], origin: Origin
) -> Message:
    """Return the message of a record that has been checked.

    ``values`` are the fields before the body; ``spans`` as in Spans.
    """
    path, splits_properties = origin
    fields = (*values, record, _new(Spans, spans), path, splits_properties)
    return _new(Message, fields)


class _HasMessages(Protocol):
    @property
    def messages(self) -> tuple[Message, ...]: ...


_Result = TypeVar("_Result", bound=_HasMessages)


def limited(result: _Result, body_bytes: int) -> _Result:
    """Limit the decompressed bodies of a call's result, and return the result."""
    limit_bodies(result.messages, body_bytes)
    return result


def limit_bodies(messages: Iterable[Message], body_bytes: int) -> None:
    """Limit the decompressed bodies of one call's messages; ``body_bytes`` is the limit of one."""
    limit = BodyLimit(body_bytes)
    for message in messages:
        message._limit = limit


def parse_properties(text: str, *, splits: bool = False) -> dict[str, str]:
    """Parse ``name 0x01 value 0x02 …`` (format notes §2.4); a repeated name keeps its last value.

    Names and values must not be empty; further 0x01 belong to the value. ``splits`` selects the
    parser of 4.9.0 and before: exactly two parts by ``String.split``; the name may be empty.
    """
    if splits:
        items = (java.split(item, _NAME_VALUE) for item in java.split(text, _PROPERTY_END))
        return {item[0]: item[1] for item in items if len(item) == 2}  # noqa: PLR2004 - a pair
    parts = (segment.partition(_NAME_VALUE) for segment in text.split(_PROPERTY_END))
    return {name: value for name, _, value in parts if name and value}


@lru_cache(maxsize=1024)
def host_text(host: bytes) -> str:
    """Return ``address:port`` as Java's ``getHostAddress`` prints it: no ``::``, no brackets."""
    address, (port,) = host[: -_PORT.size], _PORT.unpack(host[-_PORT.size :])
    if len(host) == layout.HOST_V6_SIZE:
        # Java parity: InetAddress.getByAddress returns an Inet4Address for a mapped address.
        if not address.startswith(_MAPPED_IPV4):
            groups = (int.from_bytes(address[i : i + 2]) for i in range(0, len(address), 2))
            return f"{':'.join(f'{group:x}' for group in groups)}:{port}"
        address = address[len(_MAPPED_IPV4) :]
    return f"{'.'.join(map(str, address))}:{port}"
