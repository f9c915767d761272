"""The object of one message, spelled out in words, and the download of its body."""

from __future__ import annotations

import io
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from reput.console.answers.budget import lease_of
from reput.console.answers.stream import Stream
from reput.console.api import broker_of
from reput.console.brokers import Broker
from reput.console.pages import BODIES, BrokenOffError, attachment, load, rare_logger
from reput.console.parameters import parse_number
from store import java, layout
from store.commitlog.message import COPIED_MAX
from store.commitlog.message_json import body_json, message_fields, whole_characters
from store.commitlog.record import Message, decode_msg_id
from store.errors import BodyTooLargeError, ConfigError, StoreError
from store.reads.message_place import QueuePlace

_SHOWN_BYTES = 1024 * 1024
_PIECES_BYTES = 8 * 1024 * 1024  # of a decompressed body that exist at a time, at most
_HEX_BYTES, _HEX_LINE = 4096, 16
_PRETTY_MAX = 4 * 1024 * 1024  # characters
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = rare_logger(__name__)
_COMPRESSIONS = {0: "zlib", 1: "LZ4", 2: "Zstandard", 3: "zlib"}


def message(request: Request) -> dict[str, Any]:
    """Return a message by its commit log offset."""
    broker, found = broker_of(request), _find(request)
    place, why_not = _place(broker, found)
    return {
        "broker": broker.name,
        **message_fields(found),
        **_body(found),
        "sys_flag_text": sys_flag_text(found.sys_flag),
        "properties_text": properties_text(found.properties),
        "position": {
            "file": str(found.path),
            "file_position": found.commit_log_offset % broker.config.mapped_file_size_commit_log,
            "size": found.size,
            "queue": None if place is None else _queue_json(found, place),
            "why_not_in_queue": why_not or None,
            **_index(broker, found),
        },
        "neighbours": {
            "previous": None if place is None else place.previous,
            "next": None if place is None else place.next,
        },
        "related": related(found),
        "command": broker.command("message", "--commit-log-offset", str(found.commit_log_offset)),
    }


async def body(request: Request) -> Response:
    """Return the decompressed body as a download.

    Its size is found first, and its record read again once there is room for it.
    """
    lease = lease_of(request)
    lease.settle(0)
    size, lease_bytes = await load(request, _body_size, BODIES)
    await lease.grow(lease_bytes)
    offset = parse_number("offset", request.path_params["offset"])
    headers = attachment(request.path_params["broker"], f"{offset}.bin")
    headers["Content-Length"] = str(size)
    pieces = _pieces(request)
    media_type = "application/octet-stream"
    return Stream(pieces, media_type, headers=headers, lease_bytes=lease_bytes)


def _body_size(request: Request) -> tuple[int, int]:
    """Return the size of a body, and the most memory that its download needs."""
    found = _find(request)
    pieces = found.body_pieces()
    record_bytes = 2 * min(found.size, COPIED_MAX)
    return pieces.size, record_bytes + pieces.state_bytes + min(2 * pieces.size, _PIECES_BYTES)


async def _pieces(request: Request) -> AsyncGenerator[bytes]:
    """Yield the body in pieces; the lease counts a record that is copied twice, with its body."""

    def begin(r: Request) -> Iterator[bytes]:
        return iter(_find(r).body_pieces())

    try:
        pieces = await load(request, begin, BODIES)
        while (piece := await load(request, lambda _: next(pieces, None), BODIES)) is not None:
            yield piece
    except (StoreError, HTTPException) as e:  # the message has expired since its size was found
        _log.warning("a download was aborted: %s", e)
        raise BrokenOffError(str(e)) from e


def _find(request: Request) -> Message:
    offset = parse_number("offset", request.path_params["offset"])
    found = broker_of(request).log.look_message_by_offset(offset)
    if found is None:
        raise HTTPException(404, f"no message begins at commit log offset {offset}")
    return found


# --- the body ------------------------------------------------------------------------------------


def _body(found: Message) -> dict[str, Any]:
    """Return the body as text or hex, up to a limit, and as pretty-printed JSON if it is JSON."""
    try:
        head = found.body_head(_SHOWN_BYTES + 1)
        is_whole = len(head) <= _SHOWN_BYTES
        size = len(head) if is_whole else found.body_pieces().size
    except BodyTooLargeError as e:
        names = ("body_encoding", "body", "body_bytes", "body_json")
        return {**dict.fromkeys(names), "body_error": str(e), "body_truncated": True,
                "body_hex": []}  # fmt: skip
    return {
        **body_json(head if is_whole else whole_characters(head[:_SHOWN_BYTES])),
        "body_truncated": not is_whole,
        "body_bytes": size,
        "body_json": pretty_json(head) if is_whole else None,
        "body_hex": hex_lines(head[:_HEX_BYTES]),
    }


