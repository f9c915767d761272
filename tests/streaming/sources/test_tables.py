"""Tables of a commit log in Spark's catalog, and topics that a store does not hold."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from streaming import CommitLogDataSource, register_source
from streaming.sources.known_topics import warn_of_unlisted
from streaming.sources.message_source import FORMAT
from tests.support.spark_stderr import read_until
from tests.support.stores.written import corrupt, make_store

pytestmark = pytest.mark.spark

COUNT = 300


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_root = tmp_path_factory.mktemp("a store%20of")
    make_store(store_root, COUNT)
    return store_root


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> Iterator[None]:
    register_source(spark, CommitLogDataSource)
    yield
    for name in ("log_table", "part", "declared"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


def test_a_table_is_selected_from_in_a_new_session(spark: SparkSession, store: Path) -> None:
    spark.sql(f"CREATE TABLE log_table USING `{FORMAT}` OPTIONS (path '{store}')")
    spark.sql(
        f"CREATE TABLE part USING `{FORMAT}` OPTIONS (subscribe 'TopicB', includeBody 'false', "
        f"maxBytesPerTrigger '1m') LOCATION '{store}' COMMENT 'a part' "
        "TBLPROPERTIES ('team' = 'orders')"
    )
    other = spark.newSession()
    register_source(other, CommitLogDataSource)
    for session in (spark, other):
        assert count(session, "SELECT count(*) FROM log_table") == COUNT
        assert count(session, "SELECT count(*) FROM log_table WHERE topic = 'TopicA'") == 200
        assert count(session, "SELECT count(*) FROM part") == 100
        assert "body" in session.table("log_table").columns
        assert "body" not in session.table("part").columns


def test_options_of_a_select_replace_those_of_the_table(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    make_store(tmp_path / "other", 30)
    spark.sql(f"CREATE TABLE part USING `{FORMAT}` OPTIONS (path '{store}', subscribe 'TopicB')")
    assert count(spark, "SELECT count(*) FROM part WITH (subscribe = 'TopicA')") == 200
    other = f"SELECT count(*) FROM part WITH (path = '{tmp_path / 'other'}')"
    assert count(spark, other) == 10
    spark.sql(f"CREATE TABLE declared (topic STRING) USING `{FORMAT}` OPTIONS (path '{store}')")
    assert count(spark, f"SELECT count(*) FROM declared WITH (path = '{store}')") == COUNT
    with pytest.raises(Exception, match=r"no store given: .* WITH"):
        count(spark, "SELECT count(*) FROM declared")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("startingOffset", "startingOffsets"), ("subscribes", "subscribe"), ("weight", None)],
)
def test_an_unknown_option_is_refused_with_the_one_it_resembles(
    spark: SparkSession, store: Path, given: str, meant: str | None
) -> None:
    create = f"CREATE TABLE log_table USING `{FORMAT}` OPTIONS (path '{store}', {given} 'x')"
    says = rf"option '{given.lower()}' \(value 'x'\) is not known; " + (
        f"did you mean '{meant}'" if meant else "known are"
    )
    with pytest.raises(Exception, match=says):
        spark.sql(create)
    with pytest.raises(Exception, match=says):
        spark.read.format(FORMAT).option(given, "x").load(str(store)).schema  # noqa: B018 - raises


def test_a_stream_refuses_an_option_of_batches_by_name(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    reader = spark.readStream.format(FORMAT).option("endingOffsets", "latest")
    writer = reader.load(str(store)).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="'endingOffsets' is for batch reads only"):
        query.start().awaitTermination()


def rows(spark: SparkSession, store: Path, **options: str) -> int:
    return spark.read.format(FORMAT).options(**options).load(str(store)).count()


def test_a_batch_read_of_an_unknown_topic_is_an_error(
    spark: SparkSession, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception, match=r"UnknownTopicError: .*does not hold topic 'Nope'"):
        rows(spark, store, subscribe="Nope")
    assert rows(spark, store, subscribe="TopicA,Nope") == 200
    end = '{"commit_log_offset": 0}'
    assert rows(spark, store, subscribe="TopicB", endingOffsets=end) == 0
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    (copy / "consumequeue" / "Idle").mkdir(parents=True)
    assert rows(spark, copy, subscribe="Idle") == 0
    assert rows(spark, copy, subscribe="Idle,Nope") == 0
    warn_of_unlisted(("Idle", "Nope", ".."), [copy])
    named = [r.getMessage().split("names topic ")[1].split(":")[0] for r in caplog.records]
    assert named == ["'Nope'", "'..'"]
    corrupt(copy / "commitlog" / f"{0:020d}", 8)
    assert rows(spark, copy, subscribe="Nope", failOnDataLoss="false") == 0


def test_a_stream_of_an_unknown_topic_waits_with_a_warning(
    spark: SparkSession, store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reader = spark.readStream.format(FORMAT).option("subscribe", "Nope")
    writer = reader.load(str(store)).writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert "names topic 'Nope'" in read_until(capfd, "names topic 'Nope'")
