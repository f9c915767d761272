"""``reput get``, ``offset``, ``query`` and ``message``: reads on a store, without a JVM."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from store import Boundary, Message, MessageStore
from store.commitlog.record import decode_msg_id
from store.errors import ConfigError, StoreIOError, shown
from store.io.user_path import given_path
from store.reads.get_message import GetMessageResult, GetMessageStatus
from store.reads.message_json import message_json
from store.reads.query_message import KEY_TYPE, TAG_TYPE
from streaming.cli import EXIT_NO
from streaming.cli.lines import print_json, print_line, say, time_text
from streaming.cli.options import (
    BrokerConf,
    BrokerVersion,
    Json,
    MaxBodyBytes,
    Output,
    Store,
    check_seconds,
    opened_store,
    parse_time,
)
from streaming.cli.show import print_details, print_messages

Topic = Annotated[str, typer.Option(help="The topic.", show_default=False)]
Queue = Annotated[int, typer.Option(help="The queue id.", min=0, show_default=False)]

_NOT_FOUND = "NOT_FOUND"  # of a key, a tag, a place in the log; queues have the broker's statuses
_TIME_MAX = 2**63 - 1
_GOES_ON = (
    GetMessageStatus.FOUND,
    GetMessageStatus.NO_MATCHED_MESSAGE,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (get, offset, query, message):
        app.command()(command)


def get(  # noqa: PLR0913 - one parameter an option
    store: Store,
    topic: Topic,
    queue: Queue,
    offset: Annotated[
        int, typer.Option(help="The queue offset of the first message.", show_default=False)
    ],
    *,
    max_count: Annotated[int, typer.Option("--max", help="How many messages at most.", min=1)] = 32,
    tags: Annotated[str, typer.Option(help="Only these tags, such as 'TagA || TagB'.")] = "*",
    wait: Annotated[
        float,
        typer.Option(help="Wait so many seconds for a message if there is none yet.", min=0),
    ] = 0,
    max_body_bytes: MaxBodyBytes = None,
    output: Output = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Read messages of a queue from a queue offset on.

    Exits with 1 if there is none: the offset has expired, is not reached yet, or no tag matches.
    """
    check_seconds("--wait", wait)
    with opened_store(store, output, broker_conf, broker_version, max_body_bytes) as s:
        found: list[Message] = []
        places: list[int] = []
        deadline = time.monotonic() + wait
        at, count, matched = offset, 0, True
        while True:
            left = 0.0 if count else max(deadline - time.monotonic(), 0)
            result = s.get_message(topic, queue, at, max_count - count, tags, left)
            matched &= result.status is not GetMessageStatus.NO_MATCHED_MESSAGE
            found += result.messages
            places += result.message_queue_offsets
            count += len(result.messages)
            if as_json:
                _print_all_json(found)
                found.clear()
                places.clear()
            at = result.next_begin_offset
            if count >= max_count or result.status not in _GOES_ON:
                break
        if not count:
            _no_message(s, (topic, queue, offset), result, matched=matched, as_json=as_json)
        if not as_json:
            print_messages(found)
            _say_displaced((topic, queue), found, places)


