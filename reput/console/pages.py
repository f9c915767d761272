"""HTML and JSON answers: each page is rendered from the object that its JSON twin returns."""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from reput.console.answers.budget import STREAM_BYTES, WORK_BYTES, lease_of
from reput.console.answers.stream import json_answer
from reput.console.parameters import ParameterError, check_names
from store.errors import DamageError, SlowExpressionError, StoreError, StoreIOError
from store.java import now_ms
from store.printable import printable, size_text

FROM_LINK = "reput.from_link"  # in the scope of a request that follows a link of another site
TEMPLATES = Path(__file__).parent / "templates"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PAGES, LISTS, BODIES, METRICS = "pages", "lists", "bodies", "metrics"
PENDING, USAGE = SCANS = "pending", "usage"  # of the log: no link of another site may open them
_READS_MAX = 16  # threads that load pages; a read may wait for a swap
_READERS = {PAGES: _READS_MAX, LISTS: 4, BODIES: 2, PENDING: 2, USAGE: 2, METRICS: 1}
_KILO = 1000
_LOGGED_MAX, _LOGGED_SECONDS = 20, 60.0  # at most this many errors in this time

T = TypeVar("T")
Load = Callable[[Request], Mapping[str, Any]]  # runs in a thread
Endpoint = Callable[[Request], Awaitable[Response]]


class View(NamedTuple):
    """A page: its path, its template, what loads its object, and its query parameters."""

    path: str
    template: str
    load: Load
    parameters: tuple[str, ...] = ()
    kind: str = PAGES  # of the threads that make it


def page(view: View) -> Endpoint:
    """Return the endpoint of a view as HTML."""

    async def endpoint(request: Request) -> Response:
        def rendered(r: Request) -> Response:
            return render(r, view.template, view.load(r))

        return await load(request, rendered, view.kind)

    return own_links(endpoint) if view.kind in SCANS else endpoint


def own_links(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that runs only for a link of the console itself, or its user's request.

    A link from another site gets a page that asks whether to continue.
    """

    async def guarded(request: Request) -> Response:
        if FROM_LINK not in request.scope:
            return await endpoint(request)
        broker = request.path_params["broker"]
        if broker not in request.app.state.brokers:
            raise HTTPException(404, "no broker of this name is shown here")
        data = {"broker": broker, "url": _own_url(request)}
        return render(request, "link.html", data, HTTPStatus.FORBIDDEN)

    return guarded


def twin(view: View) -> Endpoint:
    """Return the endpoint of a view as JSON."""

    async def endpoint(request: Request) -> Response:
        check_names(request.query_params, view.parameters)
        return await load(request, lambda r: json_answer(view.load(r)), view.kind)

    return endpoint


async def load(request: Request, function: Callable[[Request], T], kind: str = PAGES) -> T:
    """Return what a function returns in a thread. Raises what it raises.

    ``kind`` names the threads that may run it: what takes much memory has few.
    """
    readers: Readers = request.app.state.readers
    return await readers.run(function, request, kind)


class Readers:
    """The threads that make answers, by kind, and since when each of them has been busy."""

    def __init__(self) -> None:
        self._limiters = {kind: CapacityLimiter(threads) for kind, threads in _READERS.items()}
        self._threads = CapacityLimiter(sum(_READERS.values()))
        self._begun: dict[str, dict[int, float]] = {kind: {} for kind in _READERS}  # by thread

    async def run(self, function: Callable[[Request], T], request: Request, kind: str) -> T:
        """Call a function in a thread, once one is free.

        A request that waits for a thread leases little. An answer keeps its kind's thread until it
        has leased its size, so few large ones exist beyond the budget. Raises HTTPException (503).
        """
        lease = lease_of(request)
        is_new = lease.size == WORK_BYTES  # else it has answered in part

        def call() -> T:
            begun, thread = self._begun[kind], threading.get_ident()
            begun[thread] = time.monotonic()
            try:
                return function(request)
            finally:
                del begun[thread]

        if is_new:
            lease.settle(STREAM_BYTES)
        async with self._limiters[kind]:
            if is_new:
                await lease.grow(WORK_BYTES)
            answer = await to_thread.run_sync(call, limiter=self._threads)
            if is_new:
                await lease.grow(len(getattr(answer, "body", b"")))
        return answer

    def silent_seconds(self) -> float:
        """Return for how long every thread of a kind has been busy; 0 if one of each is free."""
        begun = ([*self._begun[kind].values()] for kind in _READERS)
        full = [
            max(b) for b, threads in zip(begun, _READERS.values(), strict=True) if len(b) == threads
        ]
        return time.monotonic() - min(full) if full else 0.0


def render(
    request: Request, template: str, data: Mapping[str, Any], status: int = HTTPStatus.OK
) -> Response:
    """Render a page from its object."""
    names = list(request.app.state.brokers)
    broker = data.get("broker")
    text = ENVIRONMENT.get_template(template).render(
        data=data,
        broker=broker,
        brokers=names,
        path=request.scope["path"],
        query=query_of(request.query_params),
        api_url=_api_url(request) if status == HTTPStatus.OK else None,
        now_ms=now_ms(),
        version=version("rocketmq-reput"),
    )
    # A file name that is not UTF-8 contains lone surrogates, which no encoding has.
    content = text.encode("utf-8", "replace")
    return Response(content, status, media_type="text/html")


def json_response(data: Mapping[str, Any], status: int = HTTPStatus.OK) -> Response:
    """Return an object as JSON, in ASCII: lone surrogates have no other form."""
    return Response(json.dumps(data), status, media_type="application/json")


def attachment(broker: str, name: str) -> dict[str, str]:
    """Return the headers of a download, whose file is named after its broker."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in broker)
    return {"Content-Disposition": f'attachment; filename="{plain}-{name}"'}


def query_of(params: QueryParams) -> dict[str, str | list[str]]:
    """Return the raw query parameters; one that is repeated is a list."""
    values = {name: params.getlist(name) for name in params}
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def _api_url(request: Request) -> str:
    url = _own_url(request)
    return f"/api/brokers{url[1:]}" if request.scope["path"] == "/" else f"/api{url}"


def _own_url(request: Request) -> str:
    query = request.url.query
    return quote(request.scope["path"]) + (f"?{query}" if query else "")


# --- errors --------------------------------------------------------------------------------------


class LoggedRarely(logging.Filter):
    """Limits the records of a period: what clients can cause at will must not fill a disk.

    The first record of the next period says how many were left out.
    """

    def __init__(self, count: int = _LOGGED_MAX, seconds: float = _LOGGED_SECONDS) -> None:
        super().__init__()
        self._count, self._seconds = count, seconds
        self._guard = threading.Lock()
        self._began, self._passed = 0.0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        with self._guard:
            now = time.monotonic()
            left_out = 0
            if now - self._began >= self._seconds:
                left_out = max(self._passed - self._count, 0)
                self._began, self._passed = now, 0
            self._passed += 1
            if left_out:
                record.msg = f"{record.getMessage()} ({left_out} more such errors were not logged)"
                record.args = None
            return self._passed <= self._count


def rare_logger(name: str) -> logging.Logger:
    """Return the logger of a module for errors that a client can cause at will."""
    logger = logging.getLogger(name)
    logger.addFilter(LoggedRarely())
    return logger


_log = rare_logger(__name__)


class BrokenOffError(Exception):
    """An answer that had begun cannot be completed: its connection is closed. Already logged."""


def error_fields(error: Exception) -> dict[str, Any]:
    """Return the object of an error: its text, its HTTP status, and the parameter or None."""
    parameter = error.parameter if isinstance(error, ParameterError) else None
    return {"error": _error_text(error), "status": _status(error), "parameter": parameter}


def _error_text(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return error.detail
    if isinstance(error, StoreError):
        return str(error)
    return "internal error; the log of reput serve has its details"


def _status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, ParameterError | SlowExpressionError):
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, DamageError):
        return HTTPStatus.CONFLICT
    if isinstance(error, StoreIOError) and error.errno == errno.ENAMETOOLONG:
        return HTTPStatus.NOT_FOUND
    return (
        HTTPStatus.SERVICE_UNAVAILABLE
        if isinstance(error, StoreError)
        else HTTPStatus.INTERNAL_SERVER_ERROR
    )


