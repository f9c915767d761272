"""`reput dispatch STORE… --output-root`: a query per broker in one session, each on its own."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from reput.cli import query_runner, run
from store.output.progress import read_progress
from streaming.queries.dispatch_query import PreparedDispatch, RunningDispatch
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.sessions import Run
from tests.support.stores.written import TEMPLATES, corrupt, make_store, small_config

pytestmark = pytest.mark.spark

COUNTS = {"alpha": 600, "beta": 900, "gamma": 1_200}


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Write three stores; the second one's name is that of its broker.conf."""
    stores = [tmp_path / "alpha", tmp_path / "other", tmp_path / "gamma"]
    for store_root, count in zip(stores, COUNTS.values(), strict=True):
        make_store(store_root, count)
    with (stores[1] / "broker.conf").open("a") as conf:
        conf.write("brokerName=beta\n")
    return stores


def assert_built(stores: list[Path], output_root: Path, names: list[str]) -> None:
    """Assert that these outputs are those of separate dispatches of their stores."""
    for store, name in zip(stores, names, strict=True):
        expected = output_root.parent / f"expected-{name}"
        dispatch_all(store, expected, small_config())
        assert_same_store(output_root / name, expected)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_three_stores_become_the_files_of_three_dispatches(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, stores: list[Path], tmp_path: Path
) -> None:
    start, started = query_runner.start_spark, []

    def counted(*arguments: Any) -> Any:
        started.append(arguments)
        return start(*arguments)

    monkeypatch.setattr(query_runner, "start_spark", counted)
    where = ["--output-root", tmp_path / "out", "--available-now", "--json"]
    code, out, errors = run_here("dispatch", *stores, *where)
    assert code == 0, errors
    assert len(started) == 1
    stops = {e["broker"]: e["messages"] for e in events(out) if e["event"] == "stop"}
    assert stops == COUNTS
    assert {e.get("broker") for e in events(out)} == {*COUNTS}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [*COUNTS]
    assert_built(stores, tmp_path / "out", [*COUNTS])


def test_a_damaged_store_ends_its_own_query_alone(
    run_here: Run, stores: list[Path], tmp_path: Path
) -> None:
    damaged = stores[1] / "commitlog" / f"{0:020d}"
    corrupt(damaged, 4)
    where = ["--output-root", tmp_path / "out", "--available-now", "--json"]
    code, out, errors = run_here("dispatch", *stores, *where)
    assert code == 3, errors
    failed = [e for e in events(out) if e["event"] == "failed"]
    assert [(e["broker"], e["error"]) for e in failed] == [("beta", "DamageError")]
    assert str(damaged) in failed[0]["reason"]
    assert "reput: 1 of 3 dispatches failed: beta" in errors
    assert_built([stores[0], stores[2]], tmp_path / "out", ["alpha", "gamma"])
    corrupt(damaged, 4)
    assert run_here("dispatch", *stores, *where)[0] == 0
    assert_built(stores, tmp_path / "out", [*COUNTS])


def test_a_store_that_cannot_be_opened_does_not_keep_the_others_from_starting(
    run_here: Run, stores: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "out" / "gamma").mkdir(parents=True)
    (tmp_path / "out" / "gamma" / "mine.txt").write_text("x")
    where = ["--output-root", tmp_path / "out", "--available-now"]
    code, _, errors = run_here("dispatch", *stores, f"none={tmp_path}/none", *where)
    assert code == 2
    assert "reput: 2 of 4 dispatches failed: gamma, none" in errors
    assert " failed error=ConfigError " in errors
    assert [path.name for path in (tmp_path / "out" / "gamma").iterdir()] == ["mine.txt"]
    assert_built(stores[:2], tmp_path / "out", ["alpha", "beta"])


