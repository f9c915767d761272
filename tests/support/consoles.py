"""A console that serves stores on a free port of this machine, in a thread of the test."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from reput.console.app import create_app
from reput.console.brokers import Broker, BrokerSource
from reput.console.security import ConsoleSettings
from reput.console.server import listen, serve

SECONDS = 20.0  # how long a test waits for anything


@dataclass(frozen=True)
class Console:
    """A running console, and a client for it."""

    url: str
    client: httpx.Client
    brokers: dict[str, Broker]
    app: Starlette

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.client.get(path, params=params or None)

    def api(self, path: str, **params: Any) -> Any:
        """Return an object of the API; `path` is below `/api/brokers/`."""
        response = self.client.get(f"/api/brokers/{path}", params=params or None)
        assert response.status_code == 200, response.text
        return response.json()

    @contextmanager
    def events(self, path: str, **params: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open server-sent events; yield an iterator of their names and data."""
        with self.client.stream("GET", f"/api/brokers/{path}", params=params or None) as response:
            assert response.status_code == 200, response.read()
            yield _events(response.iter_lines())


@contextmanager
def console(*sources: BrokerSource, **settings: Any) -> Iterator[Console]:
    """Serve brokers until the block ends."""
    how = ConsoleSettings(**settings)
    brokers = [Broker(source, how) for source in sources]
    ended = threading.Event()
    with listen("127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        app = create_app(brokers, how)
        arguments = (app, listening, ended.wait)
        thread = threading.Thread(target=serve, args=arguments)
        thread.start()
        limits = httpx.Limits(max_connections=None)
        try:
            with httpx.Client(base_url=url, timeout=SECONDS, limits=limits) as client:
                yield Console(url, client, {broker.name: broker for broker in brokers}, app)
        finally:
            ended.set()
            thread.join()


def source(store: Path, output: Path | None = None, name: str = "b", **how: Any) -> BrokerSource:
    return BrokerSource(name, store, output, **how)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition. Fails after ``SECONDS``."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    name, deadline = "", time.monotonic() + SECONDS
    for line in lines:
        assert time.monotonic() < deadline  # there are heartbeats, so this is reached
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            deadline = time.monotonic() + SECONDS


def connect(console: Console) -> socket.socket:
    host, port = console.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), SECONDS)
