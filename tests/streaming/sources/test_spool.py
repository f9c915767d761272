"""The spool: tasks pass ranges to the sink in files, which it applies while others are read."""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Damage, Stretch
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.consumequeue.writer import ConsumeQueueStore
from store.errors import DamageError, StoreIOError, UnsupportedFormatError
from store.io.disk import Disk
from store.layout import SYS_FLAG_AT
from streaming.queries.dispatch import DispatchOptions, RunningDispatch, begin_dispatch, query_error
from streaming.queries.log_query import _BatchApplier, _SpoolApplier
from streaming.queries.rebuild import rebuild_root
from streaming.queries.spark_feed import spark_feed
from streaming.queries.verify import verify
from streaming.sinks.dispatch import DispatchSink
from streaming.sinks.ordered_sink import StoppedError
from streaming.sources.dispatch import parts_of, stretches_of, to_batch
from streaming.sources.spool import SPOOL_DIR, Spool
from tests.logs.walking import by_walk
from tests.support.cases import first_cases, stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import HastyDisk, assert_same_store, built_tree, dispatch_all
from tests.support.stores.aged import sent
from tests.support.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

FILE_SIZE = 8 << 20
LARGE = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=5_000, max_index_num=60_000
)
CONF = "mappedFileSizeCommitLog=8388608\nmaxHashSlotNum=5000\nmaxIndexNum=60000\n"
MANY = 1_000_000


# --- Files --------------------------------------------------------------------------------------


def stretches_in(store_root: Path) -> list[Stretch]:
    requests, _ = by_walk(store_root, CONFIG, 0)
    return [requests[0].slice(0, 3), requests[0].slice(3, len(requests[0])), *requests[1:]]


def test_what_is_spooled_is_taken_once_and_stays_readable(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))
    end = stretches[-1].end
    spool = Spool(tmp_path / "spool")
    assert spool.has_token(spool.begin())
    assert spool.find(0) is None
    (tmp_path / "spool" / f"{0:020d}-{end:020d}-{'0' * 32}.12.tmp").touch()
    assert spool.find(0) is None
    name = Spool(tmp_path / "spool").write((0, end), [to_batch(s) for s in stretches])
    assert spool.find(0) == name
    assert spool.find(end) is None
    found = stretches_of(spool.take(name))
    assert [(s.begin, s.end) for s in found] == [(s.begin, s.end) for s in stretches]
    assert [s.commit_log_offset.tolist() for s in found] == [  # type: ignore[union-attr]
        s.commit_log_offset.tolist()  # type: ignore[union-attr]
        for s in stretches
    ]
    with pytest.raises(StoreIOError, match=name):
        stretches_of(spool.take(name))


def test_files_that_nobody_took_are_cleared(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))
    spool = Spool(tmp_path / "spool")
    token = spool.begin()
    for _ in range(2):  # a task that ran twice
        spool.write((0, stretches[0].end), [to_batch(stretches[0])])
    name = spool.find(0)
    (tmp_path / "spool" / f"{name}.12.tmp").touch()  # of one that was killed
    spool.clear()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [token]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "_pwrite", fail)
    with pytest.raises(StoreIOError, match="No space left"):
        Spool(tmp_path / "spool").write((0, 1), [to_batch(stretches[0])])


def test_the_parts_of_a_batch_come_in_log_order(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(60)))
    spool = Spool(tmp_path / "spool")
    spooled = to_batch(stretches[1]).to_pylist()[0]
    spooled["spooled"] = spool.write(
        (stretches[1].begin, stretches[1].end), [to_batch(stretches[1])]
    )
    damage = Damage(stretches[2].end, stretches[2].end + 9, "f", "why")
    rows = [to_batch(s) for s in (damage, stretches[2], stretches[0])]
    rows.insert(1, pa.RecordBatch.from_pylist([spooled], schema=rows[0].schema))
    found = [(end, part()) for end, part in parts_of(pa.Table.from_batches(rows), spool)]
    assert [(end, [s.begin for s in part]) for end, part in found] == [
        (stretches[0].end, [stretches[0].begin]),
        (stretches[1].end, [stretches[1].begin]),
        (damage.end, [stretches[2].begin, damage.begin]),
    ]


