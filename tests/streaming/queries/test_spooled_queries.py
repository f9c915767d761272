"""Queries whose tasks pass their ranges through the spool."""

import shutil
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from checkpoints.output import DispatchOutput
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Stretch
from store.config import StoreConfig
from store.consumequeue.writer import ConsumeQueueStore
from store.errors import DamageError, StoreIOError, UnsupportedFormatError
from store.layout import MAGIC_BLANK, SYS_FLAG_AT
from store.output.progress import read_progress
from streaming.queries.dispatch_query import (
    DispatchOptions,
    RunningDispatch,
    begin_dispatch,
    query_error,
)
from streaming.queries.log_query import _BatchApplier, _SpoolApplier
from streaming.queries.rebuild import rebuild_output
from streaming.queries.spark_feed import spark_feed
from streaming.queries.verify import verify
from streaming.sinks.dispatch_sink import DispatchSink
from streaming.sinks.ordered_sink import StoppedError
from streaming.sources.task_results import SPOOL_DIR, Spool
from tests.support.bulk_writer import BulkWriter
from tests.support.cases import first_cases
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.verify_stores import flip

FILE_SIZE = 8 << 20
LARGE = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=5_000, max_index_num=60_000
)
CONF = "mappedFileSizeCommitLog=8388608\nmaxHashSlotNum=5000\nmaxIndexNum=60000\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of four files, whose ranges are large enough to be spooled."""
    store_root = tmp_path_factory.mktemp("spool") / "store"
    properties = make_properties(uniq_key="01234567########", keys="order-######## all")
    templates = [NewMessage("Topic", q, b"body ########", properties) for q in range(5)]
    with BulkWriter(store_root, LARGE) as writer:
        while writer.end < 3 * FILE_SIZE + FILE_SIZE // 2:
            writer.append_many(templates, 5_000)
    (store_root / "broker.conf").write_text(CONF)
    return store_root


