"""The dispatch query on a real Spark engine: golden stores, stop and resume, live logs, damage."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from store.commitlog.commit_log import CommitLog
from store.config import load_config
from store.errors import ConfigError, DamageError, OutputInUseError
from store.output.progress import read_progress
from streaming import start_dispatch
from streaming.queries.dispatch_query import (
    DispatchOptions,
    RunningDispatch,
    begin_dispatch,
    prepare_dispatch,
    query_error,
)
from streaming.queries.log_query import LogQuery
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.cases import first_cases
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.stores.written import CONF, corrupt, make_store, small_config

pytestmark = pytest.mark.spark

# Those with the most rules first: two of them run always.
FIRST = ("g7", "g10", "g5", "g1", "g2")
SHOWN = sorted(
    (path for path in ARCHIVES if archive_name(path).startswith("g")),
    key=lambda path: [name != archive_name(path) for name in FIRST],
)


def run(
    spark: SparkSession, store: Path, output: Path, options: DispatchOptions
) -> RunningDispatch:
    """Run a dispatch until it ends by itself."""
    running = begin_dispatch(spark, store, output, options)
    wait_for_end(running)
    return running


def wait_for_end(running: RunningDispatch) -> None:
    """Wait until a dispatch has ended by itself, with or without an error."""
    try:
        running.query.awaitTermination()
    except Exception:  # noqa: BLE001 - the tests check what ended the query
        assert query_error(running.query) is not None
    finally:
        running.close()


@pytest.mark.parametrize("golden", first_cases(SHOWN, 2), indirect=True, ids=archive_name)
def test_golden_store_through_spark(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    options = DispatchOptions(
        broker_conf=golden.store_root / "broker.conf",
        broker_version=golden.version,
        available_now=True,
    )
    running = run(spark, golden.store_root, tmp_path / "out", options)
    assert query_error(running.query) is None
    assert_same_store(tmp_path / "out", golden.expected)
    assert not (tmp_path / "out" / "abort").exists()


@pytest.mark.parametrize("golden", first_cases(SHOWN[:5], 1), indirect=True, ids=archive_name)
def test_small_batches_with_a_stop_in_the_middle(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    end = CommitLog(golden.config.commit_log_paths(golden.store_root), golden.config).max_offset()
    options = DispatchOptions(broker_version=golden.version, max_bytes_per_trigger=40_000)
    running = begin_dispatch(spark, golden.store_root, tmp_path / "out", options)
    while running.sink.counts.batches < 2:
        assert running.query.isActive
        running.query.awaitTermination(0.05)
    running.close()
    stopped = read_progress(tmp_path / "out")
    assert stopped is not None
    assert 0 < stopped.reput_from_offset < end
    run(spark, golden.store_root, tmp_path / "out", DispatchOptions(available_now=True))
    assert_same_store(tmp_path / "out", golden.expected)
    epochs = sorted(p.name for p in (tmp_path / "out" / "reput" / "spark").iterdir())
    assert epochs == ["epoch-000002"]


WRITER = """
import sys
from pathlib import Path
from store.commitlog.writer import CommitLogWriter
from tests.support.bulk_writer import numbered
from store.config import load_config
from tests.support.stores.written import TEMPLATES
store_root = Path(sys.argv[1])
with CommitLogWriter(store_root, load_config(store_root)) as writer:
    for n in range(int(sys.argv[2])):
        writer.append(numbered(TEMPLATES[n % len(TEMPLATES)], n))