# --- A batch in parts ---------------------------------------------------------------------------


def apply_in_parts(
    store_root: Path, output: Path, config: StoreConfig, disk: Disk, sizes: Iterable[int]
) -> None:
    """Apply the log as one batch, in parts of so many records; release the lock as a kill does."""
    root = DispatchRoot.open(output, store_root, config, disk=disk)
    try:
        sink = DispatchSink(root, config)
        requests, _ = by_walk(store_root, config, root.progress.reput_from_offset)
        for stretch in requests:
            at = 0
            for size in sizes:
                if at + size < len(stretch):
                    sink.apply_part([stretch.slice(at, at + size)])
                    at += size
            sink.apply_part([stretch.slice(at, len(stretch))] if len(stretch) else [stretch])
        sink.apply([])
        sink.close()
    finally:
        root._release()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_in_parts_leaves_what_it_leaves_as_a_whole(tmp_path: Path, variant: str) -> None:
    config, store_root = VARIANTS[variant], write_store(tmp_path, sent(60))
    apply_in_parts(store_root, tmp_path / "parts", config, HastyDisk(), [1, 2, 3])
    progress = dispatch_all(store_root, tmp_path / "whole", config)
    assert_same_store(tmp_path / "parts", tmp_path / "whole")
    found = read_progress(tmp_path / "parts")
    assert found is not None
    for name in ("reput_from_offset", "messages", "last_record", "index_count", "drops", "batch"):
        assert getattr(found, name) == getattr(progress, name), name


@stride(5)
def test_killed_between_parts_it_is_rolled_back(tmp_path: Path, stride: int) -> None:
    config, store_root = VARIANTS["ext"], write_store(tmp_path, sent(30))
    copy, sizes = tmp_path / "copy", [1, 1, 2]
    dispatch_all(store_root, tmp_path / "whole", config)
    counted = CrashingDisk(MANY, tmp_path / "graves")
    apply_in_parts(store_root, copy, config, counted, sizes)
    rolled_back = 0
    for calls in range(0, MANY - counted.calls, 3 * stride):
        shutil.rmtree(copy)
        disk = CrashingDisk(calls, tmp_path / "graves")
        with pytest.raises(Killed):
            apply_in_parts(store_root, copy, config, disk, sizes)
        disk.lose(Random(calls), kept=calls % 4 / 3)
        if read_progress(copy) is not None:
            root = DispatchRoot.open(copy, store_root, config, disk=HastyDisk())
            rolled_back += bool(root.recovered)
            is_done = root.progress.reput_from_offset > 0
            root.close(clean=True)
            assert bool(built_tree(copy)) == is_done
        dispatch_all(store_root, copy, config)
        assert_same_store(copy, tmp_path / "whole")
    assert rolled_back > (10 if stride == 1 else 2)


def test_the_record_of_a_batch_whose_first_part_is_in_no_queue_is_of_its_begin(
    tmp_path: Path,
) -> None:
    config = replace(VARIANTS["plain"], max_index_num=4)
    prepared = [replace(m, sys_flag=4, queue_offset=0) for m in messages(5)]
    store_root = write_store(tmp_path, [*prepared, *messages(9)])
    dispatch_all(store_root, tmp_path / "whole", config)
    output = tmp_path / "output"
    root = DispatchRoot.open(output, store_root, config, disk=HastyDisk())
    sink = DispatchSink(root, config)
    (requests,), _ = by_walk(store_root, config, 0)
    sink.apply_part([requests.slice(0, 5)])
    assert built_tree(output)
    sink.apply_part([requests.slice(5, len(requests))])
    root._release()  # killed
    root = DispatchRoot.open(output, store_root, config, disk=HastyDisk())
    assert built_tree(output) == {}
    root.close(clean=True)
    dispatch_all(store_root, output, config)
    assert_same_store(output, tmp_path / "whole")


