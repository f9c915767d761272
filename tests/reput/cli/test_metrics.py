"""--metrics-port of a real dispatch: its metrics, its health, and a port that is taken."""

import json
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import prometheus_client.parser as text_parser
import pytest

from reput.cli import run
from store.output.progress import read_progress
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT
from tests.support.stores.written import TEMPLATES, make_store, small_config

SECONDS = 120.0
FILES_MAX, IDLE = 1024, 1500  # open files of a process, and connections to it


@contextmanager
def dispatching(
    store: Path, output: Path, *options: str, files_max: int | None = None
) -> Iterator[str]:
    """Run a dispatch that serves metrics; yield their URL. It must stop cleanly.

    ``files_max`` is how many files each of its processes may have open.
    """
    command = [*REPUT, "dispatch", str(store), "--output", str(output), "--json", *options]
    command += ["--metrics-port", "0"]
    if files_max is not None:
        command = ["sh", "-c", f'ulimit -n {files_max}; exec "$@"', "sh", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            event = json.loads(process.stdout.readline())
            assert event["event"] == "metrics"
            yield event["url"]
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()


def scrape(url: str) -> dict[str, float]:
    """Map the name of each sample, with its labels of a batch, to the value."""
    text = httpx.get(url, trust_env=False).raise_for_status().text
    return {
        "/".join([s.name, *(s.labels[k] for k in ("query", "phase", "le") if k in s.labels)]): (
            s.value
        )
        for family in text_parser.text_string_to_metric_families(text)
        for s in family.samples
    }


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.process
@pytest.mark.spark
def test_a_dispatch_serves_what_it_has_done_and_its_health(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, 300)
    with dispatching(store, tmp_path / "out", "--stuck-after", "30") as url:
        health = url.removesuffix("metrics") + "healthz"
        wait_for(lambda: scrape(url).get("reput_dispatch_messages_total") == 300, "300 messages")
        phase = "reput_batch_duration_milliseconds_count/dispatch/addBatch"
        wait_for(lambda: scrape(url).get(phase, 0) >= 1, "a batch by phase")
        found = scrape(url)
        size = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
        assert 0 < found["reput_dispatch_bytes_total"] <= size
        assert found["reput_batches_total/dispatch"] >= 1
        for name in (
            "reput_storage_dispatch_behind_bytes",
            "reput_storage_dispatch_behind_milliseconds",
            "reput_dispatch_stuck_milliseconds",
            "reput_lost_bytes_total/dispatch",
            "reput_expired_files_total",
            "reput_recoveries",
            "reput_store_read_failed",
        ):
            assert found[name] == 0.0, name
        assert found["reput_storage_message_reserve_time_milliseconds"] > 0
        assert found["reput_storage_size_bytes"] > 0
        assert (
            found["reput_batch_duration_milliseconds_bucket/dispatch/triggerExecution/+Inf"]
            == found["reput_batch_duration_milliseconds_count/dispatch/triggerExecution"]
        )
        assert httpx.get(health, trust_env=False).text == "ok\n"
        with BulkWriter(store, small_config()) as writer:
            writer.append_many(TEMPLATES, 50)
        wait_for(lambda: scrape(url)["reput_dispatch_messages_total"] == 350, "50 more messages")


@pytest.mark.process
@pytest.mark.spark
def test_idle_connections_do_not_end_a_dispatch(tmp_path: Path) -> None:
    """More clients than the process may open files; every batch is committed all the same."""
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 300)
    with ExitStack() as stack:
        _raise_files_max(stack)
        url = stack.enter_context(dispatching(store, output, files_max=FILES_MAX))
        wait_for(lambda: _committed(output) == 300, "300 messages")
        port = httpx.URL(url).port
        writer = stack.enter_context(BulkWriter(store, small_config()))
        for batch in range(1, 6):
            for _ in range(IDLE // 5):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
            writer.append_many(TEMPLATES, 50)
            wait_for(lambda n=300 + 50 * batch: _committed(output) == n, f"batch {batch}")
        wait_for(lambda: _answers(url), "an answer, once idle clients are disconnected")


def _committed(output: Path) -> int:
    progress = read_progress(output)
    return 0 if progress is None else progress.messages


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _raise_files_max(stack: ExitStack) -> None:
    """Let this process open as many files as it may, until the stack ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def test_a_port_in_use_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", 5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        where = [str(tmp_path / "store"), "--output", str(tmp_path / "out")]
        assert run(["dispatch", *where, "--metrics-port", str(port)]) == 2
    assert f"--metrics-port {port}: Address already in use" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_mirror_refuses_a_port_in_use_before_it_connects_to_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", 5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        kafka = ["--kafka-bootstrap", f"127.0.0.1:{port}"]
        assert run(["mirror", str(tmp_path / "store"), *kafka, "--metrics-port", port]) == 2
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert f"--metrics-port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_metrics_beyond_loopback_are_announced_in_one_line(
    tmp_path: Path, host: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [str(tmp_path / "none"), "--output", str(tmp_path / "out")]
    assert run(["dispatch", *where, "--metrics-port", "0", "--metrics-host", host]) == 2
    errors = capsys.readouterr().err
    assert f" metrics url=http://{host}:" in errors
    assert (f" warning metrics_host={host}" in errors) is warned


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--metrics-host", "127.0.0.1"], "--metrics-host needs --metrics-port"),
        (["--metrics-port", "65536"], "--metrics-port"),
        (["--metrics-port", "-1"], "--metrics-port"),
        (
            ["--metrics-port", "0", "--metrics-host", "no such host"],
            "no such host",
        ),
        (["--metrics-port", "0", "--stuck-after", "nan"], "--stuck-after"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", 5)
    where = [str(tmp_path / "store"), "--output", str(tmp_path / "out")]
    assert run(["dispatch", *where, *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
