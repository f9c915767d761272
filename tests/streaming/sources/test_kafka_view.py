"""``columns=kafka``: the columns of Spark's Kafka source, and which messages they show."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.errors import ConfigError
from store.layout import SYS_COMMIT, SYS_PREPARED
from streaming import CommitLogDataSource, register_source
from streaming.sources.message_source import FORMAT
from streaming.sources.options import parse_options
from tests.support.stores.written import make_store

pytestmark = pytest.mark.spark

# The schema of Spark's Kafka source with includeHeaders=true, as its documentation lists it.
KAFKA_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register_source(spark, CommitLogDataSource)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_root = tmp_path_factory.mktemp("store")
    config = make_store(store_root, 300)
    with CommitLogWriter(store_root, config) as writer:
        writer.append(NewMessage("Bare", 3, b"x"))
        writer.append(NewMessage("Bare", 3, b"half", sys_flag=SYS_PREPARED))
        writer.append(NewMessage("Bare", 3, b"whole", make_properties(), sys_flag=SYS_COMMIT))
    return store_root


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(columns="kafka", **options).load(str(store))


def test_the_columns_are_those_of_the_kafka_source(spark: SparkSession, store: Path) -> None:
    frame = load(spark, store)
    kafka = spark.createDataFrame([], KAFKA_SCHEMA).schema
    assert frame.schema.simpleString() == kafka.simpleString()
    plain = spark.read.format(FORMAT).load(str(store))
    born = {(r.topic, r.queue_id, r.queue_offset): r.born_timestamp for r in plain.collect()}
    rows = frame.where("topic != 'Bare'").orderBy("topic", "partition", "offset").collect()
    assert len(rows) == 300
    first = rows[1].asDict(recursive=True)
    assert first["timestamp"] == born["TopicA", 0, 1]
    assert {r.timestampType for r in rows} == {0}
    expected: dict[str, Any] = {
        "key": b"k03 a", "topic": "TopicA", "partition": 0, "offset": 1,
        "headers": [
            {"key": "UNIQ_KEY", "value": b"U00000003"}, {"key": "KEYS", "value": b"k03 a"},
        ],
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert first["value"].startswith(b"body ")
    assert {r.key for r in rows if r.topic == "TopicB"} == {None}


def test_uncommitted_messages_are_left_out_and_no_properties_are_null_headers(
    spark: SparkSession, store: Path
) -> None:
    rows = load(spark, store).where("topic = 'Bare'").collect()
    assert [(bytes(r.value), r.partition, r.key, r.headers) for r in rows] == [
        (b"x", 3, None, None),
        (b"whole", 3, None, None),
    ]
    assert spark.read.format(FORMAT).load(str(store)).where("topic = 'Bare'").count() == 3


def test_a_schema_selects_columns_and_filters_are_pushed_down(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = spark.read.format(FORMAT).option("columns", "kafka")
    frame = some.schema("timestampType INT, key BINARY, broker STRING").load(str(store))
    assert frame.columns == ["timestampType", "key", "broker"]
    assert frame.count() == 302
    only = load(spark, store, includeBody="false").where("partition = 1 AND offset BETWEEN 3 AND 7")
    assert "value" not in only.columns
    assert sorted(r.offset for r in only.collect()) == [3, 4, 5, 6, 7]
    only.explain("formatted")
    assert "EqualTo(partition,1)" in capsys.readouterr().out
    with pytest.raises(Exception, match="columns=kafka has no column 'tags'; the columns are key,"):
        some.schema("tags STRING").load(str(store)).count()
    with pytest.raises(Exception, match="column 'key' has the Arrow type binary, not string"):
        some.schema("key STRING").load(str(store)).count()


def test_several_stores_have_a_column_broker(spark: SparkSession, store: Path) -> None:
    read = spark.read.format(FORMAT).option("columns", "kafka")
    assert read.load(f"{store.parent}/{store.name}*").columns[-2:] == ["headers", "broker"]


def test_other_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="'columns' = 'avro' is neither message nor kafka"):
        parse_options({"path": "a", "columns": "avro"})
