"""Regular expressions as expensive as the limits allow: they hold up nobody, and can be stopped."""

import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from reput.console.search_job import SearchJob
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig, config_from, load_config
from tests.reput.cli.test_serve import start, url_of
from tests.support.commands import REPUT
from tests.support.consoles import Console, console, source, wait_until
from tests.support.stores.written import CONF

EXPENSIVE = "(?:" + "[ab]?" * 140 + "){11}c"  # 160 s of CPU for 1 MB
_CONF = CONF | {"mappedFileSizeCommitLog": str(16 << 20)}


def config() -> StoreConfig:
    return config_from(_CONF, version=load_config(Path("none")).version, origin="test")


def append(store_root: Path, topic: str, size: int, count: int) -> None:
    body = bytes(random.Random(1).choices(b"ab", k=size))
    with CommitLogWriter(store_root, config()) as writer:
        for _ in range(count):
            writer.append(NewMessage(topic, 0, body, make_properties(tags="TagA")))


@pytest.fixture(params=[4096, 1 << 20], ids=["small bodies", "large bodies"])
def store_root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    append(tmp_path, "Costly", request.param, (4 << 20) // request.param)
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in _CONF.items()))
    return tmp_path


@pytest.fixture
def shown(store_root: Path) -> Iterator[Console]:
    with console(source(store_root)) as c:
        yield c


@pytest.mark.parametrize("form", ["sse", "json", "jsonl"])
def test_searches_end_when_their_clients_leave(shown: Console, form: str) -> None:
    path, how = "/api/brokers/b/messages", {"body": EXPENSIVE, "format": form}
    leave, threads = threading.Event(), []

    def ask() -> None:
        with httpx.Client(base_url=shown.url, timeout=2.0) as client:
            try:
                with client.stream("GET", path, params=how):
                    leave.wait()
            except httpx.ReadTimeout:
                leave.wait()

    for _ in range(3):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    wait_until(lambda: shown.app.state.searches.running == 3)
    assert shown.get(path, format=form).status_code == 429
    began = time.monotonic()
    assert shown.get("/brokers/b").status_code == 200
    assert time.monotonic() - began < 5.0
    leave.set()
    for thread in threads:
        thread.join()
    began = time.monotonic()
    wait_until(lambda: shown.app.state.searches.running == 0)
    assert time.monotonic() - began < 10.0


def test_an_expensive_tail_ends_and_holds_up_no_other(store_root: Path, shown: Console) -> None:
    monitor = shown.brokers["b"].monitor
    with ExitStack() as stack:
        costly = [
            stack.enter_context(shown.events("b/tail", n=0, body=f"{EXPENSIVE}{n}"))
            for n in range(6)
        ]
        plain = stack.enter_context(shown.events("b/tail", n=0, topic="Plain"))
        wait_until(lambda: len(monitor.tails) == 7)
        append(store_root, "Costly", 1 << 20, 3)
        append(store_root, "Costly", 4096, 500)
        append(store_root, "Plain", 10, 5)
        began = time.monotonic()
        assert [next(plain)[0] for _ in range(5)] == ["message"] * 5
        assert time.monotonic() - began < 4.0
        assert monitor.status()["messages_in"] == 508
        asked = int(time.time() * 1000)
        wait_until(lambda: monitor.status()["monitor_timestamp"] > asked)
        for events in costly:
            name, data = next(events)
            assert (name, "take too long" in data["error"]) == ("ended", True)
            assert next(events, None) is None
        append(store_root, "Plain", 10, 5)
        assert [next(plain)[0] for _ in range(5)] == ["message"] * 5
    wait_until(lambda: shown.app.state.tails._free == 200)


def test_a_tail_with_an_expensive_condition_starts_all_the_same(shown: Console) -> None:
    """The search for its newest messages ends after some seconds."""
    began = time.monotonic()
    with shown.events("b/tail", body=EXPENSIVE):
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) == 1)
    wait_until(lambda: len(shown.brokers["b"].monitor.tails) == 0)
    assert time.monotonic() - began < 10.0


def test_a_search_with_an_expensive_condition_does_not_hang(store_root: Path) -> None:
    settings = {"searches_max": 1, "hung_after": 3.0}
    with (
        console(source(store_root), **settings) as c,
        c.events("b/messages", body=EXPENSIVE, format="sse"),
    ):
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            assert c.get("/livez").text == "ok\n"
            time.sleep(0.1)
        assert c.app.state.searches.running == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_console_amid_matches(store_root: Path, number: int) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(start(f"b={store_root}"))
        stack.callback(server.kill)
        client = stack.enter_context(httpx.Client(base_url=url_of(server), timeout=30))
        for _ in range(3):
            how = {"body": EXPENSIVE, "format": "sse"}
            stack.enter_context(client.stream("GET", "/api/brokers/b/messages", params=how))
        time.sleep(0.5)  # amid a match, wherever it is
        server.send_signal(number)
        began = time.monotonic()
        assert server.wait(30) == 0
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_search_of_the_command_amid_a_match(store_root: Path, number: int) -> None:
    command = [*REPUT, "search", str(store_root), "--body", EXPENSIVE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as search:
        wait_until(lambda: _catches(search.pid, signal.SIGTERM))
        time.sleep(0.5)  # amid a match, wherever it is
        assert search.poll() is None
        search.send_signal(number)
        began = time.monotonic()
        _, said = search.communicate(timeout=30)
        assert time.monotonic() - began < 10.0
        assert "interrupted" in said


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has installed a handler."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.findall(r"SigCgt:\s*([0-9a-f]+)", status)[0], 16) >> (number - 1) & 1)


def test_the_end_of_a_paused_search_does_not_hold_up_the_event_loop(
    shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its scan ends in a thread; meanwhile other requests are answered."""
    begun, ended = threading.Event(), threading.Event()
    close = SearchJob._close

    def slow_close(job: SearchJob) -> None:
        begun.set()
        assert ended.wait(10)
        close(job)

    monkeypatch.setattr(SearchJob, "_close", slow_close)
    with shown.client.stream("GET", "/api/brokers/b/messages", params={"format": "jsonl"}) as r:
        next(r.iter_raw())
    assert begun.wait(10)
    try:
        assert shown.get("/healthz").text == "ok\n"
    finally:
        ended.set()
    wait_until(lambda: shown.app.state.searches.running == 0)