async def _error(request: Request, error: Exception) -> Response:
    fields = error_fields(error)
    broker = request.app.state.brokers.get(request.path_params.get("broker"))
    if broker is not None and isinstance(error, DamageError):
        broker.note_damage(error)
    is_bug = fields["status"] == HTTPStatus.INTERNAL_SERVER_ERROR
    if is_bug and not isinstance(error, BrokenOffError):
        _log.error("%s: %s", request.scope["path"], error, exc_info=error)
    headers = error.headers if isinstance(error, HTTPException) else None
    if request.scope["path"].startswith("/api/"):
        response = json_response(fields, fields["status"])
    else:
        data = {**fields, "broker": None if broker is None else broker.name}
        response = render(request, "error.html", data, fields["status"])
    response.headers.update(headers or {})
    return response


ERROR_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _error,
    StoreError: _error,
    Exception: _error,
}


# --- filters of the templates --------------------------------------------------------------------


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC; as a number if outside the calendar."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(milliseconds: float) -> str:
    """Return a duration in its two largest units."""
    if milliseconds < _KILO:
        return f"{milliseconds:.0f} ms"
    seconds = int(milliseconds // _KILO)
    for unit, name, below, below_name in (
        (86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"),
    ):  # fmt: skip
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // below} {below_name}"
    return f"{milliseconds / _KILO:.1f} s"


def url(text: str) -> str:
    """Return text as one segment of a path: percent-encoded, "/" too.

    A file name that is not UTF-8 keeps its bytes; any other lone surrogate becomes ``?``.
    """
    try:
        return quote(text, safe="", errors="surrogateescape")
    except UnicodeEncodeError:
        return quote(text, safe="", errors="replace")


def url_query(values: Mapping[str, object] | Iterable[tuple[str, object]]) -> str:
    """Return names and values as the query of a URL."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return "&".join(f"{url(str(name))}={url(str(value))}" for name, value in pairs)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "urlencode": url_query,
        "time": time_text,
        "size": size_text,
        "duration": duration_text,
        "number": lambda value: f"{value:,}",
        "url": url,
        "printable": lambda text: printable(str(text)),
        "printable_lines": lambda text: printable(str(text), kept="\n\t"),
    }
    return environment


ENVIRONMENT = _environment()
