"""The endpoint of ``--metrics-port``: /metrics and /healthz beside a running query.

It is read-only. On a loopback address it checks the Host header, so that no web page can read it
through a name that resolves to this machine. The paths and answers are those of ``reput serve``.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import TracebackType

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from reput.console.answers.budget import Budget, Leases
from reput.console.metrics.samples import Measure, metrics_response
from reput.console.security import LOOPBACK_NAMES, host_name, is_loopback, refuse
from reput.console.server import listen, serve

_CLOSE_SECONDS = 5.0
_ANSWERS_BYTES = 128 * 1024 * 1024  # of scrapes that are answered at a time
_CONNECTIONS_MAX = 64  # of scrapers; the query needs the other descriptors
Fault = Callable[[], str]


class MetricsEndpoint:
    """Serves what its sources measure, in a thread of its own, until it is closed.

    Binds at once, and answers /healthz from then on. Raises ConfigError if it cannot listen there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = listen(host, port, "--metrics-", _CONNECTIONS_MAX)
        self._host, self._port = self._socket.getsockname()[:2]
        self._hosts = LOOPBACK_NAMES | {host.lower(), self._host}
        self._sources: tuple[tuple[Measure, Fault], ...] = ()
        self._stop = threading.Event()
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
        return is_loopback(self._host)

    def show(self, measure: Measure, fault: Fault) -> None:
        """Serve these samples too; ``fault`` returns why a query is unhealthy, "" if it is not."""
        self._sources = (*self._sources, (measure, fault))

    def close(self) -> None:
        """End the thread and release the port."""
        self._stop.set()
        self._thread.join(_CLOSE_SECONDS)
        self._socket.close()

    def app(self) -> Starlette:
        """Return the application."""
        return Starlette(
            routes=[
                Route("/metrics", self._checked(self._metrics)),
                Route("/healthz", self._checked(self._healthz)),
            ],
            middleware=[Middleware(Leases, budget=Budget(_ANSWERS_BYTES), refuse=refuse)],
        )

    def _metrics(self, _request: Request) -> Response:
        return metrics_response([measure for measure, _ in self._sources])

    def _healthz(self, _request: Request) -> Response:
        faults = [*dict.fromkeys(text for _, fault in self._sources if (text := fault()))]
        return PlainTextResponse("\n".join(faults or ["ok"]) + "\n", 503 if faults else 200)

    def _checked(self, answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def checked(request: Request) -> Response:
            if self.is_loopback and host_name(request.headers.get("host", "")) not in self._hosts:
                return PlainTextResponse("misdirected request: unknown Host\n", 421)
            response = answer(request)
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        return checked

    def _run(self) -> None:
        # Here and in the threads started here: the main thread blocks SIGINT while Spark starts,
        # and no other thread may receive it then.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        serve(self.app(), self._socket, self._stop.wait)
