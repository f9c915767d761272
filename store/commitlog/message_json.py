"""A message as a JSON object, as reads print it with ``--json``.

``store.arrow.json_lines`` formats the same objects in bulk for an export, with the fields
defined here.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from store.commitlog.record import Message, offset_msg_id
from store.errors import BodyTooLargeError

# Name and value of each field before the body, in order; timestamps are epoch milliseconds.
JSON_FIELDS: Mapping[str, Callable[[Message], Any]] = MappingProxyType(
    {
        "topic": attrgetter("topic"),
        "queue_id": attrgetter("queue_id"),
        "queue_offset": attrgetter("queue_offset"),
        "commit_log_offset": attrgetter("commit_log_offset"),
        "size": attrgetter("size"),
        "msg_id": offset_msg_id,
        "tags": attrgetter("tags"),
        "keys": attrgetter("keys"),
        "uniq_key": attrgetter("uniq_key"),
        "store_timestamp": attrgetter("store_timestamp"),
        "born_timestamp": attrgetter("born_timestamp"),
        "born_host": attrgetter("born_host"),
        "store_host": attrgetter("store_host"),
        "reconsume_times": attrgetter("reconsume_times"),
        "flag": attrgetter("flag"),
        "sys_flag": attrgetter("sys_flag"),
        "prepared_transaction_offset": attrgetter("prepared_transaction_offset"),
        "body_crc": attrgetter("body_crc"),
        "properties": attrgetter("properties"),
    }
)
BODY_FIELDS = ("body_encoding", "body")
HEAD_CHARACTERS = 200


def message_json(message: Message) -> dict[str, Any]:
    """Return a message as JSON values, with its body in hex if it is not text."""
    return {**message_fields(message), **message_body_json(message)}


def message_fields(message: Message) -> dict[str, Any]:
    """Return a message as JSON values, without its body."""
    return {name: value(message) for name, value in JSON_FIELDS.items()}


def message_summary(message: Message) -> dict[str, Any]:
    """Return a message as JSON values without properties and body, but with ``body_head``.

    ``body_head`` is the first 200 characters of a text, else the first bytes in hex as ``0x…``.
    """
    fields = {n: value(message) for n, value in JSON_FIELDS.items() if n != "properties"}
    return {**fields, "body_head": body_head(message)}


def body_head(message: Message, characters: int = HEAD_CHARACTERS) -> str:
    """Return the beginning of a body as text or hex; only that part is decompressed."""
    size = 4 * (characters + 1)
    try:
        head = message.body_head(size)
    except BodyTooLargeError as e:
        return f"({e})"
    if len(head) == size:
        head = whole_characters(head)
    found = body_text(head)
    return "0x" + head[: characters // 2].hex() if found is None else found[:characters]


def whole_characters(head: bytes) -> bytes:
    """Return the head of a body without a truncated last character, if it is text."""
    text, end = utf_8_decode(head, "ignore", False)
    return head[:end] if text else head


def message_body_json(message: Message) -> dict[str, str | None]:
    """Return a message's body as JSON values; null with a ``body_error`` if it exceeds the limit.

    The message does not keep the decompressed body, so any number of messages can be printed.
    """
    try:
        return {**body_json(message.read_body())}
    except BodyTooLargeError as e:
        return {**dict.fromkeys(BODY_FIELDS), "body_error": str(e)}


def body_json(body: bytes) -> dict[str, str]:
    """Return a body as JSON values: as text if it is text, else in hex."""
    text = body_text(body)
    values = ("hex", body.hex()) if text is None else ("utf-8", text)
    return dict(zip(BODY_FIELDS, values, strict=True))


def body_text(body: bytes) -> str | None:
    """Return a body as text, None if it is not text: not UTF-8, or with zero bytes."""
    try:
        return None if b"\0" in body else body.decode("utf-8")
    except UnicodeDecodeError:
        return None
