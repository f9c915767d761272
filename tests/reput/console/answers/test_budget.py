"""Answers hold leases of one budget until they are sent; what finds no room is refused."""

import asyncio
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from reput.console import search_endpoints
from reput.console.answers import budget as budgets
from reput.console.answers.budget import SLICE_BYTES, STREAM_BYTES, WORK_BYTES, Budget, Leases
from reput.console.metrics.samples import Samples
from reput.console.security import refuse
from reput.console.server import listen
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import config_from, load_config
from store.layout import SYS_COMPRESSED
from tests.reput.cli.test_serve import start, url_of
from tests.support.consoles import SECONDS, Console, connect, console, source, wait_until
from tests.support.stores.written import CONF, make_store

MEBIBYTE = 1 << 20
BODY = b"some text, " * (60 * MEBIBYTE // 11)


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """Yield a console whose answers wait for memory for a short time."""
    monkeypatch.setattr(budgets, "_WAIT_SECONDS", 0.2)
    make_store(tmp_path, 300)
    with console(source(tmp_path)) as c:
        yield c


def budget_of(shown: Console) -> Budget:
    budget: Budget = shown.app.state.budget
    return budget


def make_large(store_root: Path) -> None:
    """Write a message whose body decompresses to 60 MiB."""
    conf = CONF | {"mappedFileSizeCommitLog": str(MEBIBYTE)}
    config = config_from(conf, version=load_config(Path("none")).version, origin="test")
    with CommitLogWriter(store_root, config) as writer:
        body = zlib.compress(BODY)
        writer.append(NewMessage("T", 0, body, make_properties(), sys_flag=SYS_COMPRESSED))
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in conf.items()))


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/groups",
        "/messages/0",
        "/messages/0/body",
        "/messages?run=1",
        "/messages?format=sse",
        "/messages?format=jsonl",
        "/messages",
        "/messages/1",
        "/nothing",
        "/pending",
        "/health",
        "/tail?n=0",
    ],
)
def test_an_answer_returns_its_lease(shown: Console, path: str) -> None:
    for url in (f"/brokers/b{path}", f"/api/brokers/b{path}", "/metrics"):
        with shown.client.stream("GET", url) as response:
            if response.headers["content-type"].startswith("text/event-stream"):
                assert next(response.iter_lines())
                wait_until(lambda: budget_of(shown).used in (0, STREAM_BYTES))
            else:
                response.read()
        shown.client.head(url)
    wait_until(lambda: budget_of(shown).used == 0)


def test_an_answer_that_finds_no_room_is_refused(shown: Console) -> None:
    budget = budget_of(shown)
    budget.used = budget.size
    for path in ("/brokers/b", "/api/brokers/b", "/brokers/b/messages/0/body", "/metrics"):
        response = shown.get(path)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert "content-security-policy" in response.headers
    assert shown.get("/api/brokers/b").json()["status"] == 503
    for path in ("/healthz", "/static/style.css"):
        assert shown.get(path).status_code == 200
    budget.used = 0
    assert shown.get("/brokers/b").status_code == 200


def test_answers_wait_for_room_in_turn() -> None:
    """What needs less room than there is does not wait behind what needs more."""

    async def run() -> list[str]:
        budget, order = Budget(), []

        async def ask(name: str, size: int, *, is_large: bool = False) -> None:
            await budget.take(size, is_large=is_large)
            order.append(name)

        budget.used = budget.size - 10
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("large", 11, is_large=True))
            tasks.create_task(ask("first", 8))
            tasks.create_task(ask("second", 8))
            await asyncio.sleep(0)
            assert order == ["first"]
            budget.give(8)
            await asyncio.sleep(0.01)
            assert order == ["first", "second"]
            budget.give(budget.used)
        return order

    assert asyncio.run(run()) == ["first", "second", "large"]


def test_large_answers_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "_WAIT_SECONDS", 0.2)
    make_large(tmp_path)
    with console(source(tmp_path)) as c:
        budget = budget_of(c)
        assert c.get("/brokers/b/messages/0/body").content == BODY
        wait_until(lambda: budget.used == 0)
        budget.used = budget.large_max
        refused = c.get("/brokers/b/messages/0/body")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert c.get("/brokers/b/messages/0").status_code == 200
        wait_until(lambda: budget.used == budget.large_max)


