"""Offsets by queue: the own offsets of messages, in batch and as a stream."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from store.commitlog.record import NewMessage
from store.errors import ConfigError
from streaming import CommitLogDataSource, register_source
from streaming.sources.message_source import FORMAT
from streaming.sources.options import parse_options
from streaming.sources.queues.offsets import QueueOffsets
from tests.logs.build import Message
from tests.support.batches import collect_into, take_batches
from tests.support.bulk_writer import BulkWriter
from tests.support.stores.written import TEMPLATES, make_store, small_config
from tests.support.verify_stores import CONFIG, write_store

pytestmark = pytest.mark.spark

COUNT = 1_500  # 500 in each of TopicA 0, TopicA 1, TopicB 0


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register_source(spark, CommitLogDataSource)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_root = tmp_path_factory.mktemp("store")
    make_store(store_root, COUNT)
    return store_root


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(columns="kafka", **options).load(str(store))


def spans(frame: DataFrame) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return first and last offset and the count of each queue."""
    queues: dict[tuple[str, int], list[int]] = {}
    for row in frame.select("topic", "partition", "offset").collect():
        queues.setdefault((row.topic, row.partition), []).append(row.offset)
    return {queue: (min(of), max(of), len(of)) for queue, of in queues.items()}


def test_a_batch_reads_the_span_of_each_queue(spark: SparkSession, store: Path) -> None:
    start = {"TopicA": {"0": 490, "1": -1}, "TopicB": {"0": -2}}
    end = {"TopicA": {"0": 495}, "TopicB": {"0": 7}}
    offsets = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    assert spans(load(spark, store, **offsets)) == {
        ("TopicA", 0): (490, 494, 5),
        ("TopicB", 0): (0, 6, 7),
    }
    start = {"TopicA": {"0": 490}}  # a queue that is not named is read from its beginning
    frame = load(spark, store, startingOffsets=json.dumps(start))
    assert spans(frame) == {("TopicA", 0): (490, 499, 10), ("TopicA", 1): (0, 499, 500)}


def tasks(frame: DataFrame) -> int:
    """Return how many tasks read rows."""
    return frame.selectExpr("spark_partition_id()").distinct().count()


def test_the_log_is_read_from_the_first_wanted_message_on(spark: SparkSession, store: Path) -> None:
    start = {"TopicA": {"0": 498, "1": 497}}
    late = load(spark, store, startingOffsets=json.dumps(start), minPartitions="50")
    all_parts = load(spark, store, minPartitions="50")
    assert tasks(late) < tasks(all_parts)
    assert late.count() == 2 + 3


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_beyond_the_end_of_its_queue_is_refused(
    spark: SparkSession, store: Path, option: str
) -> None:
    says = f"'{option}': queue 1 of topic 'TopicA' has no offset 501: it holds 0 to 500"
    with pytest.raises(Exception, match=says):
        load(spark, store, **{option: '{"TopicA": {"1": 501}}'}).count()
    next_offset = {option: '{"TopicA": {"1": 500, "0": 0}}'}
    assert load(spark, store, **next_offset).count() == 500


