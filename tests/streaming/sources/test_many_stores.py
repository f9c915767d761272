"""Several stores in one read: paths, globs, the column of the broker, offsets by broker."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from store.errors import ConfigError
from streaming import CommitLogDataSource, register_source
from streaming.sources.message_source import FORMAT
from streaming.sources.options import parse_options
from streaming.sources.stores import find_stores
from tests.support.batches import collect_into, take_batches
from tests.support.stores.written import corrupt, make_store

pytestmark = pytest.mark.spark

resumes = pytest.mark.classic("its server resumes a stream as a classic session does")
COUNTS = {"broker-a": 300, "broker-b": 200, "broker-c": 100}


def make_broker(store_root: Path, name: str, count: int) -> Path:
    """Write a store of ``count`` messages whose broker.conf names the broker."""
    make_store(store_root, count)
    conf = store_root / "broker.conf"
    conf.write_text(f"{conf.read_text()}\nbrokerName={name}\n")
    return store_root


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, Path]:
    return {
        name: make_broker(tmp_path / "data" / name[-1] / "store", name, count)
        for name, count in COUNTS.items()
    }


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register_source(spark, CommitLogDataSource)


def by_broker(frame: DataFrame) -> dict[str, int]:
    return {row.broker: row["count"] for row in frame.groupBy("broker").count().collect()}


class Stream:
    """A stream over stores into a table in memory, restarted by each run from its checkpoint."""

    def __init__(self, spark: SparkSession, tmp_path: Path, paths: list[str], **options: str):
        self._spark, self._checkpoint = spark, tmp_path / "checkpoint"
        self._seen: list[tuple[str, int]] = []
        self.options = {"paths": json.dumps(paths), "startingOffsets": "earliest"} | options

    def run(self, path: str | None = None, **options: str) -> Any:
        """Read what is available now; return the end offset of the last batch, None if none ran."""
        given = {name: v for name, v in (self.options | options).items() if v}
        reader = self._spark.readStream.format(FORMAT).options(**given)
        frame = reader.load() if path is None else reader.load(path)

        batches = self._checkpoint.with_name("batches")
        collect = collect_into(batches, "broker", "commit_log_offset")
        writer = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._checkpoint)).start()
        try:
            query.awaitTermination()
        finally:
            self._seen += [(b, at) for rows in take_batches(batches) for b, at in rows]
        progress = query.lastProgress
        return json.loads(progress["sources"][0]["endOffset"]) if progress else None

    @property
    def counts(self) -> Counter[str]:
        """The number of messages seen by broker, each once."""
        assert len(set(self._seen)) == len(self._seen), "a message was delivered twice"
        return Counter(broker for broker, _ in self._seen)


# --- batch -------------------------------------------------------------------------------------


def test_a_list_of_paths_and_a_glob_read_all_stores(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    reader = spark.read.format(FORMAT)
    assert by_broker(reader.load([str(path) for path in stores.values()])) == COUNTS
    assert by_broker(reader.load(f"{tmp_path}/data/*/store")) == COUNTS
    paths = json.dumps([f"file://{stores['broker-b']}", f"{tmp_path}/data/[ac]/store"])
    assert by_broker(reader.option("paths", paths).load()) == COUNTS


def test_the_column_broker_comes_last_and_filters_skip_other_stores(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    corrupt(stores["broker-c"] / "commitlog" / f"{0:020d}", 8)
    frame = spark.read.format(FORMAT).load(f"{tmp_path}/data/*/store")
    assert frame.columns[-1] == "broker"
    assert frame.where("broker = 'broker-a'").count() == 300  # broker-c is not opened
    part = spark.read.format(FORMAT).schema("broker STRING, size INT").load(str(stores["broker-b"]))
    assert by_broker(part) == {"broker-b": 200}


def test_brokers_of_one_name_are_refused_unless_they_are_named(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    copy = str(shutil.copytree(stores["broker-a"], tmp_path / "copy"))
    paths = [str(stores["broker-a"]), copy]
    with pytest.raises(Exception, match=r"are both stores of broker 'broker-a'.*brokerNames"):
        spark.read.format(FORMAT).load(paths).count()
    named = spark.read.format(FORMAT).option("brokerNames", json.dumps({copy: "old"}))
    assert by_broker(named.load(paths)) == {"broker-a": 300, "old": 300}


def test_offsets_are_given_by_broker(spark: SparkSession, stores: dict[str, Path]) -> None:
    paths = [str(path) for path in stores.values()]
    first = spark.read.format(FORMAT).load(paths).where("topic = 'TopicB' AND queue_offset = 10")
    begin = {r.broker: r.at for r in first.selectExpr("broker", "commit_log_offset at").collect()}
    offsets = json.dumps({name: {"commit_log_offset": at} for name, at in begin.items()})
    read = spark.read.format(FORMAT).option("startingOffsets", offsets).load(paths)
    found = {r.broker: r[1] for r in read.groupBy("broker").min("commit_log_offset").collect()}
    assert begin == found
    for wrong in ('{"commit_log_offset": 0}', '{"broker-a": {"commit_log_offset": 0}}'):
        with pytest.raises(Exception, match="'startingOffsets' has no offset of broker 'broker-"):
            spark.read.format(FORMAT).option("startingOffsets", wrong).load(paths).count()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "a", "paths": '["b"]'}, "give 'path' or 'paths', not both"),
        ({"paths": '"b"'}, "option 'paths' = '\"b\"' is not a JSON list of paths"),
        ({"paths": "[]"}, "is not a JSON list of paths"),
        ({"paths": "[1]"}, "is not a JSON list of paths"),
        ({"paths": '["hdfs://a/b"]'}, "a store can only be read from a mounted file system"),
        ({"path": "a", "brokerNames": "[]"}, "'brokerNames' = '\\[\\]' is not a JSON object"),
        ({"path": "a", "startingOffsets": '{"b": 7}'}, "nor such offsets by broker"),
        (
            {"path": "/a", "brokerNames": '{"/b": "x"}'},
            "names '/b', which is not read",
        ),
    ],
)
def test_a_malformed_option_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_options(options)


def test_a_glob_matches_stores_alone(stores: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "data" / "lost+found").mkdir()
    (tmp_path / "data" / "file").touch()
    found = find_stores(parse_options({"path": f"{tmp_path}/data/*"}))
    assert found == ()
    found = find_stores(parse_options({"path": f"{tmp_path}/data/*/*"}))
    assert {store.broker for store in found} == COUNTS.keys()


def test_a_store_whose_broker_conf_is_unreadable_can_be_skipped(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    (stores["broker-a"] / "broker.conf").write_bytes(b"\xff")
    options = parse_options({"path": f"{tmp_path}/data/*/store", "brokerNames": "{}"})
    with pytest.raises(ConfigError, match="not a Java properties file"):
        find_stores(options)
    skipped: list[str] = []
    found = find_stores(options, lambda store_root, _: skipped.append(store_root))
    assert [store.broker for store in found] == ["broker-b", "broker-c"]
    assert skipped == [str(stores["broker-a"])]
    names = json.dumps({f"{stores['broker-a']}/": "a"})
    found = find_stores(parse_options({"path": f"{tmp_path}/data/*/store", "brokerNames": names}))
    assert [store.broker for store in found] == ["a", "broker-b", "broker-c"]


# --- streams -----------------------------------------------------------------------------------


@resumes
def test_a_stream_resumes_and_a_store_that_appears_joins(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    away = stores["broker-c"].rename(tmp_path / "away")
    stream = Stream(spark, tmp_path, [f"{tmp_path}/data/*/store"], maxBytesPerTrigger="20k")
    end = stream.run()
    assert end.keys() == {"broker-a", "broker-b"}
    assert stream.counts == {"broker-a": 300, "broker-b": 200}
    away.rename(stores["broker-c"])
    end = stream.run()
    assert stream.counts == COUNTS
    assert all(list(of_broker) == ["commit_log_offset"] for of_broker in end.values())
    stream.run()
    assert stream.counts == COUNTS


@resumes
def test_a_checkpoint_of_one_store_resumes_with_a_second_one(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    first, second = stores["broker-b"], stores["broker-a"]
    stream = Stream(spark, tmp_path, [str(first), str(second)])
    end = stream.run(str(first), paths="")
    assert list(end) == ["commit_log_offset"]
    assert stream.counts == {"broker-b": 200}
    stream.run()
    stream.run()
    assert stream.counts == {"broker-b": 200, "broker-a": 300}


@pytest.mark.parametrize("fails", [True, False])
def test_a_store_that_is_gone_is_lost_unless_losses_are_skipped(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path, fails: bool
) -> None:
    stream = Stream(
        spark, tmp_path, [f"{tmp_path}/data/*/store"], failOnDataLoss=str(fails).lower()
    )
    stream.run()
    stores["broker-b"].rename(tmp_path / "away")
    make_broker(stores["broker-a"], "broker-a", 30)  # the writer appends
    if fails:
        with pytest.raises(StreamingQueryException, match="broker 'broker-b' no longer exists"):
            stream.run()
        return
    stream.run()
    assert stream.counts == COUNTS | {"broker-a": 330}


def test_a_damaged_store_does_not_hold_back_the_others(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    corrupt(stores["broker-b"] / "commitlog" / f"{0:020d}", 8)
    skips = Stream(spark, tmp_path, [f"{tmp_path}/data/*/store"], failOnDataLoss="false")
    skips.run()
    counts = skips.counts
    assert (counts["broker-a"], counts["broker-c"]) == (300, 100)
    assert 0 < counts["broker-b"] < 200
