"""The HTTP server of the console: uvicorn in a thread, with limits on slow clients."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from store.errors import ConfigError

CONNECTIONS_MAX = 512
_HEADER_BYTES_MAX = 32 * 1024
_KEEP_ALIVE_SECONDS = 10
_REQUEST_SECONDS = 10.0  # for the first or the next request to arrive whole
_SLOW_SECONDS = 30.0  # without any progress of a client that does not read


def listen(host: str, port: int, options: str = "--") -> socket.socket:
    """Return a listening socket; port 0 is any free port. Raises ConfigError.

    ``options`` is how the names of the options for host and port begin.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS_MAX)
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else str(e)
        raise ConfigError(
            f"cannot listen on {options}host {host} {options}port {port}: {reason}"
        ) from e


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
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=0,
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
    )
    # Errors of the app are logged by its own handler, with escapes; invalid requests are noise.
    for name in ("uvicorn.error", "asyncio"):  # asyncio: a client has left
        logging.getLogger(name).setLevel(logging.CRITICAL)
    server = uvicorn.Server(config)
    # Outside the main thread uvicorn leaves the signals alone.
    thread = threading.Thread(target=server.run, args=([listening],), name="reput-http")
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
        """Note that the client does not read as fast as it is sent to."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(_SLOW_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client has read on."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)

    def _cancel_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