def test_expired_messages_of_a_queue_are_lost_unless_losses_are_skipped(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_store(tmp_path, COUNT)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    offsets = {"startingOffsets": '{"TopicB": {"0": 3}}'}
    with pytest.raises(Exception, match=r"queue 0 of topic 'TopicB' begins at offset \d+ now"):
        load(spark, tmp_path, **offsets).count()
    found = spans(load(spark, tmp_path, failOnDataLoss="false", **offsets))
    first, last, count = found["TopicB", 0]
    assert (first > 3, last, count) == (True, 499, 500 - first)


in_workers = pytest.mark.classic("the workers apply the bounds, and they are the same")
OWN = [0, 1, 7, 8, 7, 8, 9]  # a gap, and two repeated offsets


@in_workers
@pytest.mark.parametrize(
    ("option", "bound", "expected"),
    [
        ("endingOffsets", -1, OWN),
        ("startingOffsets", -2, OWN),
        pytest.param("startingOffsets", -1, [], marks=pytest.mark.exhaustive),
        ("endingOffsets", 8, [0, 1, 7, 7]),
        ("startingOffsets", 8, [8, 8, 9]),
        ("startingOffsets", 3, [7, 8, 7, 8, 9]),  # no message has it
        pytest.param("endingOffsets", 10, OWN, marks=pytest.mark.exhaustive),
    ],
)
def test_bounds_are_own_offsets_and_a_repeated_one_returns_every_copy(
    spark: SparkSession, tmp_path: Path, option: str, bound: int, expected: list[int]
) -> None:
    store = write_store(tmp_path, [Message("A", 0, n) for n in OWN])
    (store / "broker.conf").write_text(
        f"mappedFileSizeCommitLog={CONFIG.mapped_file_size_commit_log}\n"
    )
    columns = "offset BIGINT"
    frame = spark.read.format(FORMAT).options(columns="kafka").schema(columns)
    rows = frame.option(option, json.dumps({"A": {"0": bound}})).load(str(store)).collect()
    assert sorted(row.offset for row in rows) == sorted(expected)


def drain(spark: SparkSession, store: Path, checkpoint: Path, **options: str) -> tuple[Any, Any]:
    """Run a stream over what is available now; return its rows and its last offset."""
    seen = checkpoint.with_name("batches")
    frame = spark.readStream.format(FORMAT).options(columns="kafka", **options).load(str(store))
    query = (
        frame.writeStream.foreachBatch(collect_into(seen, "topic", "partition", "offset"))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [row for batch in take_batches(seen) for row in batch]
    assert len(set(rows)) == len(rows), "a message was delivered twice"
    progress = query.lastProgress
    return rows, json.loads(progress["sources"][0]["endOffset"]) if progress else None


@in_workers
def test_a_stream_keeps_the_bound_of_each_queue_across_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    make_store(store, 300)
    checkpoint = tmp_path / "checkpoint"
    start = json.dumps({"TopicA": {"0": 40, "1": -1}})
    rows, end = drain(spark, store, checkpoint, startingOffsets=start, maxBytesPerTrigger="2k")
    assert sorted(rows) == [("TopicA", 0, n) for n in range(40, 100)]
    assert end["queues"] == {"TopicA": {"0": 40, "1": 100}}
    with BulkWriter(store, small_config()) as writer:
        writer.append_many(TEMPLATES, 30)
        writer.append(NewMessage("TopicA", 2, b"a new queue"))
    rows, end = drain(spark, store, checkpoint)  # the checkpoint has the offsets
    assert Counter(r[:2] for r in rows) == {("TopicA", 0): 10, ("TopicA", 1): 10, ("TopicA", 2): 1}
    assert end["queues"] == {"TopicA": {"0": 40, "1": 100}}


def test_several_stores_have_offsets_by_broker_and_queue(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "b", 30)
    paths = json.dumps([str(store), str(tmp_path / "b")])
    names = json.dumps({str(store): "a", str(tmp_path / "b"): "b"})
    start = {"a": {"TopicB": {"0": 495}}, "b": {"commit_log_offset": 0}}
    read = spark.read.format(FORMAT).options(columns="kafka", paths=paths, brokerNames=names)
    frame = read.option("startingOffsets", json.dumps(start)).load()
    assert {r.broker: r["count"] for r in frame.groupBy("broker").count().collect()} == {
        "a": 5,
        "b": 30,
    }


def test_each_subscribed_topic_needs_offsets(spark: SparkSession, store: Path) -> None:
    options = {"subscribe": "TopicA,TopicB", "startingOffsets": '{"TopicA": {"0": 1}}'}
    says = "has no offsets of topic 'TopicB', which 'subscribe' names"
    with pytest.raises(Exception, match=says):
        load(spark, store, **options).count()


@pytest.mark.parametrize(
    "text",
    [
        '{"T": {"0": -3}}', '{"T": {"a": 1}}', '{"T": {"00": 1}}', '{"T": {"0": true}}',
        '{"T": {"2147483648": 1}}', '{"T": {"0": 9223372036854775808}}', '{"T": 1}',
        '{"b": {"T": {"0": 1}}, "c": 1}', "{}",
    ],
)  # fmt: skip
def test_malformed_offsets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="'startingOffsets' = "):
        parse_options({"path": "a", "startingOffsets": text})


def test_offsets_by_broker_and_queue_are_parsed() -> None:
    text = '{"b": {"T": {"0": 1, "1": -2}}, "c": {"commit_log_offset": 5}}'
    parsed = parse_options({"path": "a", "startingOffsets": text}).starting_offsets
    assert parsed == {"b": QueueOffsets({"T": {0: 1, 1: -2}}), "c": 5}
