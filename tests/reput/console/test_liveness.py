"""/livez: hangs that a restart may cure, and what is no hang."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reput.console.brokers import Broker
from reput.console.pages import _READS_MAX
from reput.console.parameters import parse_search
from reput.console.search_job import Limits, SearchJob
from store.errors import StoreError
from store.reads.matches import LogFollower
from store.reads.message_search import LogSearch
from tests.support.consoles import Console, console, source, wait_until
from tests.support.stores.written import make_store

HUNG_SECONDS = 0.5


@pytest.fixture
def ended() -> Iterator[threading.Event]:
    """Return an event for which threads of a console wait, until the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def alive(c: Console) -> tuple[int, str]:
    response = c.get("/livez")
    return response.status_code, response.text.partition(" for ")[0].strip()


def test_searches_that_hang_are_found_once_they_hold_every_slot(
    tmp_path: Path, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(_: LogSearch, **__: Any) -> Iterator[Any]:
        ended.wait(60)
        yield from ()

    make_store(tmp_path, 10)
    monkeypatch.setattr(LogSearch, "messages", hang)
    settings = {"searches_max": 2, "client_searches_max": 2, "hung_after": HUNG_SECONDS}
    with ExitStack() as stack:
        c = stack.enter_context(console(source(tmp_path), **settings))
        stack.callback(ended.set)
        params = {"format": "sse"}
        path = "/api/brokers/b/messages"
        stack.enter_context(c.client.stream("GET", path, params=params))
        time.sleep(2 * HUNG_SECONDS)
        wait_until(lambda: alive(c) == (200, "ok"))
        with c.client.stream("GET", path, params=params):
            wait_until(lambda: alive(c) == (503, "searches: silent"))
        # The client has left; its search holds the slot all the same.
        time.sleep(2 * HUNG_SECONDS)
        wait_until(lambda: alive(c) == (503, "searches: silent"))
        assert c.get("/healthz").text == "ok\n"
        ended.set()
        wait_until(lambda: alive(c) == (200, "ok"))


def test_a_search_that_waits_for_its_client_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, 10)
    monkeypatch.setattr("reput.console.search_job._PENDING_BYTES", 1)
    with console(source(tmp_path)) as c:
        query = parse_search(QueryParams())
        job = SearchJob(c.brokers["b"], query, lambda _: ("text",), Limits())
        job.run()
        assert (job.found, job.reason) == (1, "")
        job.stop.asked_at = 0.0
        assert job.silent_seconds() == 0.0
        job.finish()
        wait_until(lambda: job._is_closed)


def test_a_monitor_that_hangs_is_found(
    tmp_path: Path, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, 10)
    monkeypatch.setattr(LogFollower, "poll", lambda _: ended.wait(60))
    with console(source(tmp_path), hung_after=HUNG_SECONDS) as c:
        wait_until(lambda: alive(c) == (503, "b: the log: silent"))
        assert c.get("/healthz").text == "ok\n"
        ended.set()


def test_a_log_that_cannot_be_read_is_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: LogFollower) -> None:
        raise StoreError("damaged")

    make_store(tmp_path, 10)
    monkeypatch.setattr(LogFollower, "poll", fail)
    monkeypatch.setattr("reput.console.monitor._RETRY_SECONDS", HUNG_SECONDS / 5)
    with console(source(tmp_path), hung_after=HUNG_SECONDS) as c:
        wait_until(lambda: c.brokers["b"].monitor.error() is not None)
        time.sleep(2 * HUNG_SECONDS)
        wait_until(lambda: alive(c) == (200, "ok"))


def test_pages_that_hang_are_found_once_they_hold_every_thread(
    tmp_path: Path, ended: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(_: Broker) -> dict[str, Any]:
        ended.wait(60)
        return {}

    make_store(tmp_path, 10)
    monkeypatch.setattr(Broker, "status", hang)
    with (
        console(source(tmp_path), hung_after=HUNG_SECONDS) as c,
        ThreadPoolExecutor(_READS_MAX) as pool,
    ):
        path = "/api/brokers/b/status"
        first = [pool.submit(c.get, path) for _ in range(_READS_MAX - 1)]
        time.sleep(2 * HUNG_SECONDS)
        wait_until(lambda: alive(c) == (200, "ok"))
        last = pool.submit(c.get, path)
        wait_until(lambda: alive(c) == (503, "pages: silent"))
        ended.set()
        assert {f.result().status_code for f in (*first, last)} == {200}
        wait_until(lambda: alive(c) == (200, "ok"))


def test_an_event_loop_that_hangs_does_not_answer(tmp_path: Path, ended: threading.Event) -> None:
    asked = threading.Event()

    async def hang(_: Request) -> Response:
        asked.set()
        ended.wait(60)
        return Response()

    make_store(tmp_path, 10)
    with console(source(tmp_path)) as c, ThreadPoolExecutor() as pool:
        c.app.router.routes.insert(0, Route("/hang", hang))
        hung = pool.submit(c.get, "/hang")
        wait_until(asked.is_set)
        with pytest.raises(httpx.ReadTimeout):
            c.client.get("/livez", timeout=1.0)
        ended.set()
        assert hung.result().status_code == 200