def test_a_search_leases_what_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JSON answer of many MiB is held until it is read; without room it is refused."""
    monkeypatch.setattr(budgets, "_WAIT_SECONDS", 0.2)
    make_large(tmp_path)
    with console(source(tmp_path)) as c:
        budget = budget_of(c)
        monkeypatch.setattr(search_endpoints, "_JSON_BYTES_MAX", 100 * MEBIBYTE)
        with c.client.stream("GET", "/api/brokers/b/messages") as response:
            next(response.iter_raw())
            assert len(BODY) < budget.used < len(BODY) + MEBIBYTE
        wait_until(lambda: budget.used == 0)
        budget.used = budget.large_max
        refused = c.get("/api/brokers/b/messages")
        assert (refused.status_code, refused.json()["status"]) == (503, 503)
        wait_until(lambda: not c.app.state.searches.running)
        assert c.api("b/messages", topic="none")["messages"] == []
        wait_until(lambda: budget.used == budget.large_max)


def test_a_lease_holds_the_answer_until_the_client_has_read_it(tmp_path: Path) -> None:
    """Its memory is the pieces that exist, not the body."""
    make_large(tmp_path)
    with console(source(tmp_path)) as c:
        with connect(c) as s:
            s.sendall(b"GET /brokers/b/messages/0/body HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert s.recv(12) == b"HTTP/1.1 200"
            time.sleep(0.3)
            assert 4 * MEBIBYTE < budget_of(c).used < 16 * MEBIBYTE
            received = 12
            while received < len(BODY):
                received += len(s.recv(MEBIBYTE))
        wait_until(lambda: budget_of(c).used == 0)


def test_requests_that_wait_for_a_thread_leave_room_for_others(shown: Console) -> None:
    """More of them than the budget has room for at once; a page is answered all the same."""
    budget, go = budget_of(shown), threading.Event()
    budget.size = 4 * WORK_BYTES
    scrape = shown.app.state.metrics

    def slow(samples: Samples) -> None:
        go.wait(SECONDS)
        scrape(samples)

    shown.app.state.metrics = slow
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(httpx.get, f"{shown.url}/metrics", timeout=SECONDS) for _ in range(8)
        ]
        wait_until(lambda: budget.used == WORK_BYTES + 7 * STREAM_BYTES)
        assert shown.get("/brokers/b/health").status_code == 200
        go.set()
        assert {answer.result().status_code for answer in answers} == {200}


def test_a_large_answer_keeps_its_thread_until_it_has_leased_its_size(
    shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few exist at a time, however many clients ask for one and do not read it."""
    budget, made = budget_of(shown), list[int]()

    def large(_: object) -> PlainTextResponse:
        made.append(1)
        return PlainTextResponse(bytes(100 * MEBIBYTE))

    monkeypatch.setattr("reput.console.metrics.console.metrics_response", large)
    with ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(connect(shown))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: budget.used > 100 * MEBIBYTE)
        time.sleep(0.1)
        assert budget.used <= budget.size
        assert len(made) <= 2
    wait_until(lambda: budget.used == 0)


@pytest.mark.parametrize("more_body", [False, True])
def test_an_answer_is_sent_in_slices(*, more_body: bool) -> None:
    content, sent = bytes(range(256)) * 1000, []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": content, "more_body": more_body})
        if more_body:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append((bytes(message.get("body", b"")), message.get("more_body", False)))

    budget = Budget()
    asyncio.run(Leases(app, budget, refuse)({"type": "http", "path": "/"}, receive, send))
    bodies = [body for body, _ in sent]
    assert (b"".join(bodies), budget.used) == (content, 0)
    assert max(map(len, bodies)) == SLICE_BYTES
    assert [more for _, more in sent[1:]] == [True] * (len(sent) - 2) + [False]


def test_the_kernel_buffers_little_for_a_connection() -> None:
    with listen("127.0.0.1", 0) as listening, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted, suppress(BlockingIOError):
            accepted.setblocking(False)
            for _ in range(16):  # to a client that does not read
                accepted.send(bytes(SLICE_BYTES))
            raise AssertionError("the kernel took 1 MiB")


def peak_mb(pid: int) -> float:
    """Return the peak of a process's resident memory, in MB."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) / 1024


def test_clients_that_do_not_read_a_large_body_take_little_memory(tmp_path: Path) -> None:
    """Forty clients ask a real server for 60 MiB each, and do not read them."""
    make_large(tmp_path)
    with ExitStack() as stack:
        server = stack.enter_context(start(f"b={tmp_path}"))
        stack.callback(server.kill)
        host, port = url_of(server).removeprefix("http://").rstrip("/").split(":")
        url = f"http://{host}:{port}/brokers/b"
        assert httpx.get(f"{url}/messages/0", timeout=SECONDS).status_code == 200
        before = peak_mb(server.pid)
        clients = []
        for _ in range(40):
            client = stack.enter_context(socket.create_connection((host, int(port)), SECONDS))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /brokers/b/messages/0/body HTTP/1.1\r\nHost: localhost\r\n\r\n")
            clients.append(client)
        answers = [client.recv(12) for client in clients]
        assert answers.count(b"HTTP/1.1 200") >= 10
        assert set(answers) <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}
        assert httpx.get(url, timeout=SECONDS).status_code == 200
        assert peak_mb(server.pid) - before < 200


def test_a_large_body_that_is_not_compressed_takes_little_memory(tmp_path: Path) -> None:
    """A broker may accept messages of any size: pages, downloads and searches copy none whole."""
    conf = CONF | {"mappedFileSizeCommitLog": str(64 * MEBIBYTE)}
    config = config_from(conf, version=load_config(Path("none")).version, origin="test")
    with CommitLogWriter(tmp_path, config) as writer:
        writer.append(NewMessage("T", 0, BODY, make_properties()))
        writer.append(NewMessage("T", 0, b"another text", make_properties()))
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in conf.items()))
    with console(source(tmp_path), max_body_bytes=8 * MEBIBYTE) as c:
        c.api("b/messages", words="warm")  # loads the kernels
        tracemalloc.start()
        try:
            for path in ("/brokers/b/messages/0", "/api/brokers/b/messages/0", "/metrics"):
                assert c.get(path).status_code == 200
            with c.client.stream("GET", "/brokers/b/messages/0/body") as response:
                assert sum(map(len, response.iter_bytes())) == len(BODY)
            found = c.api("b/messages", words="text")
            assert [m["size"] < 1000 for m in found["messages"]] == [True]
            assert "the body has more than 8388608 bytes" in found["damage"][0]["reason"]
            with c.events("b/tail", n=2) as events:
                assert next(events)[1]["body_head"] == BODY[:200].decode()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < len(BODY) // 2
