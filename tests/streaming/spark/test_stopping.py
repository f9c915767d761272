"""Stopping queries: the batch in flight is finished, OUTPUT is released, nothing is logged."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from store.errors import DamageError, StoreIOError
from store.output.progress import read_progress
from streaming import CommitLogDataSource, query_error, start_dispatch, stop_query
from streaming.queries.dispatch_query import DispatchOptions, begin_dispatch, prepare_dispatch
from streaming.sources.message_source import FORMAT
from tests.support.cases import first_cases
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.stores.written import corrupt, make_store

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("times", first_cases([2, 20]))
def test_a_stopped_dispatch_can_be_restarted_immediately(
    spark: SparkSession, tmp_path: Path, times: int
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 1_500)
    for _ in range(times):
        query = start_dispatch(spark, store, output, max_bytes_per_trigger=20_000)
        query.stop()
        assert not query.isActive
        assert query.exception() is None
        assert not (output / "abort").exists()
    start_dispatch(spark, store, output, available_now=True).awaitTermination()
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")


def test_a_dispatch_that_ended_has_released_its_output(spark: SparkSession, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 1_500)
    start_dispatch(spark, store, output, available_now=True).awaitTermination()
    query = start_dispatch(spark, store, output)
    assert query.awaitTermination(0.01) is False
    with_timeout = start_dispatch(spark, store, tmp_path / "other", available_now=True)
    assert with_timeout.awaitTermination(60) is True
    assert not (tmp_path / "other" / "abort").exists()
    query.stop()
    corrupt(store / "commitlog" / f"{0:020d}", 8)
    for _ in range(2):
        failing = start_dispatch(spark, store, tmp_path / "third", available_now=True)
        with pytest.raises(StreamingQueryException):
            failing.awaitTermination()
        assert isinstance(query_error(failing), DamageError)


def test_the_handle_is_sparks_query(spark: SparkSession, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 200)
    query = start_dispatch(spark, store, output)
    try:
        assert isinstance(query, StreamingQuery)
        query.processAllAvailable()
        known = spark.streams.get(query.id)
        assert known is not None
        assert (known.id, known.runId, known.name) == (query.id, query.runId, query.name)
        assert query.isActive
        assert query.status["message"]
        assert query.recentProgress
        assert query.lastProgress is not None
        assert query.exception() is None
        query.explain()
    finally:
        query.stop()


class FullDisk:
    """Fails a dispatch's next sync with a full disk, once a stop waits for that batch."""

    def __init__(self, sync: Callable[[], Any], is_stopping: threading.Event) -> None:
        self.is_in_flight = threading.Event()
        self._sync = sync
        self._is_stopping = is_stopping

    def __call__(self) -> None:
        if not self.is_in_flight.is_set():
            self.is_in_flight.set()
            assert self._is_stopping.wait(60)
            raise StoreIOError("sync", "out", OSError(errno.ENOSPC, "No space left on device"))
        self._sync()


def test_an_error_of_the_last_batch_is_the_querys_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 1_500)
    prepared = prepare_dispatch(store, output, DispatchOptions(max_bytes_per_trigger=50_000))
    is_stopping = threading.Event()
    full = FullDisk(prepared.output.disk.sync, is_stopping)
    monkeypatch.setattr(prepared.output.disk, "sync", full)
    monkeypatch.setattr(prepared.sink, "stop_waiting", is_stopping.set)
    running = prepared.start(spark)
    assert full.is_in_flight.wait(60)
    running.close()
    assert isinstance(running.query.failure(), StoreIOError)
    assert isinstance(query_error(running.query), StoreIOError)
    start_dispatch(spark, store, output, available_now=True).awaitTermination()
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")


def test_sparks_own_stop_of_a_dispatch_is_not_a_failure(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 3_000)
    running = begin_dispatch(spark, store, output, DispatchOptions(max_bytes_per_trigger=20_000))
    while running.sink.counts.batches < 2:
        running.query.awaitTermination(0.01)
    active = spark.streams.get(running.query.id)
    assert active is not None
    active.stop()
    running.close()
    assert running.query.failure() is None
    progress = read_progress(output)
    assert progress is not None
    assert progress.messages == running.sink.counts.messages


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Return a stream of many small batches."""
    make_store(tmp_path / "store", 30_000)
    spark.dataSource.register(CommitLogDataSource)
    reader = spark.readStream.format(FORMAT).option("startingOffsets", "earliest")
    return reader.option("maxBytesPerTrigger", "20k").load(str(tmp_path / "store"))


@pytest.mark.parametrize(
    ("by_function", "batches"),
    first_cases([(True, 3), (False, 0), (True, 0), (True, 1), (False, 1), (False, 3)], 2),
)
def test_a_users_stream_is_stopped_quietly(
    source: DataFrame,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    *,
    batches: int,
    by_function: bool,
) -> None:
    seen: list[int] = []
    writer = source.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    if by_function:
        writer = writer.foreachBatch(lambda rows, _id: seen.append(len(rows.collect())))
    else:
        writer = writer.format("noop")
    query = writer.start()
    while len(query.recentProgress) < batches:
        query.awaitTermination(0.01)
    stop_query(query)
    assert not query.isActive
    assert query.exception() is None
    commits = [int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
    assert max(commits, default=-1) + 1 >= batches  # Spark deletes the oldest ones
    assert len(seen) >= (batches if by_function else 0)
    assert capfd.readouterr().err == ""


def test_a_stream_waiting_for_its_trigger_is_stopped_immediately(
    source: DataFrame, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = source.writeStream.format("noop").trigger(processingTime="10 minutes")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    while not query.recentProgress:
        query.awaitTermination(0.01)
    stop_query(query, timeout_seconds=60)
    stop_query(query)
    assert query.exception() is None
    assert len(query.recentProgress) == 1
    assert capfd.readouterr().err == ""
