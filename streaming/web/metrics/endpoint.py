"""The endpoint of ``--metrics-port``: /metrics and /healthz beside a running query.

It is read-only. On a loopback address it checks the Host header, so that no web page can read it
through a name that resolves to this machine. The paths and answers are those of ``reput serve``.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

import uvicorn
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from store.errors import ConfigError, StoreIOError
from streaming.web.metrics.samples import Measure, exposition

_CLOSE_SECONDS = 5.0
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
Fault = Callable[[], str]


class MetricsEndpoint:
    """Serves what its sources measure, in a thread of its own, until it is closed.

    Binds at once, and answers /healthz from then on. Raises ConfigError for a host that has no
    address, StoreIOError if the address is in use or may not be used.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = _listen(host, port)
        self._host, self._port = self._socket.getsockname()[:2]
        self._hosts = _LOOPBACK_HOSTS | {host.lower(), self._host}
        self._source: tuple[Measure, Fault] | None = None
        config = uvicorn.Config(
            self.app(),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http="h11",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            limit_concurrency=64,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="reput-metrics", daemon=True)
        self._thread.start()

    def __enter__(self) -> MetricsEndpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}/metrics"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self._host).is_loopback

    def show(self, measure: Measure, fault: Fault) -> None:
        """Serve these samples; ``fault`` returns why the query is unhealthy, "" if it is not."""
        self._source = measure, fault

    def close(self) -> None:
        """End the thread and release the port."""
        self._server.should_exit = True
        self._thread.join(_CLOSE_SECONDS)
        self._socket.close()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/metrics", self._checked(self._metrics)),
                Route("/healthz", self._checked(self._healthz)),
            ]
        )

    def _metrics(self, _request: Request) -> Response:
        measures = [] if self._source is None else [self._source[0]]
        return Response(exposition(measures), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    def _healthz(self, _request: Request) -> Response:
        fault = "" if self._source is None else self._source[1]()
        return PlainTextResponse(f"{fault or 'ok'}\n", 503 if fault else 200)

    def _checked(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def checked(request: Request) -> Response:
            if self.is_loopback and _host_of(request) not in self._hosts:
                return PlainTextResponse("misdirected request: unknown Host\n", 421)
            response = answer(request)
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        return checked

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def _host_of(request: Request) -> str:
    """Return the Host header without its port, "" if it is malformed."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as e:
        raise ConfigError(f"--metrics-host {host!r} has no address: {e}") from e
    family, _, _, _, address = found[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as e:
        listener.close()
        raise StoreIOError("listen at", f"{host}:{port}", e) from e
    return listener