def pretty_json(data: bytes) -> str | None:
    """Return a body that is a JSON object or array with indents, else None.

    Its tokens stay as they are: digits, escapes and repeated names. None also if it would be large.
    """
    if data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return None
    pretty = io.StringIO()
    depth = 0
    tokens = _TOKEN.finditer(data.decode("utf-8", "replace"))
    for token, following in pairwise(chain((match[0] for match in tokens), ("",))):
        is_open, is_close = token in ("{", "["), following in ("}", "]")
        depth += is_open - (token in ("}", "]"))
        pretty.write(token + " " * (token == ":"))
        if (is_open or token == "," or is_close) and not (is_open and is_close):
            pretty.write("\n" + "  " * (depth - is_close))
        if pretty.tell() > _PRETTY_MAX:
            return None
    return pretty.getvalue()


def hex_lines(data: bytes) -> list[dict[str, Any]]:
    """Return bytes as lines of 16: their position, in hex, and as ASCII."""
    lines = ((at, data[at : at + _HEX_LINE]) for at in range(0, len(data), _HEX_LINE))
    return [
        {
            "offset": at,
            "hex": line.hex(" "),
            "ascii": "".join(chr(b) if 32 <= b < 127 else "." for b in line),  # noqa: PLR2004 - printable ASCII
        }
        for at, line in lines
    ]


# --- its place -----------------------------------------------------------------------------------


def _place(broker: Broker, found: Message) -> tuple[QueuePlace | None, str]:
    try:
        with broker.queues() as store:
            return store.place_in_queue(found)
    except StoreError as e:
        return None, str(e)


def _queue_json(found: Message, place: QueuePlace) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "queue_id": found.queue_id,
        "queue_offset": place.position,
        "path": str(place.path),
        "position": place.byte,
    }


def _index(broker: Broker, found: Message) -> dict[str, Any]:
    try:
        with broker.queues() as store:
            places = store.places_in_index(found)
    except StoreError as e:
        return {"index": [], "why_not_in_index": str(e)}
    entries = [{"key": p.key, "file": str(p.path), "entry": p.entry} for p in places]
    return {"index": entries, "why_not_in_index": None}


