"""The data source `rocketmq-commitlog` on a real Spark engine."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from streaming import CommitLogDataSource
from streaming.sources.message_source import FORMAT, MESSAGE_SCHEMA
from tests.support.batches import collect_into, take_batches
from tests.support.bulk_writer import BulkWriter, numbered
from tests.support.cases import first_cases
from tests.support.spark_stderr import read_until
from tests.support.stores.rocksdb import make_rocksdb
from tests.support.stores.written import TEMPLATES, corrupt, make_store, small_config

pytestmark = pytest.mark.spark

COUNT = 1_500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one log for all reads."""
    store_root = tmp_path_factory.mktemp("store")
    make_store(store_root, COUNT)
    return store_root


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    spark.dataSource.register(CommitLogDataSource)


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options).load(str(store))


def offsets_of(store: Path) -> list[int]:
    """Return the offset of each record."""
    log = CommitLog([store / "commitlog"], small_config())
    parts = LogPlanner(log, lambda: True).plan(0).ranges
    scanner = Scanner(small_config())
    return [o for p in parts for s in scanner.read(p) for o in s.commit_log_offset.tolist()]


def drain(
    spark: SparkSession,
    store: Path,
    tmp_path: Path,
    *,
    into: list[list[int]] | None = None,
    **options: str,
) -> Any:
    """Run a stream over the current log; return the query and the rows of each batch."""
    batches = into if into is not None else []
    seen = tmp_path / "batches"
    query = (
        spark.readStream.format(FORMAT)
        .options(**options)
        .schema("commit_log_offset BIGINT")
        .load(str(store))
        .writeStream.foreachBatch(collect_into(seen, "commit_log_offset"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        batches += [sorted(offset for (offset,) in rows) for rows in take_batches(seen)]
    return query, batches


def test_queues_in_rocksdb_are_not_needed(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path, 30)
    make_rocksdb(tmp_path / "consumequeue")
    assert load(spark, tmp_path).count() == 30


def test_batch_read_has_one_row_per_message(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store)
    assert (
        frame.schema.simpleString()
        == spark.createDataFrame([], MESSAGE_SCHEMA).schema.simpleString()
    )
    rows = frame.orderBy("commit_log_offset").collect()
    assert [r.commit_log_offset for r in rows] == offsets_of(store)
    message = numbered(TEMPLATES[3 % 3], 3)
    row = rows[3]
    assert (row.topic, row.queue_id, row.queue_offset) == ("TopicA", 0, 1)
    assert bytes(row.body) == message.body
    assert (row.tags, row.keys, row.uniq_key) == (None, "k03 a", "U00000003")
    assert row.properties == {"UNIQ_KEY": "U00000003", "KEYS": "k03 a"}
    assert (row.born_host, row.store_host) == ("127.0.0.1:50000", "127.0.0.1:10911")


def test_sql_over_the_log(spark: SparkSession, store: Path) -> None:
    load(spark, store).createOrReplaceTempView("log")
    counted = spark.sql("SELECT topic, count(*) AS n FROM log GROUP BY topic").collect()
    assert Counter({r.topic: r.n for r in counted}) == {"TopicA": 1000, "TopicB": 500}


def test_documented_questions_are_answered(spark: SparkSession, store: Path) -> None:
    load(spark, store).createOrReplaceTempView("log")
    text = (Path(__file__).parents[3] / "docs" / "sql.md").read_text("utf-8")
    questions = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    questions = [q.replace("OrderTopic", "TopicA").replace("order-42", "a") for q in questions]
    by_minute, largest, senders = (spark.sql(q).collect() for q in questions)
    assert sum(r.messages for r in by_minute) == COUNT
    assert {r.topic for r in by_minute} == {"TopicA", "TopicB"}
    assert [r.bytes for r in largest] == [len(TEMPLATES[1].body)] * 10
    assert [r.queue_offset for r in largest] == list(range(10))
    assert [r.queue_offset for r in senders] == list(range(COUNT // 3))
    assert {(r.topic, r.queue_id, r.born_host) for r in senders} == {
        ("TopicA", 0, "127.0.0.1:50000")
    }


def test_topics_offsets_and_times_narrow_a_read(spark: SparkSession, store: Path) -> None:
    offsets = offsets_of(store)
    assert load(spark, store, subscribe="TopicB,Nope").count() == 500
    assert load(spark, store, subscribePattern="Topic[AC]").count() == 1000
    start, end = f'{{"commit_log_offset": {offsets[7]}}}', f'{{"commit_log_offset": {offsets[90]}}}'
    part = load(spark, store, startingOffsets=start, endingOffsets=end)
    assert sorted(r[0] for r in part.select("commit_log_offset").collect()) == offsets[7:90]
    stamps = {r[0] for r in load(spark, store).selectExpr("unix_millis(store_timestamp)").collect()}
    late = load(spark, store, startingTimestamp=str(max(stamps) + 1))
    assert late.count() == 0
    assert load(spark, store, endingTimestamp=str(max(stamps))).count() == COUNT


def test_body_can_be_omitted(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, includeBody="false")
    assert "body" not in frame.columns
    assert frame.count() == COUNT
    slim = spark.read.format(FORMAT).schema("keys STRING, size INT").load(str(store))
    assert slim.columns == ["keys", "size"]
    assert slim.count() == COUNT


def test_partitions_follow_min_partitions(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store, minPartitions="12")
    assert frame.selectExpr("spark_partition_id()").distinct().count() >= 12
    assert frame.count() == COUNT


@pytest.mark.parametrize(
    ("option", "value"),
    first_cases(
        [
            ("startingoffset", "earliest"),
            ("minPartitions", "0"),
            ("startingOffsets", "first"),
            ("startingOffsets", '{"commit_log_offset": -1}'),
            ("startingTimestamp", "yesterday"),
            ("failOnDataLoss", "maybe"),
            ("subscribePattern", "("),
            ("brokerVersion", "3.2"),
        ],
        2,
    ),
)
def test_unknown_or_malformed_option_is_named(
    spark: SparkSession, store: Path, option: str, value: str
) -> None:
    with pytest.raises(Exception, match=option) as caught:
        load(spark, store, **{option: value}).count()
    assert value in str(caught.value)


def test_starting_inside_a_record_is_refused(spark: SparkSession, store: Path) -> None:
    with pytest.raises(Exception, match="nearest boundaries are 0 and"):
        load(spark, store, startingOffsets='{"commit_log_offset": 5}').count()


def test_stream_honours_max_bytes_per_trigger(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    query, batches = drain(
        spark, store, tmp_path, startingOffsets="earliest", maxBytesPerTrigger="50k"
    )
    offsets = offsets_of(store)
    assert [o for b in batches for o in b] == offsets
    assert len(batches) >= offsets[-1] // (51 * 1024)
    spans = [b[-1] - b[0] for b in batches]
    assert max(spans) <= 51 * 1024
    latest = query.lastProgress.sources[0].latestOffset
    assert '"commit_log_offset"' in latest


def test_stream_starts_at_latest_and_resumes_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    config = make_store(store, 40)
    _, before = drain(spark, store, tmp_path)
    assert before == [[]]  # Spark's first batch records where the query begins
    logged = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    with BulkWriter(store, config) as writer:
        writer.append_many(TEMPLATES, 25)
    _, after = drain(spark, store, tmp_path)
    assert [o for b in after for o in b] == offsets_of(store)[40:]
    assert logged == f'{{"commit_log_offset": {offsets_of(store)[40]}}}'  # a contract


def test_a_stream_delivers_the_records_before_damage_and_then_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    make_store(store, 1_000)
    offsets = offsets_of(store)
    corrupt(store / "commitlog" / f"{0:020d}", offsets[100] + 8)
    seen: list[list[int]] = []
    with pytest.raises(StreamingQueryException) as caught:
        drain(spark, store, tmp_path, startingOffsets="earliest", into=seen)
    assert f"at offset {offsets[100]}: the body does not match its CRC" in str(caught.value)
    assert seen == [offsets[:100]]
    with pytest.raises(StreamingQueryException, match=f"at offset {offsets[100]}:"):
        drain(spark, store, tmp_path, into=seen)
    assert seen == [offsets[:100]]
    drain(spark, store, tmp_path, failOnDataLoss="false", into=seen)
    assert [o for batch in seen for o in batch] == offsets[:100] + offsets[101:]


@pytest.mark.classic("its server resumes a stream as a classic session does")
@pytest.mark.parametrize("fails", first_cases([True, False]))
def test_a_logged_batch_whose_file_expired_does_not_wedge_the_stream(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, fails: bool
) -> None:
    store = tmp_path / "store"
    make_store(store, 1_500)
    offsets = offsets_of(store)
    _, whole = drain(
        spark, store, tmp_path, startingOffsets="earliest", maxBytesPerTrigger="100000"
    )
    assert [o for batch in whole for o in batch] == offsets
    first, last = whole[1][0], whole[2][0]
    commits = tmp_path / "checkpoint" / "commits"
    for number in range(1, len(whole)):  # batch 1 was logged, no later one was begun
        for directory in (commits, commits.with_name("offsets")):
            if directory == commits or number > 1:
                (directory / str(number)).unlink()
                (directory / f".{number}.crc").unlink(missing_ok=True)
    for base in (0, 65536):
        (store / "commitlog" / f"{base:020d}").unlink()
    assert first < 131072 < last
    seen: list[list[int]] = []
    lost = f"offsets {first} to 131072"
    if fails:
        with pytest.raises(StreamingQueryException, match=f"LostDataError: .*{lost} are lost"):
            drain(spark, store, tmp_path, into=seen)
        assert seen == []
        return
    drain(spark, store, tmp_path, failOnDataLoss="false", into=seen)
    assert [o for batch in seen for o in batch] == [o for o in offsets if o >= 131072]
    says = f"{lost} are left out: this part of the log has expired"
    assert says in read_until(capfd, says)


def test_damage_raises_with_file_and_offset(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, 1_000)
    offset = offsets_of(store)[100]
    corrupt(store / "commitlog" / f"{0:020d}", offset + 8)
    with pytest.raises(Exception, match=f"at offset {offset}: the body does not match its CRC"):
        load(spark, store).count()
    assert load(spark, store, failOnDataLoss="false").count() == 999