"""


def test_live_log_is_dispatched_while_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    count = 8_000
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 10)
    running = begin_dispatch(spark, store, output, DispatchOptions())
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(store), str(count)])
    try:
        while writer.poll() is None:
            assert running.query.isActive, query_error(running.query)
            running.query.awaitTermination(0.1)
        assert writer.returncode == 0
        running.query.processAllAvailable()
    finally:
        writer.kill()
        running.close()
    config = load_config(store)
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")
    progress = read_progress(output)
    assert progress is not None
    assert progress.messages == count + 10


def test_torn_tail_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 30)
    (store / "abort").touch()
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    end = CommitLog([store / "commitlog"], small_config()).max_offset()
    path.write_bytes(whole[: end - 40] + bytes(len(whole) - end + 40))
    running = begin_dispatch(spark, store, output, DispatchOptions())
    try:
        running.query.processAllAvailable()
        assert running.sink.counts.messages == 29
        with path.open("r+b") as f:
            f.write(whole)
        running.query.processAllAvailable()
        assert running.sink.counts.messages == 30
    finally:
        running.close()


@pytest.mark.parametrize(
    ("at", "reason"), first_cases([(8, "CRC"), (4, "magic"), (35, "physical offset")])
)
def test_damage_stops_the_query_after_the_records_before_it(
    spark: SparkSession, tmp_path: Path, at: int, reason: str
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 1_500)
    dispatch_all(store, tmp_path / "whole", config)
    second = store / "commitlog" / f"{65536:020d}"
    with second.open("rb") as f:
        first_size = int.from_bytes(f.read(4))
    corrupt(second, first_size + at)  # in the file's second record
    running = run(spark, store, output, DispatchOptions(available_now=True))
    error = query_error(running.query)
    assert isinstance(running.sink.error, DamageError)
    assert isinstance(error, DamageError)
    assert running.sink.error.offset == 65536 + first_size
    assert running.sink.error.path == second
    assert reason in str(error)
    progress = read_progress(output)
    assert progress is not None
    assert progress.reput_from_offset == 65536 + first_size
    again = run(spark, store, output, DispatchOptions(available_now=True))
    assert isinstance(again.sink.error, DamageError)
    skipping = DispatchOptions(available_now=True, fail_on_data_loss=False)
    skipped = run(spark, store, output, skipping)
    assert query_error(skipped.query) is None
    progress = read_progress(output)
    assert progress is not None
    assert [(r.begin, r.path) for r in progress.lost] == [(65536 + first_size, str(second))]
    assert progress.messages == 1_499


def test_missing_middle_file_is_lost_data(spark: SparkSession, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 1_500)
    (store / "commitlog" / f"{65536:020d}").unlink()
    running = run(spark, store, output, DispatchOptions(available_now=True))
    assert isinstance(running.sink.error, DamageError)
    assert "offset 65536" in str(running.sink.error)
    progress = read_progress(output)
    assert progress is not None
    assert progress.reput_from_offset == 65536


def test_start_dispatch_returns_a_query_that_releases_the_output(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 200)
    query = start_dispatch(spark, store, output, trigger_interval="100 milliseconds")
    query.processAllAvailable()
    held = subprocess.run(
        [Path(sys.executable).with_name("reput"), "dispatch", store, "--output", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert held.returncode == 4, held.stderr
    query.stop()
    assert query.awaitTermination(10)
    assert not (output / "abort").exists()
    progress = read_progress(output)
    assert progress is not None
    assert progress.messages == 200


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(4, marks=pytest.mark.exhaustive)], ids=["once", "repeatedly"]
)
@pytest.mark.parametrize("by_spark", [False, True])
def test_a_query_stopped_in_the_middle_of_a_batch_has_not_failed(
    spark: SparkSession,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    *,
    by_spark: bool,
    rounds: int,
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 3_000)
    options = DispatchOptions(max_bytes_per_trigger=20_000)
    for wait in (0.05, 0.001, 0.1, 0.15)[:rounds]:
        running = begin_dispatch(spark, store, output, options)
        while running.sink.counts.batches < 2 and running.query.isActive:
            running.query.awaitTermination(0.01)
        running.query.awaitTermination(wait)  # into a batch, which has no end to wait for
        if by_spark:
            StreamingQuery.stop(running.query)
        running.close()
        assert running.query.exception() is None
        assert running.sink.error is None
    errors = capfd.readouterr().err
    assert "StackOverflowError" not in errors
    assert by_spark or not errors  # Spark's own stop cancels the tasks of the batch
    run(spark, store, output, DispatchOptions(available_now=True))
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")


def test_replay_changes_nothing_and_never_leaves_a_hole(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 600)
    dispatch_all(store, output, config)
    dispatch_all(store, tmp_path / "expected", config)
    replay = DispatchOptions(available_now=True, from_offset=65536)
    assert query_error(run(spark, store, output, replay).query) is None
    assert_same_store(output, tmp_path / "expected")
    fresh = tmp_path / "fresh"
    run(spark, store, fresh, DispatchOptions(available_now=True, from_offset=65536))
    part = read_progress(fresh)
    assert part is not None
    assert part.begin_offset == 65536
    with pytest.raises(ConfigError, match="nearest boundaries"):
        begin_dispatch(spark, store, fresh, DispatchOptions(from_offset=65537))


def test_other_settings_than_those_of_the_output_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    dispatch_all(store, output, make_store(store, 50))
    with pytest.raises(ConfigError, match="version"):
        begin_dispatch(spark, store, output, DispatchOptions(broker_version="4.8.0"))
    other = tmp_path / "other.conf"
    other.write_text("".join(f"{k}={v}\n" for k, v in (CONF | {"maxIndexNum": 7}).items()))
    with pytest.raises(ConfigError, match="maxIndexNum"):
        begin_dispatch(spark, store, output, DispatchOptions(broker_conf=other))
    assert json.loads((output / "reput" / "progress").read_text().splitlines()[0])["messages"] == 50


def test_two_dispatches_of_one_process_exclude_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 50)
    running = begin_dispatch(spark, store, output, DispatchOptions())
    try:
        with pytest.raises(OutputInUseError):
            begin_dispatch(spark, store, output, DispatchOptions())
    finally:
        running.close()


def test_a_query_that_does_not_start_leaves_no_listener(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = make_store(tmp_path / "store", 5)
    prepared = prepare_dispatch(tmp_path / "store", tmp_path / "out", DispatchOptions())
    (tmp_path / "checkpoint").write_text("not a directory")
    query = LogQuery(
        name="reput",
        store_root=str(tmp_path / "store"),
        config=config,
        begin=0,
        max_bytes=1 << 20,
        fail_on_data_loss=True,
        checkpoint=tmp_path / "checkpoint",
        trigger_interval=None,
    )
    listeners = _listeners(spark)
    with pytest.raises(Exception, match="checkpoint"):
        query.start(spark, prepared.sink)
    assert _listeners(spark) == listeners
    prepared.close()


def _listeners(spark: SparkSession) -> int:
    manager: Any = spark._jsparkSession  # type: ignore[attr-defined] - no public name
    return len(manager.streams().listListeners())
