"""Live tails: the newest messages of a broker, then new ones, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from reput.console.answers.budget import SLICE_BYTES
from reput.console.answers.stream import Stream
from reput.console.api import broker_of
from reput.console.brokers import Broker
from reput.console.pages import error_fields, load, render
from reput.console.parameters import (
    TAIL_PARAMETERS,
    ParameterError,
    SearchQuery,
    check_names,
    number,
    parse_tail,
)
from reput.console.search_endpoints import damage_event, event
from reput.console.search_job import Limits, SearchJob, SearchSlots, client_of
from reput.console.tails.tail_queue import TailFeed
from store.commitlog.message_json import message_summary
from store.commitlog.record import Message
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.scanner import Damage
    from store.reads.message_filter import MessageFilter

HEARTBEAT = ": heartbeat\n\n"
_HEARTBEAT_SECONDS = 10.0
_NEWEST, _NEWEST_MAX = 10, 1000
_WAITING_BYTES = 64 * 1024 * 1024  # of messages, for the clients of all tails
_WAITING_BYTES_EACH = 4 * 1024 * 1024
_PAUSE_SECONDS = 0.05  # between two answers, so that many messages are sent at once


class TailSlots:
    """The tails that are open at a time."""

    def __init__(self, tails_max: int) -> None:
        self._free = tails_max
        self._max = tails_max

    def take(self) -> None:
        """Take the slot of a tail. Raises HTTPException (429)."""
        if not self._free:
            raise HTTPException(429, f"{self._max} tails are open, which is the limit; close one")
        self._free -= 1

    def release(self) -> None:
        """Return the slot of a tail."""
        self._free += 1

    def waiting_max(self) -> int:
        """Return how many bytes may wait for the client of one tail."""
        return min(_WAITING_BYTES // max(self._max - self._free, 1), _WAITING_BYTES_EACH)


async def page(request: Request) -> Response:
    """Render the page; messages stream in."""
    data = {"broker": broker_of(request).name}
    try:
        await load(request, _parse)
    except ParameterError as e:
        fields = error_fields(e)
        return render(request, "tail.html", {**data, **fields}, fields["status"])
    return render(request, "tail.html", data)


async def follow(request: Request) -> Response:
    """Stream the newest messages that match, then new ones."""
    check_names(request.query_params, TAIL_PARAMETERS)
    broker, slots = broker_of(request), request.app.state.tails
    parsed = await load(request, _parse)
    slots.take()
    tail = _Tail(request, broker, *parsed)

    def close() -> None:
        tail.close()
        slots.release()

    try:
        await tail.open()  # before the answer begins: a client that is connected misses nothing
    except BaseException:
        close()
        raise
    return Stream(tail.events(), "text/event-stream", on_close=close)


def _parse(request: Request) -> tuple[MessageFilter, int]:
    count = number(request.query_params, "n", high=_NEWEST_MAX)
    wanted = parse_tail(request.query_params)
    return wanted, _NEWEST if count is None else count


class _Tail:
    """One open tail."""

    def __init__(self, request: Request, broker: Broker, wanted: MessageFilter, count: int) -> None:
        self._request = request
        self._broker = broker
        self._count = count
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        conditions = sorted(p for p in request.query_params.multi_items() if p[0] != "n")
        self._slots: TailSlots = request.app.state.tails
        key, waiting_max = json.dumps(conditions), self._slots.waiting_max
        self._feed = TailFeed(key, wanted, self._wake, waiting_max)

    async def open(self) -> None:
        """Take new messages from now on. Raises StoreError if the log is not followed."""
        await asyncio.to_thread(self._broker.monitor.add, self._feed)

    async def events(self) -> AsyncGenerator[str]:
        """Yield the events of the tail, without end unless its conditions take too long."""
        yield HEARTBEAT
        try:
            newest, damages = await self._newest()
            for text in newest:
                yield event("message", self._named(text))
            for damage in damages:
                yield damage_event(damage)
        except StoreError as e:  # new messages may be readable all the same
            yield event("failed", error_fields(e))
        problem = self._broker.monitor.error()
        if problem is not None:
            yield event("failed", {"error": problem})
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), _HEARTBEAT_SECONDS)
            except TimeoutError:
                yield HEARTBEAT
                continue
            self._changed.clear()
            ended = self._feed.ended
            taken, error, has_more = self._feed.take(SLICE_BYTES)
            parts = [self._event(item) for item in taken]
            if error is not None:
                parts.append(event("failed", {"error": error}))
            if ended and not has_more:
                parts.append(event("ended", {"error": ended}))
            if parts:
                yield "".join(parts)
            if has_more:
                self._changed.set()
            elif ended:
                return
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Stop taking messages."""
        self._broker.monitor.remove(self._feed)

    async def _newest(self) -> tuple[list[str], list[Damage]]:
        """Return the newest messages before those of the monitor, and the damage among them.

        The oldest message is first.
        """
        if not self._count:
            return [], []
        wanted = replace(self._feed.wanted, to_offset=self._feed.begin)
        query = SearchQuery(wanted, is_newest_first=True, max_count=self._count)
        slots: SearchSlots = self._request.app.state.searches
        async with slots.tail_start(client_of(self._request)) as seconds:
            limits = Limits(self._slots.waiting_max(), seconds)
            job = SearchJob(self._broker, query, _encode, limits)
            try:
                found = [text async for texts in job.texts(slots) for text in texts]
            finally:
                job.finish()
        return found[::-1], job.damages

    def _event(self, item: str | int) -> str:
        """Return the event of a message, or of a number of messages that were skipped."""
        if isinstance(item, int):
            return event("skipped", {"count": item})
        return event("message", self._named(item))

    def _named(self, text: str) -> str:
        """Return the JSON text of a message with the broker's name."""
        return f'{text[:-1]}, "broker": {json.dumps(self._broker.name)}}}'

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._changed.set)


def _encode(message: Message) -> tuple[str]:
    return (json.dumps(message_summary(message)),)
