"""Limits on connections, and on clients that do not read."""

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from reput.console import server
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import config_from, load_config
from tests.reput.console.conftest import Made
from tests.support.consoles import SECONDS, connect, console, source, wait_until
from tests.support.stores.written import CONF, make_store


def test_a_client_that_does_not_read_is_disconnected(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its search ends, and its slot is free again."""
    monkeypatch.setattr(server, "_SLOW_SECONDS", 0.3)
    with connect(made.console) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(b"GET /api/brokers/b/messages?format=jsonl HTTP/1.1\r\nHost: localhost\r\n\r\n")
        deadline = time.monotonic() + SECONDS
        with suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() < deadline:
                s.send(b"\r\n")
                time.sleep(0.05)
        assert time.monotonic() < deadline
    wait_until(lambda: not made.console.app.state.searches.running)


def test_connections_are_limited_from_the_moment_they_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 9)
    make_store(tmp_path, 1)
    with console(source(tmp_path)) as c, ExitStack() as stack:
        assert c.get("/healthz").status_code == 200

        def another() -> socket.socket:
            return stack.enter_context(connect(c))

        idle = [another() for _ in range(8)]  # the client above has one too
        further = [another() for _ in range(50)]
        assert [s.recv(12) for s in further] == [b"HTTP/1.1 503"] * 50
        assert c.get("/healthz").status_code == 200
        idle[0].close()
        wait_until(lambda: _answers(another()))


def _answers(s: socket.socket) -> bool:
    s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    try:
        return s.recv(12) == b"HTTP/1.1 200"
    except ConnectionResetError:
        return False


def test_refusals_leave_the_event_loop_time_for_its_clients() -> None:
    with server.listen("127.0.0.1", 0, connections_max=1) as listening, ExitStack() as stack:
        listening.connections_max = 0
        address = listening.getsockname()
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(40)]
        with pytest.raises(BlockingIOError):
            listening.accept()
        assert clients[0].recv(12) == b"HTTP/1.1 503"
        with pytest.raises(BlockingIOError):
            clients[-1].recv(12, socket.MSG_DONTWAIT)  # its turn is the next one


def test_a_client_that_reads_slowly_without_a_pause_gets_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads for many times as long as a client that does not read may stay."""
    monkeypatch.setattr(server, "_SLOW_SECONDS", 1.0)
    conf = CONF | {"mappedFileSizeCommitLog": str(64 << 20)}
    config = config_from(conf, version=load_config(Path("none")).version, origin="test")
    with CommitLogWriter(tmp_path, config) as writer:
        writer.append(NewMessage("T", 0, bytes(16 << 20), make_properties()))
    (tmp_path / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in conf.items()))
    with console(source(tmp_path)) as c, connect(c) as s:
        s.sendall(b"GET /brokers/b/messages/0/body HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = 0
        while received < 16 << 20:
            data = s.recv(1 << 18)
            assert data, received
            received += len(data)
            time.sleep(0.06)  # the client reads slowly
