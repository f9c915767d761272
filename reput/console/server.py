"""The HTTP server of the console: uvicorn in a thread, with limits on connections and slow clients.

Connections count from the moment they are accepted. Above the limit one is closed at once, so that
clients, idle ones too, leave descriptors for the files of the store.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from store.errors import ConfigError

CONNECTIONS_MAX = 512
_FILES_RESERVE = 512  # descriptors for files, which a limit on connections leaves over
_CONNECTIONS_MIN = 8
_REFUSALS_MAX = 32  # at a time
_HEADER_BYTES_MAX = 32 * 1024
_KEEP_ALIVE_SECONDS = 10
_REQUEST_SECONDS = 10.0  # for the first or the next request to arrive whole
_SLOW_SECONDS = 30.0  # in which a client reads _SLOW_BYTES at least
_SLOW_BYTES = 64 * 1024
# The kernel doubles them, and otherwise lets each grow to megabytes, which count as memory of the
# container too.
_BUFFERS = {socket.SO_SNDBUF: 128 * 1024, socket.SO_RCVBUF: 64 * 1024}
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 21\r\nconnection: close\r\n\r\ntoo many connections\n"
)


class LimitedSocket(socket.socket):
    """A listening socket with a limit on its open connections."""

    def __init__(self, listening: socket.socket, connections_max: int) -> None:
        super().__init__(fileno=listening.detach())
        self.connections_max = connections_max
        self._connections: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection; above the limit, refuse it with 503 and take the next one.

        After some refusals, BlockingIOError returns to the event loop, which has more to do.
        """
        for _ in range(_REFUSALS_MAX):
            connection, address = super().accept()
            if len(self._connections) >= self.connections_max:
                self._connections = [c for c in self._connections if c.fileno() >= 0]
            if len(self._connections) < self.connections_max:
                self._connections.append(connection)
                return connection, address
            with connection, suppress(OSError):
                connection.send(_TOO_MANY, socket.MSG_DONTWAIT)
        raise BlockingIOError


def listen(
    host: str, port: int, options: str = "--", connections_max: int | None = None
) -> LimitedSocket:
    """Return a listening socket; port 0 is any free port. Raises ConfigError.

    ``options`` is the prefix of the names of the options for host and port. The connections are
    ``CONNECTIONS_MAX`` by default, and fewer if the process may not open enough files.
    """
    wanted = CONNECTIONS_MAX if connections_max is None else connections_max
    limit = max(min(wanted, _files_max() - _FILES_RESERVE), _CONNECTIONS_MIN)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
        for option, size in _BUFFERS.items():  # connections inherit them
            opened.setsockopt(socket.SOL_SOCKET, option, size)
        return LimitedSocket(opened, limit)
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise ConfigError(
            f"cannot listen on {options}host {host} {options}port {port}: {reason}"
        ) from e


def _files_max() -> int:
    """Return how many files the process may open, after it has raised its limit if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def serve(app: Starlette, listening: socket.socket, wait: Callable[[], object]) -> None:
    """Serve an app in a thread until ``wait`` returns; then end all connections at once."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        loop="asyncio",  # it accepts through the socket object, which has the limit
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=0,
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
    )
    # Errors of the app are logged by its own handler, with escapes; invalid requests are noise.
    for name in ("uvicorn.error", "asyncio"):  # asyncio: a client has left
        logging.getLogger(name).setLevel(logging.CRITICAL)
    server = uvicorn.Server(config)
    # Outside the main thread uvicorn leaves the signals alone.
    thread = threading.Thread(
        target=server.run, args=([listening],), name="reput-http", daemon=True
    )
    thread.start()
    try:
        wait()
    finally:
        server.should_exit = True
        thread.join()


class _Protocol(H11Protocol):
    """HTTP/1.1 that closes connections whose client sends or reads too slowly."""

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request, other than uvicorn declares
        if cycle is not None and not cycle.response_complete:
            self._cancel_request_timer()
        elif self._request_timer is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than data is sent."""
        super().pause_writing()
        if self._write_timer is None:
            self._await_reading()

    def resume_writing(self) -> None:
        """Note that the client has resumed reading."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_reading(self) -> None:
        """Disconnect the client unless it resumes reading; nothing more is buffered meanwhile."""
        waiting = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(_SLOW_SECONDS, self._check_reading, waiting)

    def _check_reading(self, waited: int) -> None:
        if waited - self.transport.get_write_buffer_size() >= _SLOW_BYTES:
            self._await_reading()
        else:
            self.transport.abort()

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
