"""A running query from which the log runs away: it catches up between two batches, and goes on."""

import json
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from checkpoints.progress import read_progress
from store.commit_log_writer import CommitLogWriter
from store.errors import DamageError
from streaming import query as query_module
from streaming.options import OFFSET_KEY
from streaming.query import DispatchOptions, begin_dispatch, query_error
from tests.dispatching import assert_same_store, dispatch_all
from tests.streaming.test_dispatch_query import (
    TEMPLATES,
    corrupt,
    make_store,
    run,
    small_config,
    wait_for_end,
)

pytestmark = pytest.mark.spark

FILE_SIZE = 65536
FAR = 3 * FILE_SIZE
SOME, MANY = 30, 8_000  # messages: of one file, of 14
BATCH_BYTES = 20_000


@pytest.fixture
def near_is_far(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what lets a few files be as far behind as a GiB, from then on."""
    return lambda: monkeypatch.setattr(query_module, "CATCH_UP_BYTES", FAR)


class Told(list[tuple[int, int]]):
    """What a catch-up reported: bytes done, bytes in all."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))
        self.begun.set()


def options(told: Told, **more: bool | int) -> DispatchOptions:
    return DispatchOptions(max_bytes_per_trigger=BATCH_BYTES, on_catch_up=told, **more)  # type: ignore[arg-type]


def append(store: Path, count: int) -> None:
    with CommitLogWriter(store, small_config()) as writer:
        writer.append_many(TEMPLATES, count)


def batches(query: StreamingQuery) -> list[tuple[int, int, int]]:
    """Return (begin, end, rows) of the query's batches."""

    def offset(text: str) -> int:
        return int((json.loads(text) or {OFFSET_KEY: 0})[OFFSET_KEY])

    ends = [(p.sources[0], p.numInputRows) for p in query.recentProgress]
    return [(offset(at.startOffset), offset(at.endOffset), rows) for at, rows in ends]


def test_it_catches_up_and_settles_to_small_batches(
    spark: SparkSession, tmp_path: Path, near_is_far: Callable[[], None]
) -> None:
    store, output, told = tmp_path / "store", tmp_path / "out", Told()
    make_store(store, SOME)
    near_is_far()
    running = begin_dispatch(spark, store, output, options(told))
    running.query.processAllAvailable()
    append(store, MANY)
    running.query.processAllAvailable()
    assert told, "no catch-up"
    jumps = [end - begin for begin, end, rows in batches(running.query) if rows == 0]
    assert max(jumps) > 8 * FILE_SIZE
    append(store, SOME)
    times = len(told)
    running.query.processAllAvailable()
    assert len(told) == times
    assert batches(running.query)[-1][2] > 0
    running.close()
    assert query_error(running.query) is None
    dispatch_all(store, tmp_path / "expected", small_config())
    assert_same_store(output, tmp_path / "expected")
    progress = read_progress(output)
    assert progress is not None
    assert progress.messages == SOME + MANY + SOME == running.sink.counts.messages


@pytest.mark.parametrize("by_spark", [False, True])
def test_it_is_stopped_while_it_catches_up(
    spark: SparkSession, tmp_path: Path, near_is_far: Callable[[], None], *, by_spark: bool
) -> None:
    store, output, told = tmp_path / "store", tmp_path / "out", Told()
    make_store(store, MANY)
    running = begin_dispatch(spark, store, output, options(told))
    near_is_far()
    assert told.begun.wait(30)
    if by_spark:
        StreamingQuery.stop(running.query)
    running.close()
    assert running.query.exception() is None
    assert running.sink.error is None
    assert told[-1][0] < told[-1][1]
    run(spark, store, output, options(Told(), available_now=True))
    dispatch_all(store, tmp_path / "expected", small_config())
    assert_same_store(output, tmp_path / "expected")


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_damage_on_its_way_is_the_querys(
    spark: SparkSession, tmp_path: Path, near_is_far: Callable[[], None], *, fail_on_data_loss: bool
) -> None:
    store, output, told = tmp_path / "store", tmp_path / "out", Told()
    config = make_store(store, MANY)
    bad = store / "commitlog" / f"{7 * FILE_SIZE:020d}"
    corrupt(bad, 8)
    how = options(told, fail_on_data_loss=fail_on_data_loss, available_now=True)
    running = begin_dispatch(spark, store, output, how)
    near_is_far()
    wait_for_end(running)
    assert len({total for _, total in told}) == (1 if fail_on_data_loss else 2)
    expected = tmp_path / "expected"
    with nullcontext() if not fail_on_data_loss else pytest.raises(DamageError):
        dispatch_all(store, expected, config, fail_on_data_loss=fail_on_data_loss)
    assert_same_store(output, expected)
    progress = read_progress(output)
    assert progress is not None
    if fail_on_data_loss:
        assert isinstance(running.sink.error, DamageError)
        assert running.sink.error.path == bad
        assert progress.reput_from_offset == 7 * FILE_SIZE
    else:
        assert [lost.path for lost in progress.lost] == [str(bad)]
        assert progress.messages == MANY - 1


def test_a_replay_is_not_cut_short(
    spark: SparkSession, tmp_path: Path, near_is_far: Callable[[], None]
) -> None:
    store, output, told = tmp_path / "store", tmp_path / "out", Told()
    config = make_store(store, MANY // 8)
    begun = dispatch_all(store, output, config).reput_from_offset
    append(store, MANY)
    near_is_far()
    running = run(spark, store, output, options(told, from_offset=0, available_now=True))
    assert query_error(running.query) is None
    read = [(begin, end) for begin, end, rows in batches(running.query) if rows]
    assert read[0][0] == 0
    assert read[-1][1] > begun
    assert all(a[1] == b[0] for a, b in pairwise(read))
    assert told, "no catch-up"
    dispatch_all(store, tmp_path / "expected", config)
    assert_same_store(output, tmp_path / "expected")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_root_that_begins_far_behind_is_brought_up_before_its_query(
    spark: SparkSession, tmp_path: Path, near_is_far: Callable[[], None], is_damaged: bool
) -> None:
    store, output, told = tmp_path / "store", tmp_path / "out", Told()
    config = make_store(store, MANY)
    if is_damaged:
        corrupt(sorted((store / "commitlog").iterdir())[7], 8)
    near_is_far()
    with nullcontext() if not is_damaged else pytest.raises(StreamingQueryException):
        running = begin_dispatch(spark, store, output, options(told, available_now=True))
        running.query.awaitTermination()
    running.close()
    assert told
    assert isinstance(query_error(running.query), DamageError) == is_damaged
    expected = tmp_path / "expected"
    with nullcontext() if not is_damaged else pytest.raises(DamageError):
        dispatch_all(store, expected, config)
    assert_same_store(output, expected)
