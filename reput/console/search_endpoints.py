"""The endpoints of searches: JSON, server-sent events, and downloads as JSON lines or CSV."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from reput.console.answers.budget import WORK_BYTES, lease_of
from reput.console.answers.messages import (
    CSV_FIELDS,
    Encode,
    csv_of,
    csv_row,
    json_of,
    json_without_body,
    summary_of,
)
from reput.console.answers.stream import Stream, text_answer
from reput.console.api import broker_of
from reput.console.brokers import range_json
from reput.console.pages import (
    BrokenOffError,
    attachment,
    error_fields,
    load,
    rare_logger,
    render,
)
from reput.console.parameters import (
    SEARCH_PARAMETERS,
    ParameterError,
    check_names,
    choice,
    parse_search,
)
from reput.console.search_job import COMPLETE, Limits, SearchJob, SearchSlots, client_of
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.scanner import Damage

PAGE_MAX = 100  # messages of a JSON answer, unless the query has a max
_JSON_BYTES_MAX = 32 * 1024 * 1024
_EVENT_BYTES_MAX = 64 * 1024 * 1024
_PAGE_SECONDS = 10.0  # a page without JavaScript searches no longer
_PROGRESS_SECONDS = 0.5
_ENVELOPE_BYTES = 1024 * 1024  # of a JSON answer, for what is not messages
_RANGES_MAX = 100  # of damage in a JSON answer
_COMMA = ", "
_log = rare_logger(__name__)


async def page(request: Request) -> Response:
    """Render the form; with ``run=1``, which only a browser without JavaScript sends, results."""
    data: dict[str, Any] = {"broker": broker_of(request).name, "messages": None}
    try:
        if request.query_params.get("run") == "1":
            limits = Limits(WORK_BYTES, _PAGE_SECONDS)
            texts, ended = await _found(request, summary_of(data["broker"]), limits, PAGE_MAX)
            data |= {"messages": [json.loads(text) for text in texts], **ended}
        else:
            await load(request, lambda r: parse_search(r.query_params))
    except ParameterError as e:
        fields = error_fields(e)
        return render(request, "messages.html", {**data, **fields}, fields["status"])
    return await load(request, lambda r: render(r, "messages.html", data))


async def messages(request: Request) -> Response:
    """Answer a search in the format that the query names."""
    check_names(request.query_params, SEARCH_PARAMETERS)
    form = choice(request.query_params, "format", ("json", "sse", "jsonl", "csv"))
    if form == "json":
        return await _json(request)
    broker = broker_of(request)
    if form == "sse":
        job = await start_job(request, summary_of(broker.name), Limits(_EVENT_BYTES_MAX))
        return Stream(_events(request, job), "text/event-stream", on_close=job.finish)
    as_csv = form == "csv"
    encode = csv_of(broker.name) if as_csv else json_of(broker.name, "\n")
    job = await start_job(request, encode, Limits())
    headers = attachment(broker.name, f"messages.{form}")
    head = csv_row(CSV_FIELDS) if as_csv else ""
    media_type = "text/csv; charset=utf-8" if as_csv else "application/x-ndjson"
    return Stream(_lines(request, job, head), media_type, headers=headers, on_close=job.finish)


def event(name: str, data: Mapping[str, Any] | str) -> str:
    """Return a server-sent event; its data is an object, or JSON on one line."""
    return f"event: {name}\ndata: {data if isinstance(data, str) else json.dumps(data)}\n\n"


async def start_job(request: Request, encode: Encode, limits: Limits) -> SearchJob:
    """Return the search of a request. Raises ParameterError, HTTPException (429)."""
    broker, slots = broker_of(request), _slots(request)
    query = await load(request, lambda r: parse_search(r.query_params))
    client = client_of(request)
    slots.take(client)
    job = SearchJob(broker, query, encode, limits)
    job.on_close(lambda: slots.release(client))
    return job


async def _found(
    request: Request, encode: Encode, limits: Limits, most: int | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Return the texts of the first page, of ``most`` at most, and how the search ended.

    It ends when the client disconnects. Raises ParameterError, HTTPException (429, 503).
    """
    job = await start_job(request, encode, limits)
    wanted = job.query.max_count or PAGE_MAX
    job.query = job.query.with_max(min(wanted, most or wanted))
    found: list[str] = []
    size, lease = 0, lease_of(request)
    try:
        async for texts in job.texts(_slots(request)):
            found += texts
            size += sum(map(len, texts))
            if size > WORK_BYTES:
                await lease.grow(_JSON_BYTES_MAX)
            if await request.is_disconnected():
                break
    finally:
        job.finish()
    return found, {
        "searched_bytes": job.searched_bytes,
        "total_bytes": job.total_bytes,
        "is_complete": job.reason == COMPLETE,
        "elapsed_ms": job.elapsed_ms,
        "damage": _ranges(job.damages),
        "next": job.next,
    }


async def _json(request: Request) -> Response:
    """Return an object of ``_JSON_BYTES_MAX`` at most, of which the messages are encoded once."""
    name = broker_of(request).name
    reason = "the message exceeds the limit of a JSON answer; download it as jsonl or csv"
    limits = Limits(
        _JSON_BYTES_MAX - _ENVELOPE_BYTES,
        shortened=lambda m: (json_without_body(m, name, reason) + _COMMA,),
    )
    texts, ended = await _found(request, json_of(name, _COMMA), limits)
    if texts:
        texts[-1] = texts[-1].removesuffix(_COMMA)
    head = f'{{"broker": {json.dumps(name)}, "messages": ['
    tail = f"], {json.dumps(ended)[1:]}"
    return text_answer(chain((head,), texts, (tail,)), sum(map(len, texts)))


def _ranges(damages: Sequence[Damage]) -> list[dict[str, Any]]:
    """Return the ranges that could not be read; the last one covers those beyond the limit."""
    ranges = [range_json(damage) for damage in damages[:_RANGES_MAX]]
    further = damages[_RANGES_MAX:]
    if further:
        last = ranges[-1]
        last["begin"] = min(last["begin"], *(damage.begin for damage in further))
        last["end"] = max(last["end"], *(damage.end for damage in further))
        last["reason"] = f"{len(further) + 1} ranges; the first one: {last['reason']}"
    return ranges


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
    search has skipped.
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
        _log.warning("a download was aborted: %s", e)
        raise BrokenOffError(str(e)) from e


def _failure(request: Request, error: Exception) -> dict[str, Any]:
    fields = error_fields(error)
    if not isinstance(error, StoreError):
        _log.error("%s: %s", request.scope["path"], error, exc_info=error)
    return fields


def _slots(request: Request) -> SearchSlots:
    slots: SearchSlots = request.app.state.searches
    return slots