def offset(  # noqa: PLR0913 - one parameter an option
    store: Store,
    topic: Topic,
    queue: Queue,
    at_time: Annotated[
        str,
        typer.Option("--time", help="Epoch milliseconds or ISO 8601.", show_default=False),
    ],
    *,
    boundary: Annotated[
        Boundary,
        typer.Option(
            help="lower: the first message stored at or after the time (the queue's end if none); "
            "upper: the last one stored at or before it.",
        ),
    ] = Boundary.LOWER,
    output: Output = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Find the queue offset for a time.

    Exits with 1 if the queue has no message.
    """
    timestamp_ms = parse_time("--time", at_time)
    assert timestamp_ms is not None
    with opened_store(store, output, broker_conf, broker_version) as s:
        found = s.offset_in_queue_by_time(topic, queue, timestamp_ms, boundary)
        first, end = s.min_offset_in_queue(topic, queue), s.max_offset_in_queue(topic, queue)
        stored = s.message_store_timestamp(topic, queue, found)
        answer = {
            "topic": topic,
            "queue_id": queue,
            "timestamp": timestamp_ms,
            "boundary": boundary.value,
            "offset": found if first < end else None,
            "store_timestamp": stored,
            "min_offset": first,
            "max_offset": end,
        }
        if first == end:
            status = GetMessageStatus.NO_MESSAGE_IN_QUEUE
            _nothing(status, _no_queue(s, topic, queue), answer, as_json=as_json)
        if as_json:
            print_json(answer)
            return
        print_line(str(found))
        moment = time_text(timestamp_ms)
        if found == end:
            say(f"no message was stored at or after {moment}: this is the queue's end")
        elif boundary is Boundary.UPPER and stored > timestamp_ms:
            say(f"no message was stored at or before {moment}: this is the queue's begin")


def query(  # noqa: PLR0913 - one parameter an option
    store: Store,
    topic: Topic,
    *,
    key: Annotated[
        str | None, typer.Option(help="A key or unique key of the message.", show_default=False)
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(help="Its tag (indexed since RocketMQ 5.4.0).", show_default=False),
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(help="Stored at or after: epoch ms or ISO 8601.", show_default=False),
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="Stored at or before, likewise.", show_default=False)
    ] = None,
    max_count: Annotated[
        int, typer.Option("--max", help="How many messages at most, the newest.", min=1)
    ] = 64,
    max_body_bytes: MaxBodyBytes = None,
    output: Output = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Find messages by key, unique key or tag.

    Reads the index. Exits with 1 if there is none.
    """
    wanted = key if key is not None else tag
    if wanted is None or (key is not None and tag is not None):
        raise ConfigError("give either --key or --tag")
    begin, end = parse_time("--from-time", from_time), parse_time("--to-time", to_time)
    if begin is not None and end is not None and begin > end:
        raise ConfigError(f"--from-time {from_time} is later than --to-time {to_time}")
    with opened_store(store, output, broker_conf, broker_version, max_body_bytes) as s:
        result = s.query_message(
            topic,
            wanted,
            max_count,
            begin if begin is not None else 0,
            end if end is not None else _TIME_MAX,
            KEY_TYPE if key is not None else TAG_TYPE,
        )
        if as_json:
            _print_all_json(result.messages)
        elif result.messages:
            print_messages(result.messages)
        if result.truncated:
            say(f"the newest {max_count} are shown, older ones were left out (--max)")
        if not result.messages:
            name = "key" if key is not None else "tag"
            reason = f"no message of topic {shown(topic)} with {name} {shown(wanted)}{_lag(s)}"
            _nothing(_NOT_FOUND, reason, {"topic": topic, name: wanted}, as_json=as_json)


def message(  # noqa: PLR0913 - one parameter an option
    store: Store,
    *,
    commit_log_offset: Annotated[
        int | None, typer.Option(help="Where its record begins in the log.", show_default=False)
    ] = None,
    msg_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="Its offset message id, 32 or 56 hex digits.", show_default=False
        ),
    ] = None,
    body_to: Annotated[
        Path | None,
        typer.Option(
            "--body-to",
            metavar="FILE",
            parser=given_path,
            help="Write the body's bytes, decompressed, to this new file.",
            show_default=False,
        ),
    ] = None,
    max_body_bytes: MaxBodyBytes = None,
    output: Output = None,
    broker_conf: BrokerConf = None,
    broker_version: BrokerVersion = None,
    as_json: Json = False,
) -> None:
    """Show one message by its commit log offset or id.

    Exits with 1 if no message begins there. A client's own message id is a unique key: see query.
    """
    if (commit_log_offset is None) == (msg_id is None):
        raise ConfigError("give either --commit-log-offset or --id")
    host = ""
    if msg_id is not None:
        host, commit_log_offset = decode_msg_id(msg_id)
    assert commit_log_offset is not None
    with opened_store(store, output, broker_conf, broker_version, max_body_bytes) as s:
        found = s.look_message_by_offset(commit_log_offset)
        reason = ""
        if found is None:
            reason = _why_no_record(s, commit_log_offset)
        elif host and found.store_host != host:
            reason = f"the record there was stored by {found.store_host}, the id names {host}"
        if found is None or reason:
            reason = f"no message at commit log offset {commit_log_offset}: {reason}"
            if msg_id is not None:
                reason = _no_such_id(msg_id, reason if commit_log_offset >= 0 else "")
            place = {"commit_log_offset": commit_log_offset}
            _nothing(_NOT_FOUND, reason, place, as_json=as_json)
        if body_to is not None:
            _write_body(found, body_to)
        if as_json:
            print_json(message_json(found))
        else:
            print_details(found)


