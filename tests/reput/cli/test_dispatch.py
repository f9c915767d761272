"""`reput dispatch` and `reput demo` as processes: exit codes, signals and output."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from reput.cli import run
from store.output.progress import read_progress
from tests.support.cases import first_cases
from tests.support.commands import REPUT, reput
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.sessions import Run
from tests.support.stores.written import corrupt, make_store

pytestmark = pytest.mark.spark


@pytest.mark.process
@pytest.mark.parametrize("number", first_cases([signal.SIGTERM, signal.SIGINT]))
def test_a_signal_stops_a_dispatch_cleanly_and_it_resumes_also_past_damage(
    tmp_path: Path, number: signal.Signals
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 3_000)
    damaged = sorted((store / "commitlog").iterdir())[-2]
    corrupt(damaged, 8)
    arguments = ["dispatch", str(store), "--output", str(output), "--max-bytes-per-trigger", "20k"]
    with subprocess.Popen(
        [*REPUT, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " progress " in line:
                break
        os.killpg(process.pid, number)  # as a terminal does, and `timeout`
        rest = process.stderr.read()
        assert process.wait() == 0, rest
    assert " stop messages=" in rest
    assert "Traceback" not in rest
    assert not (output / "abort").exists()
    progress = read_progress(output)
    assert progress is not None
    assert progress.reput_from_offset > 0
    assert progress.reput_from_offset < int(damaged.name)
    options = ["--available-now", "--fail-on-data-loss", "false", "--json"]
    done = reput("dispatch", store, "--output", output, *options)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    named = [e for e in events if e["event"] in ("start", "stop", "lost")]
    assert [e["event"] for e in named] == ["start", "stop", "lost"]
    assert named[1]["messages"] == 2_999 - progress.messages
    dispatch_all(store, tmp_path / "expected", config, fail_on_data_loss=False)
    assert_same_store(output, tmp_path / "expected")


def test_damage_exits_with_3_and_one_clear_message(run_spark: Run, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 1_000)
    path = store / "commitlog" / f"{0:020d}"
    corrupt(path, 4)
    code, _, errors = run_spark("dispatch", store, "--output", output, "--available-now")
    assert code == 3, errors
    message = [line for line in errors.splitlines() if line.startswith("reput: ")]
    assert len(message) == 1
    assert f"damaged: {path} at offset 0: no record starts here (bad magic)" in message[0]
    assert "failOnDataLoss=false" in message[0]
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--broker-version", "3.0"], 2, "3.0"),
        (["--max-bytes-per-trigger", "many"], 2, "many"),
        (["--fail-on-data-loss", "perhaps"], 2, "perhaps"),
        (["--from-time", "soon"], 2, "soon"),
        (["--trigger-interval", "banana"], 2, "banana"),
        (["--available-now", "--trigger-interval", "banana"], 2, "banana"),
        (["--nonsense"], 2, "--nonsense"),
        (["--broker-conf", "missing.conf"], 6, "missing.conf"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path,
    arguments: list[str],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_store(tmp_path / "store", 5)
    command = ["dispatch", str(tmp_path / "store"), "--output", str(tmp_path / "out"), *arguments]
    assert run(command) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out" / "consumequeue").exists()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ("enableDLegerCommitLog=true", "DLedger"),
        ("enableCalcFilterBitMap=true", "bitmaps"),
        (
            "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore",
            "tiered store",
        ),
    ],
)
def test_stores_of_other_kinds_exit_with_5(
    tmp_path: Path, conf: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", 5)
    (tmp_path / "store" / "broker.conf").write_text(conf + "\n")
    assert run(["dispatch", str(tmp_path / "store"), "--output", str(tmp_path / "out")]) == 5
    assert says in capsys.readouterr().err


def test_no_java_exits_with_7_and_releases_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "store", 5)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    done = reput("dispatch", tmp_path / "store", "--output", tmp_path / "out", "--available-now")
    assert done.returncode == 7, done.stderr
    assert f"JAVA_HOME={tmp_path}/no-java has no bin/java" in done.stderr
    assert not (tmp_path / "out" / "abort").exists()


def test_an_empty_log_is_waited_for_and_a_signal_while_spark_starts_is_a_clean_stop(
    tmp_path: Path,
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    arguments = ["dispatch", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
    with subprocess.Popen(
        [*REPUT, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        warning = next(line for line in process.stderr if " warning " in line)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 0, rest
    assert f"{tmp_path}/store/commitlog" in warning
    assert "Traceback" not in rest
    assert not (tmp_path / "out" / "abort").exists()


def test_the_current_log_of_a_directory_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    done = reput("dispatch", tmp_path / "store", "--output", tmp_path / "out", "--available-now")
    assert done.returncode == 2
    assert f"{tmp_path}/store/commitlog holds no commit log file" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_demo_ends_by_itself_and_verifies(tmp_path: Path) -> None:
    done = reput("demo", "--seconds", "1", "--directory", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    assert "equal:" in done.stdout
    assert "What just happened" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert_serves([*shlex.split(last.removeprefix("$ ")), "--port", "0", "--json"])


def assert_serves(command: list[str]) -> None:
    """Assert that a command opens a console with the topics of the demo."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = json.loads(server.stdout.readline())["url"]
            page = httpx.get(url, follow_redirects=True, timeout=60)
            overview = httpx.get(f"{url}api/brokers/demo", timeout=60).json()
        finally:
            server.terminate()
    assert page.status_code == 200
    assert {"OrderTopic", "PaymentTopic"} <= {t["topic"] for t in overview["topics"]}
    assert server.returncode == 0


def changed(change: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `reput` with a patched attribute."""
    program = f"import reput.cli.{change}; from reput.cli import main; main()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_demo_reports_a_dispatch_that_does_not_catch_up(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput.cli.demo._CATCH_UP_SECONDS", 0.0)
    monkeypatch.setattr("reput.cli.demo._end", lambda _: 1 << 60)
    code, _, errors = run_here("demo", "--seconds", "0.5", "--directory", tmp_path / "demo")
    assert code == 3
    assert "reput: the dispatch did not catch up within 0 s" in errors


def test_a_query_that_ends_by_itself_is_an_error(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path / "store", 20)
    monkeypatch.setattr(
        "reput.cli.query_runner.QueryRunner._wait",
        lambda runner, _: runner.queries[0].running.query.stop(),
    )
    code, _, errors = run_here("dispatch", tmp_path / "store", "--output", tmp_path / "out")
    assert code == 7
    assert "Spark ended the query without giving a reason" in errors


FULL_AFTER_STOP = """dispatch
import errno, os, signal, threading
from store.io.disk import Disk
from store.errors import StoreIOError
from streaming.sinks.ordered_sink import BatchSink
stopping, sync = threading.Event(), Disk.sync
BatchSink.stop_waiting = lambda sink: stopping.set()
def full(disk):
    if threading.current_thread() is threading.main_thread():
        return sync(disk)
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.wait(60)
    raise StoreIOError("sync", "out", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
Disk.sync = full"""


@pytest.mark.process
def test_an_error_in_the_last_batch_after_a_signal_is_not_swallowed(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 300)
    done = changed(FULL_AFTER_STOP, "dispatch", store, "--output", output)
    assert done.returncode == 6, done.stderr
    assert "reput: cannot sync out: No space left on device" in done.stderr.splitlines()
    dispatch_all(store, output, config)
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")
