"""The files of an export as Spark, DuckDB and users read them."""

import json
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from reput.cli import run
from reput.export.task import NO_VALUE
from store.errors import ConfigError, DamageError
from tests.logs.build import Message
from tests.support.exporting import export, make_store
from tests.support.stores.aged import log_files
from tests.support.verify_stores import flip, messages

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sent = [*messages(30), *(Message("Other", queue_offset=n, body=b"\xff") for n in range(3))]
    return make_store(tmp_path, sent)


def test_spark_and_duckdb_read_the_messages_of_the_log_from_an_export(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    to = tmp_path / "exported"
    export(store, to)
    rows = spark.read.parquet(str(to)).orderBy("commit_log_offset").collect()
    assert [(r.topic, r.queue_offset, bytes(r.body)) for r in rows] == [
        *(("TopicTest", n, b"0123456789" * 10) for n in range(30)),
        *(("Other", n, b"\xff") for n in range(3)),
    ]
    assert str(rows[0].day) == "2023-11-14"
    table = f"read_parquet('{to}/**/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(f"select topic, count(*), max(keys) from {table} group by 1 order by 1")
    assert found.fetchall() == [("Other", 3, None), ("TopicTest", 30, "k9 common")]


def test_spark_reads_back_hostile_topics_and_json_lines(
    spark: SparkSession, tmp_path: Path
) -> None:
    topics = [NO_VALUE, "a/b", "a%b", "%52ETRY", "a=b:c", "Grüße 世界", "{x}[y]^?*", "a b+"]
    sent = [Message(topic, body=topic.encode()) for topic in topics]
    store_root = make_store(tmp_path, sent)
    for kind in ("parquet", "jsonl"):
        to = tmp_path / kind
        export(store_root, to, file_format=kind)
        read = spark.read.parquet if kind == "parquet" else spark.read.json
        rows = read(str(to)).selectExpr("topic", "cast(body as string) body").collect()
        assert sorted(r.topic for r in rows) == sorted(topics)
        assert [r.topic for r in rows] == [r.body for r in rows]


def test_json_lines_of_a_topic_and_a_time(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    begin = 1_700_000_000_000
    times = {"from_time": begin + 5_000, "to_time": begin + 9_000}
    export(store, to, file_format="jsonl", topics=("TopicTest",), **times)
    lines = [line for path in to.rglob("part-*.jsonl") for line in path.read_text().splitlines()]
    rows = sorted((json.loads(line) for line in lines), key=lambda row: row["queue_offset"])
    assert [row["queue_offset"] for row in rows] == [5, 6, 7, 8, 9]
    assert rows[0]["body"] == "0123456789" * 10
    assert rows[0]["properties"] == {"TAGS": "A", "KEYS": "k5 common"}
    assert {p.relative_to(to).parts[0] for p in to.rglob("part-*")} == {"topic=TopicTest"}


def test_the_command_exports_and_refuses_a_directory_that_is_not_empty(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "exported"
    assert run(["export", str(store), "--to", str(to), "--format", "jsonl", "--json"]) == 0
    out = capsys.readouterr().out
    files = [path for path in to.rglob("part-*") if path.is_file()]
    assert json.loads(out)["files"] == len(files) > 1
    assert run(["export", str(store), "--to", str(to)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(["export", str(store), "--to", str(tmp_path / "new"), "--format", "csv"]) == 2
    assert "known are parquet, jsonl" in capsys.readouterr().err


def test_an_export_of_a_damaged_log_fails_and_leaves_no_files(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    flip(log_files(store)[1], 100)
    to = tmp_path / "exported"
    with pytest.raises(DamageError, match="at offset 4096"):
        export(store, to)
    assert not list(to.rglob("part-*.parquet"))
    done = export(store, tmp_path / "rest", fail_on_data_loss=False)
    assert [lost.begin for lost in done.lost] == [4096]
    assert 20 < spark.read.parquet(str(tmp_path / "rest")).count() < 33
    with pytest.raises(ConfigError, match="is not a directory"):
        export(store / "none", tmp_path / "other")