def _no_such_id(msg_id: str, reason: str) -> str:
    why = f" ({reason})" if reason else ""
    return (
        f"{msg_id} is not the message id of a message in this store{why}; a client's unique key: "
        f"reput query --topic T --key {msg_id}"
    )


def _write_body(found: Message, path: Path) -> None:
    """Write a body to a file that is not there yet: nothing of a store is ever overwritten."""
    body = found.read_body()
    try:
        with path.open("xb") as file:  # exclusively: opens no pipe or device, follows no link
            file.write(body)
    except FileExistsError as e:
        raise ConfigError(f"--body-to {path} exists already; name a new file") from e
    except OSError as e:
        raise StoreIOError("write", path, e) from e


def _print_all_json(messages: list[Message] | tuple[Message, ...]) -> None:
    for m in messages:
        print_json(message_json(m))


def _no_message(
    s: MessageStore,
    place: tuple[str, int, int],
    result: GetMessageResult,
    *,
    matched: bool,
    as_json: bool,
) -> NoReturn:
    """Say why ``get`` found nothing, and exit."""
    topic, queue, at = place
    status = result.status if matched else GetMessageStatus.NO_MATCHED_MESSAGE
    span = f"the queue holds offsets {result.min_offset} to {result.max_offset - 1}"
    if status is GetMessageStatus.NO_MESSAGE_IN_QUEUE:
        reason = _no_queue(s, topic, queue)
    elif status is GetMessageStatus.NO_MATCHED_MESSAGE:
        reason = f"no message with these tags from offset {at} on; {span}{_lag(s)}"
    elif status is GetMessageStatus.OFFSET_TOO_SMALL:
        reason = f"offset {at} has expired or never was; {span}"
    elif status is GetMessageStatus.MESSAGE_WAS_REMOVING:
        reason = f"the messages from offset {at} on have just expired; {span}"
    else:
        reason = f"offset {at} is not there yet; {span}{_lag(s)}"
    answer = {
        "topic": topic,
        "queue_id": queue,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
    }
    _nothing(status, reason if as_json else f"{status}: {reason}", answer, as_json=as_json)


def _nothing(status: str, reason: str, answer: Mapping[str, Any], *, as_json: bool) -> NoReturn:
    """Say that there is nothing, and exit; as JSON this is an object that has a status."""
    if as_json:
        print_json({"status": status, "reason": reason, **answer})
    else:
        say(reason)
    raise typer.Exit(EXIT_NO)


def _say_displaced(queue: tuple[str, int], found: list[Message], places: list[int]) -> None:
    """Say which messages lie elsewhere than their own offset says (format notes §5.3)."""
    own = ((m.queue_offset, at) for m, at in zip(found, places, strict=True) if _is_of(m, queue))
    displaced = [(said, at) for said, at in own if said != at]
    if displaced:
        said, at = displaced[0]
        say(
            f"{len(displaced)} of these messages lie elsewhere in the queue than at the offset "
            f"shown, which is their own, by a broker's own rules: the first has {said} and lies "
            f"at {at}; --offset counts places"
        )


def _is_of(message: Message, queue: tuple[str, int]) -> bool:
    """Tell whether a queue is a message's own; by multi-dispatch it can lie in others too."""
    return (message.topic, message.queue_id) == queue


def _no_queue(s: MessageStore, topic: str, queue: int) -> str:
    """Say what is there instead of a queue without messages."""
    ids = s.queue_ids(topic)
    if queue in ids:
        return f"queue {queue} of topic {shown(topic)} has no message{_lag(s)}"
    if ids:
        return (
            f"topic {shown(topic)} has no queue {queue}; it has {', '.join(map(str, ids))}{_lag(s)}"
        )
    return f"there is no topic {shown(topic)}{_lag(s)}"


def _lag(s: MessageStore) -> str:
    """Say how much of the log has not been dispatched yet, "" if all has."""
    reached = s.reput_from_offset()
    if reached is None or reached >= (end := s.max_phy_offset()):
        return ""
    return f" (not dispatched yet: offsets {reached} to {end} of the log)"


def _why_no_record(s: MessageStore, at: int) -> str:
    first, end = s.min_phy_offset(), s.max_phy_offset()
    if first < 0 or first == end:
        return "the log is empty"
    if at < 0:
        return "that is not an offset in any log"
    if at < first:
        return f"it has expired, the log begins at {first}"
    return f"the log ends at {end}" if at >= end else "no record begins there"