def related(found: Message) -> list[dict[str, Any]]:
    """Return the messages that a message was made from, or that will be made from it."""
    properties, links = found.properties, []

    def add(relation: str, text: str, **place: Any) -> None:
        nowhere = dict.fromkeys(("commit_log_offset", "topic", "queue_id", "queue_offset"))
        links.append({"relation": relation, "text": text, **nowhere, **place})

    real_topic = properties.get(layout.PROPERTY_REAL_TOPIC)
    if real_topic is not None and real_topic != found.topic:
        queue_id = properties.get(layout.PROPERTY_REAL_QUEUE_ID, "")
        place = {"topic": real_topic, "queue_id": java.parse_int(queue_id)}
        add("target", "the topic and queue to which it is delivered", **place)
    if found.sys_flag & layout.SYS_TRANSACTION in (layout.SYS_COMMIT, layout.SYS_ROLLBACK):
        half = found.prepared_transaction_offset
        add("half", "the prepared (half) message of its transaction", commit_log_offset=half)
    for name, topic, text in (
        ("ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "the message whose consumption failed at first"),
        ("DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "the message that was given up"),
    ):
        if name in properties:
            place = {
                "topic": properties.get(topic),
                "commit_log_offset": _offset_of(properties[name]),
            }
            add("original", text, **place)
    return links


def _offset_of(msg_id: str) -> int | None:
    """Return the physical offset in an offset message id, None if it is another id."""
    try:
        offset = decode_msg_id(msg_id)[1]
    except ConfigError:
        return None
    return offset if offset >= 0 else None


# --- words ---------------------------------------------------------------------------------------


def sys_flag_text(flag: int) -> list[str]:
    """Return the meaning of each bit of a sysFlag."""
    transaction = {
        layout.SYS_PREPARED: "transaction: prepared (half message)",
        layout.SYS_COMMIT: "transaction: committed",
        layout.SYS_ROLLBACK: "transaction: rolled back",
    }
    compression = (flag & layout.SYS_COMPRESSION_TYPE) >> 8
    texts = [
        (layout.SYS_COMPRESSED, f"body compressed ({_COMPRESSIONS.get(compression, 'unknown')})"),
        (layout.SYS_MULTI_TAGS, "several tags"),
        (layout.SYS_TRANSACTION, transaction.get(flag & layout.SYS_TRANSACTION, "")),
        (layout.SYS_BORN_HOST_V6, "producer's address is IPv6"),
        (layout.SYS_STORE_HOST_V6, "broker's address is IPv6"),
        (layout.SYS_INNER_BATCH, "inner batch"),
    ]
    return [text for bit, text in texts if flag & bit and text]


def _milliseconds(text: str) -> str:
    return f"{int(text):,} ms"


def _moment(text: str) -> str:
    return (_EPOCH + timedelta(milliseconds=int(text))).isoformat(timespec="milliseconds")


def _seconds(text: str) -> str:
    return f"{int(text):,} s"


def _plain(text: str) -> str:
    return text


# RocketMQ's own properties (MessageConst): what each means, and its value in words.
_MEANINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "KEYS": ("keys by which it is indexed, separated by spaces", _plain),
    "TAGS": ("tag by which consumers filter", _plain),
    "UNIQ_KEY": ("unique key, which clients call the message id", _plain),
    "WAIT": ("whether the producer waited until it was stored", _plain),
    "DELAY": ("delay level", _plain),
    "RETRY_TOPIC": ("topic of the message before it was sent to be retried", _plain),
    "REAL_TOPIC": ("topic to which it is delivered", _plain),
    "REAL_QID": ("queue to which it is delivered", _plain),
    "TRAN_MSG": ("whether it is part of a transaction", _plain),
    "PGROUP": ("producer group", _plain),
    "MIN_OFFSET": ("min offset of its queue when it was sent", _plain),
    "MAX_OFFSET": ("max offset of its queue when it was sent", _plain),
    "ORIGIN_MESSAGE_ID": ("id of the message whose consumption failed at first", _plain),
    "RECONSUME_TIME": ("times its consumption was retried", _plain),
    "MAX_RECONSUME_TIMES": ("retries before it is given up", _plain),
    "MSG_REGION": ("region of the broker", _plain),
    "TRACE_ON": ("whether it is traced", _plain),
    "CLUSTER": ("cluster of the broker", _plain),
    "MSG_TYPE": ("kind of message", _plain),
    "INSTANCE_ID": ("instance of the producer", _plain),
    "CORRELATION_ID": ("id that joins a request with its reply", _plain),
    "REPLY_TO_CLIENT": ("client that gets the reply", _plain),
    "TTL": ("time until the request expires", _milliseconds),
    "CHECK_IMMUNITY_TIME_IN_SECONDS": ("first check of the transaction after", _seconds),
    layout.PROPERTY_PREPARED_QUEUE_OFFSET: ("queue offset of the half message", _plain),
    "TRANSACTION_CHECK_TIMES": ("times the transaction was checked", _plain),
    "__transactionId__": ("id of the transaction", _plain),
    "CONSUME_START_TIME": ("consumption began at", _moment),
    "TIMER_DELAY_SEC": ("delivered after", _seconds),
    "TIMER_DELAY_MS": ("delivered after", _milliseconds),
    "TIMER_DELIVER_MS": ("delivered at", _moment),
    "TIMER_OUT_MS": ("timer elapses at", _moment),
    "TIMER_ENQUEUE_MS": ("entered the timer at", _moment),
    "TIMER_DEQUEUE_MS": ("left the timer at", _moment),
    "TIMER_ROLL_TIMES": ("times the timer put it back", _plain),
    "TIMER_DEL_UNIQKEY": ("unique key of the timer message that it deletes", _plain),
    "__STARTDELIVERTIME": ("delivered at", _moment),
    "__SHARDINGKEY": ("key that orders messages", _plain),
    "INNER_MULTI_DISPATCH": ("further queues that it is dispatched to", _plain),
    "INNER_MULTI_QUEUE_OFFSET": ("its queue offsets in them", _plain),
    "INNER_NUM": ("messages in the batch", _plain),
    "INNER_BASE": ("queue offset of the first message of the batch", _plain),
    "DLQ_ORIGIN_TOPIC": ("topic of the message that was given up", _plain),
    "DLQ_ORIGIN_MESSAGE_ID": ("id of the message that was given up", _plain),
    "POP_CK": ("checkpoint of the pop consumer", _plain),
    "1ST_POP_TIME": ("first popped at", _moment),
    "__CRC32#": ("CRC of the properties", _plain),
}


def properties_text(properties: dict[str, str]) -> dict[str, str]:
    """Return the meaning of each of RocketMQ's own properties, with its value in words."""
    texts = {}
    for name, value in properties.items():
        if name in _MEANINGS:
            meaning, in_words = _MEANINGS[name]
            try:
                words = in_words(value)
            except (ValueError, OverflowError):
                words = value
            texts[name] = meaning if words == value else f"{meaning} {words}"
    return texts
