"""A dispatch that begins its batches by need, on a real Spark: pauses, backlogs, stops."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.output.progress import read_progress
from streaming import start_dispatch
from streaming.queries.dispatch_query import DispatchOptions, begin_dispatch
from tests.support.bulk_writer import BulkWriter
from tests.support.cases import first_cases
from tests.support.commands import REPUT
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.stores.written import TEMPLATES, make_store, small_config

pytestmark = pytest.mark.spark

_DEADLINE = 60.0  # generous: the machine may be busy


def dispatched(output: Path) -> int:
    progress = read_progress(output) if output.is_dir() else None
    return progress.messages if progress is not None else 0


def wait_until(condition: Callable[[], bool]) -> float:
    """Wait for a condition; return the seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < _DEADLINE
        time.sleep(0.005)
    return time.monotonic() - began


def test_messages_after_pauses_reach_each_of_several_stores(
    spark: SparkSession, tmp_path: Path
) -> None:
    stores, config = [tmp_path / "a", tmp_path / "b"], small_config()
    for store in stores:
        make_store(store, 30)
    outputs = [tmp_path / f"out-{store.name}" for store in stores]
    queries = [start_dispatch(spark, *pair) for pair in zip(stores, outputs, strict=True)]
    try:
        for query in queries:
            query.processAllAvailable()
        for n in range(1, 4):
            for store in stores:
                with BulkWriter(store, config) as writer:
                    writer.append_many(TEMPLATES[:1], 1)
            for output in outputs:
                wait_until(lambda output=output, n=n: dispatched(output) == 30 + n)
    finally:
        for query in queries:
            query.stop()
    for store, output in zip(stores, outputs, strict=True):
        dispatch_all(store, tmp_path / "expected" / store.name, config)
        assert_same_store(output, tmp_path / "expected" / store.name)


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_stop_while_the_answer_is_held_ends_the_query_without_an_error(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, by_spark: bool
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 30)
    running = begin_dispatch(spark, store, output, DispatchOptions())
    running.query.processAllAvailable()
    wait_until(lambda: running.query.status["message"].startswith("Getting offsets"))
    began = time.monotonic()
    if by_spark:
        query = spark.streams.get(running.query.id)
        assert query is not None
        query.stop()
    running.query.stop()
    assert time.monotonic() - began < 5  # half a second, unless the machine is busy
    assert running.query.failure() is None
    assert not (output / "abort").exists()
    assert capfd.readouterr().err == ""


@pytest.mark.process
@pytest.mark.parametrize("number", first_cases([signal.SIGTERM, signal.SIGINT]))
def test_a_log_gets_few_lines_of_progress_and_a_signal_ends_the_wait(
    tmp_path: Path, number: signal.Signals
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 30)
    command = [*REPUT, "dispatch", str(store), "--output", str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: dispatched(output) == 30)
        began = time.monotonic()
        for n in range(1, 7):
            with BulkWriter(store, small_config()) as writer:
                writer.append_many(TEMPLATES[:1], 1)
            wait_until(lambda n=n: dispatched(output) == 30 + n)
        seconds = time.monotonic() - began
        process.send_signal(number)
        _, errors = process.communicate(timeout=_DEADLINE)
    assert process.returncode == 0, errors
    lines = errors.splitlines()
    assert 1 <= sum(" progress " in line for line in lines) <= 2 + seconds / 10
    assert " stop messages=36 " in lines[-1]
    assert "Traceback" not in errors
