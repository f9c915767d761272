"""The endpoints of searches: JSON, server-sent events, and downloads as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from store.commitlog.message_json import BODY_FIELDS, JSON_FIELDS, message_json, message_summary
from store.commitlog.record import Message
from store.errors import StoreError
from streaming.web.api import broker_of
from streaming.web.brokers import Broker, range_json
from streaming.web.pages import (
    BrokenOffError,
    attachment,
    error_fields,
    json_response,
    load,
    rare_logger,
    render,
)
from streaming.web.parameters import (
    SEARCH_PARAMETERS,
    ParameterError,
    SearchQuery,
    check_names,
    choice,
    parse_search,
)
from streaming.web.search_job import COMPLETE, Encode, Limits, SearchJob, SearchSlots

if TYPE_CHECKING:
    from store.commitlog.scanner import Damage

PAGE_MAX = 100  # messages of a JSON answer, unless the query has a max
_JSON_BYTES_MAX = 32 * 1024 * 1024
_EVENT_BYTES_MAX = 64 * 1024 * 1024
_PAGE_SECONDS = 10.0  # a page without JavaScript searches no longer
_PROGRESS_SECONDS = 0.5
_CSV_FIELDS = ("broker", *JSON_FIELDS, *BODY_FIELDS, "body_error")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a formula of a spreadsheet begins
_log = rare_logger(__name__)


async def page(request: Request) -> Response:
    """Render the form; with ``run=1``, which only a browser without JavaScript sends, results."""
    data: dict[str, Any] = {"broker": broker_of(request).name, "messages": None}
    try:
        if request.query_params.get("run") == "1":
            data = await _found(request, Limits(_JSON_BYTES_MAX, _PAGE_SECONDS), PAGE_MAX)
        else:
            await load(request, lambda r: {"query": parse_search(r.query_params)})
    except ParameterError as e:
        fields = error_fields(e)
        return render(request, "messages.html", {**data, **fields}, fields["status"])
    return render(request, "messages.html", data)


async def messages(request: Request) -> Response:
    """Answer a search in the format that the query names."""
    check_names(request.query_params, SEARCH_PARAMETERS)
    form = choice(request.query_params, "format", ("json", "sse", "jsonl", "csv"))
    if form == "json":
        return json_response(await _found(request, Limits(_JSON_BYTES_MAX), None))
    broker = broker_of(request)
    if form == "sse":
        job = await start_job(request, _summary_of(broker), Limits(_EVENT_BYTES_MAX))
        return Stream(_events(request, job), "text/event-stream", on_close=job.finish)
    as_csv = form == "csv"
    job = await start_job(request, _csv_of(broker) if as_csv else _line_of(broker), Limits())
    headers = attachment(broker.name, f"messages.{form}")
    head = _csv_row(_CSV_FIELDS) if as_csv else ""
    media_type = "text/csv; charset=utf-8" if as_csv else "application/x-ndjson"
    return Stream(_lines(request, job, head), media_type, headers=headers, on_close=job.finish)


class Stream(StreamingResponse):
    """A streamed answer; ``on_close`` is called in any case, once its client is gone."""

    def __init__(
        self,
        parts: AsyncGenerator[str],
        media_type: str,
        *,
        headers: Mapping[str, str] | None = None,
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(parts, media_type=media_type, headers=headers)
        self._parts = parts
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts; for HEAD only the headers."""
        try:
            if scope["method"] == "HEAD":
                await Response(headers=dict(self.headers))(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._on_close()

    async def stream_response(self, send: Send) -> None:
        """Send the parts, then close their generator in any case."""
        async with aclosing(self._parts):
            await super().stream_response(send)


def event(name: str, data: Mapping[str, Any] | str) -> str:
    """Return a server-sent event; its data is an object, or JSON on one line."""
    return f"event: {name}\ndata: {data if isinstance(data, str) else json.dumps(data)}\n\n"


async def start_job(
    request: Request, encode: Encode, limits: Limits, max_count: int | None = None
) -> SearchJob:
    """Return the search of a request. Raises ParameterError, HTTPException (429)."""

    def parse(r: Request) -> dict[str, SearchQuery]:
        return {"query": parse_search(r.query_params)}

    broker, slots = broker_of(request), _slots(request)
    query: SearchQuery = (await load(request, parse))["query"]
    if max_count is not None:
        query = query.with_max(max_count)
    client = request.client.host if request.client is not None else ""
    slots.take(client)
    job = SearchJob(broker, query, encode, limits)
    job.on_close(lambda: slots.release(client))
    return job


async def _found(request: Request, limits: Limits, max_count: int | None) -> dict[str, Any]:
    """Return the object of a search. It ends when the client disconnects."""
    broker = broker_of(request)
    job = await start_job(request, lambda m: json.dumps(message_json(m)), limits, max_count)
    if job.query.max_count is None:
        job.query = job.query.with_max(PAGE_MAX)
    found: list[Any] = []
    try:
        async for texts in job.texts(_slots(request)):
            found += [{**json.loads(text), "broker": broker.name} for text in texts]
            if await request.is_disconnected():
                break
    finally:
        job.finish()
    return {
        "broker": broker.name,
        "messages": found,
        "searched_bytes": job.searched_bytes,
        "total_bytes": job.total_bytes,
        "is_complete": job.reason == COMPLETE,
        "elapsed_ms": job.elapsed_ms,
        "damage": [range_json(damage) for damage in job.damages],
        "next": job.next,
    }


async def _events(request: Request, job: SearchJob) -> AsyncGenerator[str]:
    reported, passed = 0.0, 0
    try:
        async for texts in job.texts(_slots(request)):
            for damage in job.damages[passed:]:
                passed += 1
                yield damage_event(damage)
            if texts:
                yield "".join(event("message", text) for text in texts)
            if time.monotonic() - reported >= _PROGRESS_SECONDS:
                reported = time.monotonic()
                yield event("progress", job.progress())
    except Exception as e:  # noqa: BLE001 - the client gets it; the answer has begun
        yield event("failed", _failure(request, e))
        return
    yield event("done", {**job.progress(), "reason": job.reason, "next": job.next})


def damage_event(damage: Damage) -> str:
    """Return the event of a part of the log that a search could not read."""
    return event("damage", {**range_json(damage), "error": str(damage.passed())})


async def _lines(request: Request, job: SearchJob, head: str) -> AsyncGenerator[str]:
    """Yield the lines of a download.

    An error breaks the connection, so that clients notice it; so does, at the end, damage that the
    search has passed.
    """
    if head:
        yield head
    try:
        async for texts in job.texts(_slots(request)):
            if texts:
                yield "".join(texts)
        if job.damages:
            raise job.damages[0].passed()
    except StoreError as e:
        _log.warning("a download was broken off: %s", e)
        raise BrokenOffError(str(e)) from e


def _failure(request: Request, error: Exception) -> dict[str, Any]:
    fields = error_fields(error)
    if not isinstance(error, StoreError):
        _log.error("%s: %s", request.scope["path"], error, exc_info=error)
    return fields


def _slots(request: Request) -> SearchSlots:
    slots: SearchSlots = request.app.state.searches
    return slots


# --- texts of messages ---------------------------------------------------------------------------


def _summary_of(broker: Broker) -> Encode:
    return lambda m: json.dumps({**message_summary(m), "broker": broker.name})


def _line_of(broker: Broker) -> Encode:
    return lambda m: json.dumps({**message_json(m), "broker": broker.name}) + "\n"


def _csv_of(broker: Broker) -> Encode:
    def encode(message: Message) -> str:
        fields = {**message_json(message), "broker": broker.name}
        fields["properties"] = json.dumps(fields["properties"], ensure_ascii=False)
        return _csv_row([fields.get(name) for name in _CSV_FIELDS])

    return encode


def _csv_row(values: Any) -> str:
    """Return a row. Texts that a spreadsheet would take for a formula get an apostrophe."""
    row = io.StringIO()
    csv.writer(row).writerow(
        f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
        for value in values
    )
    return row.getvalue()