def test_damage_in_a_part_keeps_all_before_it_and_nothing_behind(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, sent(60))
    requests = [s for s in stretches_in(store_root) if len(s)]  # type: ignore[arg-type]
    root = DispatchRoot.open(tmp_path / "output", store_root, CONFIG, disk=HastyDisk())
    sink = DispatchSink(root, CONFIG)
    first, second, third = requests[:3]
    sink.apply_part([first, Damage(first.end, second.end, "f", "why")])
    assert sink.applied_to() == first.end
    sink.apply_part([third])
    with pytest.raises(DamageError, match="why"):
        sink.apply([])
    sink.close()
    assert root.progress.reput_from_offset == first.end
    assert not (tmp_path / "output" / "abort").exists()


def test_a_range_that_two_attempts_of_a_task_delivered_is_applied_once(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    stretches = stretches_in(store_root)
    spool = Spool(tmp_path / "spool")
    token = spool.begin()
    rows = []
    for stretch in stretches:
        span, batch = (stretch.begin, stretch.end), to_batch(stretch)
        names = sorted(spool.write(span, [batch]) for _ in range(2))
        row = batch.to_pylist()[0] | {"spooled": names[1]}  # the first is the one found
        rows.append(pa.RecordBatch.from_pylist([row], schema=batch.schema))

    class Batch:
        def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
            while sink.applied_to() < stretches[1].end:  # the thread of the spool applies both
                time.sleep(0.01)
            return pa.Table.from_batches(rows)

    root = DispatchRoot.open(output, store_root, CONFIG, disk=HastyDisk())
    sink = DispatchSink(root, CONFIG)
    _BatchApplier(sink, spool).apply(Batch(), 0)  # type: ignore[arg-type]
    sink.close()
    dispatch_all(store_root, tmp_path / "whole", CONFIG)
    assert_same_store(output, tmp_path / "whole")
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [token]


# --- A real query -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of four files, whose ranges are large enough to be spooled."""
    root = tmp_path_factory.mktemp("spool") / "store"
    properties = make_properties(uniq_key="01234567########", keys="order-######## all")
    templates = [NewMessage("Topic", q, b"body ########", properties) for q in range(5)]
    with CommitLogWriter(root, LARGE) as writer:
        while writer.end < 3 * FILE_SIZE + FILE_SIZE // 2:
            writer.append_many(templates, 5_000)
    (root / "broker.conf").write_text(CONF)
    return root


@pytest.fixture(scope="module")
def dispatched(store: Path) -> Path:
    dispatch_all(store, store.parent / "dispatched", LARGE)
    return store.parent / "dispatched"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of the taken files are added."""
    names: list[str] = []
    take = Spool.take

    def note(spool: Spool, name: str) -> Iterable[pa.RecordBatch]:
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
def test_a_job_that_fails_when_half_is_applied_leaves_the_root_as_it_was(
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
    assert running.root.progress.reput_from_offset >= FILE_SIZE
    root = DispatchRoot.open(output, copy, LARGE)
    assert root.recovered == ()
    root.close(clean=True)
    assert verify(copy, output, LARGE).is_equal


@pytest.mark.spark
@pytest.mark.parametrize("fail_on_data_loss", first_cases([True, False]))
def test_damage_in_a_spooled_range_is_told_as_such(
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
def test_a_rebuild_by_a_query_keeps_what_lies_before_damage(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    copy, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(store, copy)
    flip_in_a_body(sorted((copy / "commitlog").iterdir())[1])
    feed = spark_feed(spark, copy, LARGE)
    rebuilt = rebuild_root(DispatchRoot.replacing(output, copy, LARGE), feed)
    assert rebuilt.damage is not None
    with pytest.raises(DamageError):
        dispatch_all(copy, tmp_path / "expected", LARGE)
    assert_same_store(output, tmp_path / "expected")
    with pytest.raises(DamageError):
        verify(copy, output, LARGE, feed=lambda _, c, s: feed((0, 3 * FILE_SIZE), c, s))


@pytest.mark.spark
def test_an_error_while_parts_are_applied_is_the_querys(
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
