"""``reput get``, ``offset`` and ``query``: reads on a store, without a JVM."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import Annotated, NoReturn

import typer

from reput.cli.lines import print_json, print_line, say, time_text
from reput.cli.options import (
    Json,
    MaxBodyBytes,
    ReadOptions,
    Store,
    StoredFrom,
    StoredTo,
    check_seconds,
    opened_store,
    parse_span,
)
from reput.cli.show import NOT_FOUND, broker_json, exit_not_found, print_messages
from reput.cli.stores import Failures, Stores, opened_stores, read_stores
from store import Boundary, Message, MessageStore
from store.commitlog.message_json import message_json
from store.errors import ConfigError, shown
from store.reads.get_message import GetMessageResult, GetMessageStatus
from store.reads.query_message import KEY_TYPE, TAG_TYPE
from streaming.sources.option_values import TIME_FORMS, parse_time

_TIME_MAX = 2**63 - 1
_OFFSET = re.compile("-?[0-9]{1,19}")
_MORE_MAY_FOLLOW = (
    GetMessageStatus.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
)


Topic = Annotated[str, typer.Option(help="The topic.")]


@dataclass(frozen=True, slots=True)
class QueueRef:
    """The queue to read."""

    topic: Topic
    queue_id: Annotated[int, typer.Option("--queue", help="The queue id.", min=0)]


@dataclass(frozen=True, slots=True)
class GetOptions:
    """Which messages of the queue to read."""

    offset: Annotated[
        str,
        typer.Option(
            help="The position of the first message in the queue; -1 is the last message, -2 the "
            "one before it. Also earliest, and latest: the next message to arrive."
        ),
    ]
    max_count: Annotated[int, typer.Option("--max", help="Maximum number of messages.", min=1)] = 32
    tags: Annotated[str, typer.Option(help="Only these tags, such as 'TagA || TagB'.")] = "*"
    wait: Annotated[
        float,
        typer.Option(
            help="Wait up to this many seconds for a message if there is none yet.", min=0
        ),
    ] = 0
    max_body_bytes: MaxBodyBytes = None


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """The time to find a queue offset for."""

    at_time: Annotated[str, typer.Option("--time", help=f"The time: {TIME_FORMS}.")]
    boundary: Annotated[
        Boundary,
        typer.Option(
            help="lower: the first message stored at or after the time (the queue's end if none); "
            "upper: the last one stored at or before it.",
        ),
    ] = Boundary.LOWER


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """Which messages to search the index for."""

    topic: Topic
    key: Annotated[str | None, typer.Option(help="A key or unique key of the message.")] = None
    tag: Annotated[str | None, typer.Option(help="Its tag (indexed since RocketMQ 5.4.0).")] = None
    from_time: StoredFrom = None
    to_time: StoredTo = None
    max_count: Annotated[
        int, typer.Option("--max", help="Maximum number of messages; the newest are kept.", min=1)
    ] = 64
    max_body_bytes: MaxBodyBytes = None


def get(
    store: Store,
    queue: QueueRef,
    wanted: GetOptions,
    where: ReadOptions,
    as_json: Json = False,
) -> None:
    """Read messages of a queue from a position on.

    A position is the offset that consumers count by. After a gap that the broker closed, it is
    lower than the message's own queue offset, which is shown. Exits with 1 if there is no message:
    the offset has expired or does not exist yet, or no tag matches.
    """
    check_seconds("--wait", wanted.wait)
    with opened_store(store, where, wanted.max_body_bytes) as s:
        messages: list[Message] = []
        positions: list[int] = []
        deadline = time.monotonic() + wanted.wait
        begin = next_offset = _position(s, queue, wanted.offset)
        count, matched = 0, True
        while True:
            wait = 0.0 if count else max(deadline - time.monotonic(), 0)
            result = s.get_message(
                queue.topic,
                queue.queue_id,
                next_offset,
                wanted.max_count - count,
                wanted.tags,
                wait,
            )
            matched &= result.status is not GetMessageStatus.NO_MATCHED_MESSAGE
            messages += result.messages
            positions += result.message_queue_offsets
            count += len(result.messages)
            if as_json:
                _print_all_json(messages)
                messages.clear()
                positions.clear()
            next_offset = result.next_begin_offset
            if count >= wanted.max_count or result.status not in _MORE_MAY_FOLLOW:
                break
        if not count:
            status = result.status if matched else GetMessageStatus.NO_MATCHED_MESSAGE
            _no_message(s, queue, begin, replace(result, status=status), as_json=as_json)
        if not as_json:
            print_messages(messages)
            _report_displaced(queue, messages, positions)


def offset(
    store: Store,
    queue: QueueRef,
    wanted: TimeOptions,
    where: ReadOptions,
    as_json: Json = False,
) -> None:
    """Find the position in a queue for a time.

    Exits with 1 if the queue has no message.
    """
    timestamp_ms, boundary = parse_time("--time", wanted.at_time), wanted.boundary
    assert timestamp_ms is not None
    topic, queue_id = queue.topic, queue.queue_id
    with opened_store(store, where) as s:
        found = s.offset_in_queue_by_time(topic, queue_id, timestamp_ms, boundary)
        first, end = s.min_offset_in_queue(topic, queue_id), s.max_offset_in_queue(topic, queue_id)
        stored = s.message_store_timestamp(topic, queue_id, found)
        answer = {
            "topic": topic,
            "queue_id": queue_id,
            "timestamp": timestamp_ms,
            "boundary": boundary.value,
            "offset": found if first < end else None,
            "store_timestamp": stored,
            "min_offset": first,
            "max_offset": end,
        }
        if first == end:
            status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
            exit_not_found(status, _why_empty(s, queue), answer, as_json=as_json)
        if as_json:
            print_json(answer)
            return
        print_line(str(found))
        moment = time_text(timestamp_ms)
        if found == end:
            say(f"no message was stored at or after {moment}: this is the queue's end")
        elif boundary is Boundary.UPPER and stored > timestamp_ms:
            say(f"no message was stored at or before {moment}: this is the queue's beginning")


def query(store: Stores, wanted: QueryOptions, where: ReadOptions, as_json: Json = False) -> None:
    """Find messages by key, unique key or tag.

    Reads the index. The messages of several stores are sorted by store time. Exits with 1 if there
    is none.
    """
    topic, max_count, is_key = wanted.topic, wanted.max_count, wanted.key is not None
    value = wanted.key if is_key else wanted.tag
    if value is None or (is_key and wanted.tag is not None):
        raise ConfigError("give either --key or --tag")
    begin, end = parse_span(wanted.from_time, wanted.to_time)
    span = begin if begin is not None else 0, end if end is not None else _TIME_MAX
    kind = KEY_TYPE if is_key else TAG_TYPE
    stores, failures = read_stores(store, where.broker_conf, where.output), Failures()
    with opened_stores(stores, where, failures, wanted.max_body_bytes) as opened:
        found: list[tuple[Message, str]] = []
        truncated = False
        for name, s in opened.items():
            with failures.of(name):
                result = s.query_message(topic, value, max_count, *span, kind)
                truncated |= result.truncated
                found += ((m, name) for m in result.messages)
        if len(stores) > 1:
            found.sort(key=lambda row: row[0].store_timestamp)
            truncated |= len(found) > max_count
            found = found[-max_count:]
        _print_found(found, has_broker=len(stores) > 1, as_json=as_json)
        if truncated:
            say(f"the newest {max_count} are shown, older ones were omitted (--max)")
        failures.exit()
        if not found:
            name = "key" if is_key else "tag"
            backlogs = "".join(_backlog(s, broker) for broker, s in opened.items())
            reason = f"no message of topic {shown(topic)} with {name} {shown(value)}{backlogs}"
            exit_not_found(NOT_FOUND, reason, {"topic": topic, name: value}, as_json=as_json)


def _print_found(found: list[tuple[Message, str]], *, has_broker: bool, as_json: bool) -> None:
    """Print messages with their brokers, as a table or as JSON."""
    if as_json:
        for m, broker in found:
            print_json(broker_json(message_json(m), broker))
    elif found:
        brokers = [broker for _, broker in found] if has_broker else None
        print_messages((m for m, _ in found), brokers)


def _position(s: MessageStore, queue: QueueRef, text: str) -> int:
    """Parse ``--offset``. Raises ConfigError."""
    is_number = _OFFSET.fullmatch(text) is not None
    if is_number and int(text) >= 0:
        return int(text)
    if not is_number and text not in ("earliest", "latest"):
        raise ConfigError(f"--offset {shown(text)} is not a number, earliest or latest")
    first = s.min_offset_in_queue(queue.topic, queue.queue_id)
    end = s.max_offset_in_queue(queue.topic, queue.queue_id)
    if is_number:
        return max(end + int(text), first)
    return first if text == "earliest" else end


def _print_all_json(messages: list[Message] | tuple[Message, ...]) -> None:
    for m in messages:
        print_json(message_json(m))


def _no_message(
    s: MessageStore, queue: QueueRef, offset: int, result: GetMessageResult, *, as_json: bool
) -> NoReturn:
    """Report why ``get`` found nothing, and exit."""
    status = result.status
    span = f"the queue holds offsets {result.min_offset} to {result.max_offset - 1}"
    if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
        reason = _why_empty(s, queue)
    elif status is GetMessageStatus.NO_MATCHED_MESSAGE:
        reason = f"no message with these tags from offset {offset} on; {span}{_backlog(s)}"
    elif status is GetMessageStatus.OFFSET_TOO_SMALL:
        reason = f"offset {offset} has expired or never existed; {span}"
    elif status is GetMessageStatus.MESSAGE_WAS_REMOVING:
        reason = f"the messages from offset {offset} on have just expired; {span}"
    else:
        reason = f"offset {offset} does not exist yet; {span}{_backlog(s)}"
    answer = {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
    }
    exit_not_found(status, reason if as_json else f"{status}: {reason}", answer, as_json=as_json)


def _report_displaced(queue: QueueRef, messages: list[Message], positions: list[int]) -> None:
    """Report messages whose position differs from their own queue offset (format notes §5.3)."""
    own = (
        (m.queue_offset, position)
        for m, position in zip(messages, positions, strict=True)
        if _is_of(m, queue)
    )
    displaced = [(own_offset, position) for own_offset, position in own if own_offset != position]
    if displaced:
        own_offset, position = displaced[0]
        say(
            f"{len(displaced)} of these messages have another position in the queue than the "
            "offset shown, which is their own, by a broker's own rules: the first has offset "
            f"{own_offset} and position {position}; --offset counts positions"
        )


def _is_of(message: Message, queue: QueueRef) -> bool:
    """Return whether a queue is a message's own; multi-dispatch adds it to others too."""
    return (message.topic, message.queue_id) == (queue.topic, queue.queue_id)


def _why_empty(s: MessageStore, queue: QueueRef) -> str:
    """Return why a queue has no message: it is empty, or there is no such queue or topic."""
    topic, queue_id = queue.topic, queue.queue_id
    ids = s.queue_ids(topic)
    if queue_id in ids:
        return f"queue {queue_id} of topic {shown(topic)} has no message{_backlog(s)}"
    if ids:
        others = ", ".join(map(str, ids))
        return f"topic {shown(topic)} has no queue {queue_id}; it has {others}{_backlog(s)}"
    return f"there is no topic {shown(topic)}{_backlog(s)}"


def _backlog(s: MessageStore, broker: str = "") -> str:
    """Return how much of the log has not been dispatched yet, "" for none, as a suffix."""
    dispatched_to = s.reput_from_offset()
    if dispatched_to is None or dispatched_to >= (end := s.max_phy_offset()):
        return ""
    log = f"the log of {broker}" if broker else "the log"
    return f" (not dispatched yet: offsets {dispatched_to} to {end} of {log})"
