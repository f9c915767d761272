"""``reput serve``: its options, its start and its end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from reput.cli import run
from reput.cli.serve import read_token
from reput.cli.stores import parse_store
from reput.console.security import is_loopback
from store.errors import ConfigError, StoreError, StoreIOError
from store.identity import load_identity
from tests.support.commands import REPUT
from tests.support.consoles import SECONDS, wait_until
from tests.support.stores.written import make_store

HEAVY = "import reput.console.app, sys; print(*sorted(m.partition('.')[0] for m in sys.modules))"


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [*REPUT, "serve", *arguments, "--port", "0", "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def url_of(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return str(json.loads(server.stdout.readline())["url"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_0_beside_open_tails(tmp_path: Path, number: int) -> None:
    make_store(tmp_path, 30)
    with start(str(tmp_path)) as server:
        try:
            url = url_of(server)
            name = tmp_path.name
            with httpx.stream("GET", f"{url}api/brokers/{name}/tail") as response:
                assert response.status_code == 200
                server.send_signal(number)
                began = time.monotonic()
                assert server.wait(30) == 0
                assert time.monotonic() - began < 10
        finally:
            server.kill()


FINALIZED = "import atexit, reput.cli\natexit.register(print, 'finalized')\nreput.cli.main()"


def test_the_interpreter_is_not_finalized_under_threads_that_still_compute(tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    command = [sys.executable, "-c", FINALIZED, "serve", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url_of(server)
            server.terminate()
            assert server.wait(30) == 0
            assert server.stdout is not None
            assert server.stdout.read() == ""
        finally:
            server.kill()


STUCK = """
import threading, reput.cli
from reput.console.brokers import Broker
Broker.close = lambda self: threading.Event().wait()
for _ in range(8):
    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
reput.cli.main()
"""


def test_a_signal_ends_it_in_time_where_a_read_is_stuck_and_threads_compute(tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    command = [sys.executable, "-c", STUCK, "serve", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url_of(server)
        server.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.wait(30) == 0
        assert time.monotonic() - began < 7


def test_it_imports_no_spark_no_kafka_and_at_its_start_no_kernels() -> None:
    names = subprocess.run(
        [sys.executable, "-c", HEAVY], capture_output=True, text=True, check=True
    )
    assert not {"pyspark", "py4j", "kafka", "confluent_kafka", "numba", "pyarrow"} & set(
        names.stdout.split()
    )


def test_a_token_is_required_of_clients(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 3)
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    with start(str(tmp_path / "store"), "--token-file", str(token)) as server:
        try:
            url = url_of(server)
            assert httpx.get(f"{url}api/brokers").status_code == 401
            answer = httpx.get(f"{url}api/brokers", auth=("x", "0123456789abcdef"))
            assert answer.status_code == 200
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 is reached from other machines: give --token-file"),
        (["--host", "::"], "--token-file FILE"),
        (["--host", "example.com"], "--allow-remote to let anyone read"),
        (["--allowed-host", "a/b"], "'a/b' is not a host name"),
        (["--token-file", "none"], "cannot read --token-file none"),
        (["--stuck-after", "-1"], "--stuck-after"),
        (["--max-body-bytes", "x"], "--max-body-bytes"),
        (["--output", "a:b", "more"], "--output applies to one STORE"),
        (["more", "more"], "two stores have the name 'more'"),
    ],
)
def test_a_malformed_option_is_named(
    tmp_path: Path,
    options: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "store", 1)
    assert run(["serve", "store", *options]) in (2, 6)
    assert error in capsys.readouterr().err


def test_a_store_without_a_log_keeps_no_other_from_being_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    make_store(good, 3)
    bad.mkdir()
    with start(str(good), f"late={bad}") as process:
        url = url_of(process)
        found = httpx.get(f"{url}api/brokers").json()["brokers"]
        assert [b["broker"] for b in found] == ["good", "late"]
        wait_until(lambda: "commitlog" in str(problems_of(url, "late")))
        assert problems_of(url, "good") == [None]
        assert "late: cannot be read" in httpx.get(f"{url}healthz").text
        process.terminate()
        assert process.wait(SECONDS) == 0
    for stores in ([bad], [f"a={bad}", f"b={bad}"], [good, tmp_path / "missing"]):
        assert run(["serve", *map(str, stores), "--port", "0"]) == 2
        assert re.search("does not exist|is not a directory", capsys.readouterr().err)


def problems_of(url: str, broker: str) -> list[str | None]:
    status = httpx.get(f"{url}api/brokers/{broker}/status").json()
    return [status["problem"], *status["damage"]]


def test_a_port_in_use_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path, 1)
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        assert run(["serve", str(tmp_path), "--port", port]) == 2
    assert f"--port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b", ("", "/a/b", None)),
        ("x=/a/b", ("x", "/a/b", None)),
        ("x=/a:/b", ("x", "/a", "/b")),
        ("/a:/b", ("", "/a", "/b")),
        ("/a=b/c", ("", "/a=b/c", None)),
        ("x=y=/a", ("x", "y=/a", None)),
    ],
)
def test_name_store_and_output(text: str, expected: tuple[str, str, str | None]) -> None:
    name, store, output = parse_store(text)
    assert expected == (name, str(store), None if output is None else str(output))


@pytest.mark.parametrize("text", ["", "x=", "x=:", "/a:", "x=:/b"])
def test_an_empty_path_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        parse_store(text)


def test_an_existing_path_is_taken_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "a=b:c"
    odd.mkdir()
    assert parse_store(str(odd)) == ("", odd, None)
    assert parse_store(f"x={odd}") == ("x", odd, None)


def test_the_name_of_a_broker(tmp_path: Path) -> None:
    assert load_identity(tmp_path).name == tmp_path.name
    (tmp_path / "broker.conf").write_text("brokerName = broker-a\n")
    assert load_identity(tmp_path).name == "broker-a"


@pytest.mark.parametrize(
    ("content", "mode", "error"),
    [
        ("0123456789abcdef", 0o604, "open to all users"),
        ("0123456789abcdef", 0o602, "open to all users"),
        ("short", 0o600, "less than 16 characters"),
        ("", 0o600, "one line"),
        ("0123456789abcdef\n0123456789abcdef\n", 0o600, "one line"),
        ("0123456789\x00abcdef", 0o600, "one line"),
        ("x" * 5000, 0o600, "larger than 4096 bytes"),
    ],
)
def test_a_token_that_is_not_safe_is_refused(
    tmp_path: Path, content: str, mode: int, error: str
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(StoreError, match=error):
        read_token(path)


def test_a_token_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for path in (Path("/dev/null"), tmp_path / "pipe"):
        with pytest.raises(StoreIOError, match="not a regular file"):
            read_token(path)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False)],
)  # fmt: skip
def test_loopback(host: str, *, expected: bool) -> None:
    assert expected == is_loopback(host)