@pytest.fixture(scope="module")
def dispatched(store: Path) -> Path:
    dispatch_all(store, store.parent / "dispatched", LARGE)
    return store.parent / "dispatched"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the taken files."""
    names: list[str] = []
    take = Spool.take

    def note(spool: Spool, name: str) -> list[Stretch]:
        names.append(name)
        return take(spool, name)

    monkeypatch.setattr(Spool, "take", note)
    return names


def begin(spark: SparkSession, store: Path, output: Path, **options: int | bool) -> RunningDispatch:
    how = {"available_now": True, "max_bytes_per_trigger": 4 * FILE_SIZE} | options
    return begin_dispatch(spark, store, output, DispatchOptions(**how))  # type: ignore[arg-type]


def flip_in_a_body(path: Path) -> None:
    flip(path, path.read_bytes().index(b"body ", FILE_SIZE // 2))


def spool_of(output: Path) -> Path:
    (epoch,) = (output / "reput" / "spark").iterdir()
    return epoch / SPOOL_DIR


@pytest.mark.spark
@pytest.mark.parametrize("max_bytes", first_cases([2 * FILE_SIZE - 7_777, 4 * FILE_SIZE]))
def test_a_backlog_goes_through_the_spool(
    spark: SparkSession, dispatched: Path, tmp_path: Path, taken: list[str], max_bytes: int
) -> None:
    store = dispatched.parent / "store"
    running = begin(spark, store, tmp_path / "output", max_bytes_per_trigger=max_bytes)
    running.query.awaitTermination()
    assert query_error(running.query) is None
    assert_same_store(tmp_path / "output", dispatched)
    assert len(taken) >= 3
    assert taken == sorted(taken)
    assert [p.name[:6] for p in spool_of(tmp_path / "output").iterdir()] == ["token-"]


@pytest.mark.spark
def test_a_batch_that_begins_with_a_blank_goes_through_the_spool_from_its_first_range(
    spark: SparkSession, dispatched: Path, tmp_path: Path, taken: list[str]
) -> None:
    store = dispatched.parent / "store"
    first = min((store / "commitlog").iterdir()).read_bytes()
    blank = first.rindex(MAGIC_BLANK.to_bytes(4, "big", signed=True)) - 4
    running = begin(spark, store, tmp_path / "output", max_bytes_per_trigger=blank)
    running.query.awaitTermination()
    assert query_error(running.query) is None
    assert any(name.startswith(f"{blank:020d}-{FILE_SIZE:020d}-") for name in taken)
    assert_same_store(tmp_path / "output", dispatched)


@pytest.mark.spark
def test_workers_that_do_not_see_the_spool_send_the_columns(
    spark: SparkSession, dispatched: Path, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, output = dispatched.parent / "store", dispatched.parent / "by-spark"
    monkeypatch.setattr(Spool, "begin", lambda _: "token-of-another-machine")
    running = begin(spark, store, output)
    running.query.awaitTermination()
    assert query_error(running.query) is None
    assert taken == []
    assert_same_store(output, dispatched)


@pytest.mark.spark
def test_a_job_that_fails_halfway_leaves_a_consistent_output(
    spark: SparkSession, store: Path, tmp_path: Path, taken: list[str]
) -> None:
    copy, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(store, copy)
    last = max((copy / "commitlog").iterdir())
    data = bytearray(last.read_bytes()[: FILE_SIZE // 2])
    size = int.from_bytes(data[:4], "big")
    data[size + SYS_FLAG_AT + 3] |= 0x80  # the second record of the last file: an inner batch
    with last.open("r+b") as f:
        f.write(data)
    running = begin(spark, copy, output)
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination()
    assert isinstance(running.query.failure(), UnsupportedFormatError)
    assert taken
    assert running.output.progress.reput_from_offset >= FILE_SIZE
    owned = DispatchOutput.open(output, copy, LARGE)
    assert owned.recovered == ()
    owned.close(clean=True)
    assert verify(copy, output, LARGE).is_equal


@pytest.mark.spark
@pytest.mark.parametrize("fail_on_data_loss", first_cases([True, False]))
def test_damage_in_a_spooled_range_is_reported_as_damage(
    spark: SparkSession, store: Path, tmp_path: Path, taken: list[str], *, fail_on_data_loss: bool
) -> None:
    copy, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(store, copy)
    flip_in_a_body(sorted((copy / "commitlog").iterdir())[1])
    running = begin(spark, copy, output, fail_on_data_loss=fail_on_data_loss)
    with pytest.raises(StreamingQueryException) if fail_on_data_loss else nullcontext():
        running.query.awaitTermination()
    assert isinstance(running.query.failure(), DamageError) == fail_on_data_loss
    assert len(taken) >= 2
    assert [p.name[:6] for p in spool_of(output).iterdir()] == ["token-"]
    with pytest.raises(DamageError) if fail_on_data_loss else nullcontext():
        dispatch_all(copy, tmp_path / "expected", LARGE, fail_on_data_loss=fail_on_data_loss)
    assert_same_store(output, tmp_path / "expected")


@pytest.mark.spark
def test_a_rebuild_by_a_query_keeps_what_precedes_damage(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(store, copy)
    flip_in_a_body(sorted((copy / "commitlog").iterdir())[1])
    feed = spark_feed(spark, copy, LARGE)
    rebuilt = rebuild_output(DispatchOutput.replacing(output, copy, LARGE), feed)
    assert rebuilt.damage is not None
    with pytest.raises(DamageError):
        dispatch_all(copy, tmp_path / "expected", LARGE)
    assert_same_store(output, tmp_path / "expected")
    with pytest.raises(DamageError):
        verify(copy, output, LARGE, feed=lambda _, c, s: feed((0, 3 * FILE_SIZE), c, s))


@pytest.mark.spark
def test_an_error_while_parts_are_applied_fails_the_query(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreIOError("write", tmp_path / "a-file", OSError(28, "No space left on device"))

    monkeypatch.setattr(ConsumeQueueStore, "put_message_position_info", fail)
    running = begin(spark, store, tmp_path / "output")
    with pytest.raises(StreamingQueryException, match="a-file"):
        running.query.awaitTermination()
    assert isinstance(running.query.failure(), StoreIOError)


@pytest.mark.spark
def test_a_batch_that_spark_cancels_keeps_what_has_been_applied(
    spark: SparkSession, store: Path, dispatched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, is_cancelled, has_ended = (threading.Event() for _ in range(3))
    output = Path(tempfile.mkdtemp(dir=store.parent))
    apply_part, read = DispatchSink._apply_part, _BatchApplier._read
    exit_ = _SpoolApplier.__exit__

    def apply_one(sink: DispatchSink, stretches: list[Stretch]) -> None:
        apply_part(sink, stretches)
        if stretches:
            has_begun.set()
            has_ended.wait(60)

    def cancel(applier: _BatchApplier, batch: DataFrame) -> pa.Table:
        read(applier, batch)
        assert has_begun.wait(60)
        is_cancelled.set()
        raise StoppedError("Spark cancelled the batch")

    def leave(spool_applier: _SpoolApplier, *how: object) -> None:
        spool_applier._end.set()
        has_ended.set()
        exit_(spool_applier, *how)

    with monkeypatch.context() as patched:
        patched.setattr(_SpoolApplier, "__exit__", leave)
        patched.setattr(DispatchSink, "_apply_part", apply_one)
        patched.setattr(_BatchApplier, "_read", cancel)
        running = begin(spark, store, output, available_now=False)
        assert is_cancelled.wait(60)
        running.close()
    progress = read_progress(output)
    assert progress is not None
    assert progress.reput_from_offset == FILE_SIZE
    assert running.query.failure() is None
    assert not (output / "abort").exists()
    begin(spark, store, output).query.awaitTermination()
    assert_same_store(output, dispatched)