def test_a_bug_ends_the_query_of_one_broker_alone(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, stores: list[Path], tmp_path: Path
) -> None:
    start = PreparedDispatch.start

    def start_or_fail(prepared: PreparedDispatch, spark: SparkSession) -> RunningDispatch:
        if prepared.output.path.name == "beta":
            raise IndexError("a bug of beta")
        return start(prepared, spark)

    monkeypatch.setattr(PreparedDispatch, "start", start_or_fail)
    where = ["--output-root", tmp_path / "out", "--available-now"]
    code, _, errors = run_here("dispatch", *stores, *where)
    assert code == 70
    assert "reput: 1 of 3 dispatches failed: beta" in errors
    assert "IndexError: a bug of beta" in errors.split("Traceback")[1]
    assert_built([stores[0], stores[2]], tmp_path / "out", ["alpha", "gamma"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give --output PATH, or --output-root DIR"),
        (["--output", "out"], "--output is for one STORE"),
        (["--output", "out", "--output-root", "root"], "either --output or --output-root"),
        (["--output-root", "root", "--from-offset", "0"], "--from-offset"),
        (["--output-root", "root", "--notify-kafka-bootstrap", "h:1"], "--notify-kafka"),
        (["--output-root", "root", "--trigger-interval", "banana"], "banana"),
        (["--output-root", ""], "the path '' is empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    stores: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    says: str,
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with chdir(tmp_path):
        assert run(["dispatch", *map(str, stores), *options]) == 2
    assert says in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["{0}", "alpha={1}"], "two stores have the name 'alpha'"),
        (["..={0}"], "'..' cannot be the name of a broker"),
        (["{0}:somewhere"], "names an OUTPUT"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    stores: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    says: str,
) -> None:
    named = [text.format(*stores) for text in given]
    assert run(["dispatch", *named, "--output-root", str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_kill_9_and_a_restart_resume_each_broker_and_a_signal_stops_all(
    stores: list[Path], tmp_path: Path
) -> None:
    output_root = tmp_path / "out"
    with dispatching(stores, output_root, "--max-bytes-per-trigger", "20k") as process:
        advanced: set[str] = set()
        for event in process_events(process):
            if event["event"] == "progress" and event["reput_from_offset"]:
                advanced.add(event["broker"])
            if advanced == {*COUNTS}:
                break
        process.kill()
        process.wait()
    for name in COUNTS:
        assert (output_root / name / "abort").exists()
        assert read_progress(output_root / name) is not None
    with dispatching(stores, output_root, "--metrics-port", "0") as process:
        url, up_to_date = "", set[str]()
        for event in process_events(process):
            url = event.get("url", url)
            if event["event"] == "progress" and not event["lag_bytes"]:
                up_to_date.add(event["broker"])
            if up_to_date == {*COUNTS}:
                break
        text = httpx.get(url, trust_env=False, timeout=60).text
        health = httpx.get(url.removesuffix("metrics") + "healthz", trust_env=False, timeout=60)
        process.send_signal(signal.SIGTERM)
        rest = events(process.stdout.read()) if process.stdout is not None else []
        assert process.wait() == 0, process.stderr
    for name in COUNTS:
        assert f'reput_dispatch_messages_total{{cluster="DefaultCluster",node_id="{name}"' in text
    assert (health.status_code, health.text) == (200, "ok\n")
    assert {e["broker"] for e in rest if e["event"] == "stop"} == {*COUNTS}
    assert not any((output_root / name / "abort").exists() for name in COUNTS)
    assert_built(stores, output_root, [*COUNTS])


@pytest.mark.process
def test_a_failure_is_reported_at_once_and_by_the_health_check(
    stores: list[Path], tmp_path: Path
) -> None:
    corrupt(stores[1] / "commitlog" / f"{0:020d}", 4)
    with dispatching(stores, tmp_path / "out", "--metrics-port", "0") as process:
        url, seen = "", set[str]()
        for event in process_events(process):
            url = event.get("url", url)
            if event["event"] == "failed" or event.get("lag_bytes") == 0:
                seen.add(event["broker"])
            if seen == {*COUNTS}:
                break
        health = httpx.get(url.removesuffix("metrics") + "healthz", trust_env=False, timeout=60)
        text = httpx.get(url, trust_env=False, timeout=60).text
        with BulkWriter(stores[0], small_config()) as writer:
            writer.append_many(TEMPLATES, 30)
        for event in process_events(process):
            if event["event"] == "progress" and event["messages"] == COUNTS["alpha"] + 30:
                break
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait() == 3, errors
    assert health.status_code == 503
    assert health.text.splitlines() == [
        "beta: failed: DamageError; the log of the process has the details"
    ]
    for name in COUNTS:
        labels = f'cluster="DefaultCluster",node_id="{name}",node_type="broker"'
        assert f"reput_store_read_failed{{{labels}}} 0.0\n" in text
        is_waiting = f"reput_dispatch_stuck_milliseconds{{{labels}}} 0.0\n" not in text
        assert is_waiting == (name == "beta"), "the backlog that begins with damage is stuck"
    assert "reput: 1 of 3 dispatches failed: beta" in errors
    assert_built([stores[0], stores[2]], tmp_path / "out", ["alpha", "gamma"])


@contextmanager
def dispatching(
    stores: list[Path], output_root: Path, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a dispatch as a process."""
    command = [*REPUT, "dispatch", *map(str, stores), "--output-root", str(output_root)]
    with subprocess.Popen(
        [*command, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def process_events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a process; it must not end before the last one that is awaited."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    assert process.stderr is not None
    pytest.fail(process.stderr.read())
