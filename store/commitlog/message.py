"""One stored message, as reads return it: its fields, and what is decoded when it is asked for.

``store.commitlog.record`` makes messages out of the log's bytes. One that was found where a queue or the
index says it is has been checked, its body's CRC included, before it is made; its fields are put
in at the first touch of one of them: most messages of a batch are often looked at by size only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from store import java, layout
from store.commitlog.compression import BODY_BYTES_MAX, is_compressed, readable_body, readable_head
from store.errors import BodyTooLargeError
from store.layout import struct_of

_NAME_VALUE = chr(layout.NAME_VALUE_SEPARATOR)
_PROPERTY_END = chr(layout.PROPERTY_SEPARATOR)
_MAPPED_IPV4 = bytes(10) + b"\xff\xff"
_PORT = struct_of(layout.PORT)
_UNDECODED = "_undecoded"
_LIMIT = "_limit"
_CALL_FACTOR = 4  # bodies of the largest size that the messages of one call may keep


class Spans(NamedTuple):
    """Where the parts of variable length lie in a record."""

    body_at: int
    body_end: int
    topic_at: int
    topic_end: int
    properties_at: int


class BodyLimit:
    """What the bodies of one call's messages may decompress to, in bytes: each, and in all.

    In all they may keep four times the limit of one. ``Message.body`` keeps what it decompresses.
    """

    def __init__(self, body_bytes: int = BODY_BYTES_MAX) -> None:
        self.body_bytes = body_bytes
        self.call_bytes = _CALL_FACTOR * body_bytes
        self._kept = 0

    def keep(self, size: int) -> None:
        """Count a body that is kept. Raises BodyTooLargeError."""
        if self._kept + size > self.call_bytes:
            raise BodyTooLargeError.of_call(self.call_bytes)
        self._kept += size


@dataclass(frozen=True)  # no slots: what is decoded at first touch stays in the instance
class Message:
    """A stored message; fields in on-disk order, timestamps in milliseconds since the epoch.

    Texts and body are decoded when they are asked for.
    """

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    commit_log_offset: int
    sys_flag: int
    born_timestamp: int
    raw_born_host: bytes = field(repr=False)
    store_timestamp: int
    raw_store_host: bytes = field(repr=False)
    reconsume_times: int
    prepared_transaction_offset: int
    record: bytes = field(repr=False)
    spans: Spans = field(repr=False)
    path: Path | str = field(compare=False, repr=False)
    splits_properties: bool = field(repr=False)
    _limit: ClassVar[BodyLimit | None] = None  # an instance has that of the call it is from

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Put the fields in: Python calls this for what is not there yet."""
            undecoded = self.__dict__.get(_UNDECODED)
            if undecoded is not None:
                values, record, spans, origin = undecoded
                filled = (*values[:-1], record, Spans(*spans), *origin)
                self.__dict__.update(zip(_FIELDS, filled, strict=True))
                self.__dict__.pop(_UNDECODED, None)  # last: another thread may be here too
            if name in self.__dict__:
                return self.__dict__[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
        """The body as its producer gave it: decompressed (as stored, if that fails).

        Raises BodyTooLargeError where it, or all bodies of the call it is from, exceed the limit.
        """
        data, limit = self.read_body(), self._limit
        if limit is not None and is_compressed(self.raw_body, self.sys_flag):
            limit.keep(len(data))
        return data

    def read_body(self) -> bytes:
        """Return the body without keeping it: only the limit of one body counts.

        Raises BodyTooLargeError.
        """
        offset, limit = self.commit_log_offset, self._body_bytes_max
        return readable_body(self.raw_body, self.sys_flag, offset=offset, limit=limit)

    def body_head(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the body; little more than these is decompressed.

        Raises BodyTooLargeError where even these exceed the limit.
        """
        offset, limit = self.commit_log_offset, self._body_bytes_max
        return readable_head(self.raw_body, self.sys_flag, size, offset=offset, limit=limit)

    @property
    def _body_bytes_max(self) -> int:
        return BODY_BYTES_MAX if self._limit is None else self._limit.body_bytes

    @property
    def raw_body(self) -> bytes:
        """The body as it is stored, maybe compressed."""
        return self.record[self.spans.body_at : self.spans.body_end]

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
        """Property KEYS: keys between single spaces."""
        return self.properties.get(layout.PROPERTY_KEYS)

    @property
    def uniq_key(self) -> str | None:
        """Property UNIQ_KEY, which a client calls the message's id."""
        return self.properties.get(layout.PROPERTY_UNIQ_KEY)


_FIELDS = tuple(f.name for f in fields(Message))
Origin = tuple[Path | str, bool]  # path of the file, splits_properties


def undecoded_message(
    values: tuple[Any, ...], record: bytes, spans: tuple[int, ...], origin: Origin
) -> Message:
    """Return the message of a record that has been checked.

    ``values`` are all that lies before the body, its length included; ``spans`` as in Spans.
    """
    message = object.__new__(Message)
    message.__dict__[_UNDECODED] = (values, record, spans, origin)
    return message


class _HasMessages(Protocol):
    @property
    def messages(self) -> tuple[Message, ...]: ...


_Result = TypeVar("_Result", bound=_HasMessages)


def limited(result: _Result, body_bytes: int) -> _Result:
    """Set the limit of the bodies of a call's result, and return the result."""
    limit_bodies(result.messages, body_bytes)
    return result


def limit_bodies(messages: Iterable[Message], body_bytes: int) -> None:
    """Set the limit of the bodies of one call's messages, in bytes of one decompressed body."""
    limit = BodyLimit(body_bytes)
    for message in messages:
        message.__dict__[_LIMIT] = limit


def parse_properties(text: str, *, splits: bool = False) -> dict[str, str]:
    """Parse ``name 0x01 value 0x02 …`` (format notes §2.4); a repeated name keeps its last value.

    Names and values are not empty, and further 0x01 belong to the value. ``splits`` is the parser
    of 4.9.0 and before: exactly two parts by ``String.split``, of which the name may be empty.
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
        # Java parity: InetAddress.getByAddress makes an Inet4Address of a mapped one.
        if not address.startswith(_MAPPED_IPV4):
            groups = (int.from_bytes(address[i : i + 2]) for i in range(0, len(address), 2))
            return f"{':'.join(f'{group:x}' for group in groups)}:{port}"
        address = address[len(_MAPPED_IPV4) :]
    return f"{'.'.join(map(str, address))}:{port}"
