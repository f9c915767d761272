"""Bulk work through Spark: the rebuild of a whole root, and messages as files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import streaming.query
from checkpoints.bulk.rebuild import BulkRebuilt
from checkpoints.bulk.state import BULK_DIR
from store.errors import ConfigError, DamageError, StoreIOError, UnsupportedFormatError
from streaming.bulk import SparkRun, rebuild
from streaming.cli import run
from streaming.export import ExportOptions, export
from streaming.hive_partition import NO_VALUE
from streaming.query import DispatchOptions, begin_dispatch, query_error
from tests.checkpoints.test_retention import log_files
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.dispatching import assert_same_store, built_tree, dispatch_all
from tests.logs import Message, build_log, write_log
from tests.verify_stores import CONFIG, flip, messages, write_store

pytestmark = pytest.mark.spark

REAL = {"g1", "g3", "g5", "g7", "g10"}
CONF = """mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=13
"""


def reput(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from streaming.cli import main; main()"]
    command += map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sent = [*messages(30), *(Message("Other", queue_offset=n, body=b"\xff") for n in range(3))]
    root = write_store(tmp_path, sent)
    (root / "broker.conf").write_text(CONF)
    return root


@pytest.mark.parametrize(
    "golden", [p for p in ARCHIVES if archive_name(p) in REAL], indirect=True, ids=archive_name
)
def test_a_real_store_is_rebuilt_by_executors(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    rebuilt = rebuild(
        spark,
        golden.store_root,
        tmp_path,
        broker_conf=golden.store_root / "broker.conf",
        broker_version=golden.version,
        report=lambda done, total: told.append((done, total)),
    )
    assert_same_store(tmp_path, golden.expected)
    assert rebuilt.messages > 0
    assert told[-1][0] == told[-1][1] == rebuilt.end_offset - rebuilt.begin_offset


def test_an_error_of_a_task_keeps_its_kind_and_the_root_as_it_was(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    rebuild(spark, store, tmp_path / "output")
    before = built_tree(tmp_path / "output")

    def fail(_: int) -> None:
        raise UnsupportedFormatError("such a file at offset 7: not read")

    with pytest.raises(UnsupportedFormatError, match=r"such a file at offset 7: not read$"):
        SparkRun(spark.sparkContext)(fail, [1, 2, 3], lambda _: None)
    (tmp_path / "output/reput/bulk").write_text("in the way")
    with pytest.raises(StoreIOError):
        rebuild(spark, store, tmp_path / "output")
    assert built_tree(tmp_path / "output") == before


def test_damage_is_raised_when_all_before_it_is_in_place(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    flip(log_files(store)[1], 100)
    with pytest.raises(DamageError, match=r"00004096 at offset 4096: .*CRC"):
        rebuild(spark, store, tmp_path / "output")
    with pytest.raises(DamageError):
        dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_the_command_rebuilds_as_a_spark_job_and_once_more(store: Path, tmp_path: Path) -> None:
    dispatch_all(store, tmp_path / "dispatched", CONFIG)
    done = reput(
        "rebuild", store, "--output", tmp_path / "output", "--json", "--master", "local[1]"
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert (result["messages"], result["queues"], result["damage"]) == (33, 2, None)
    assert set(result) == set(BulkRebuilt.__dataclass_fields__)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    assert not (tmp_path / "output" / BULK_DIR).exists()
    told = reput("rebuild", store, "--output", tmp_path / "output", "--master", "local[*]")
    assert told.stdout.startswith(f"rebuilt {tmp_path / 'output'}: 33 messages, offsets 0 to ")
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_many_tasks_go_in_a_few_of_spark_and_each_is_told(spark: SparkSession) -> None:
    told: list[int] = []
    run_tasks = SparkRun(spark.sparkContext)
    assert run_tasks(str, range(100), told.append) == [str(n) for n in range(100)]
    assert told == list(range(100))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--queue", "0"], "--queue needs --topic"),
        (["--topic", "T", "--master", "local[1]"], "--topic runs without Spark"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert run(["rebuild", str(store), "--output", str(tmp_path / "o"), *options]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


# --- Export -------------------------------------------------------------------------------------


def test_what_is_exported_is_what_the_log_holds_for_spark_and_for_duckdb(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    to = tmp_path / "exported"
    export(spark, store, to, ExportOptions())
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
    root = write_store(tmp_path, sent)
    (root / "broker.conf").write_text(CONF)
    for kind in ("parquet", "jsonl"):
        to = tmp_path / kind
        export(spark, root, to, ExportOptions(kind))
        read = spark.read.parquet if kind == "parquet" else spark.read.json
        rows = read(str(to)).selectExpr("topic", "cast(body as string) body").collect()
        assert sorted(r.topic for r in rows) == sorted(topics)
        assert [r.topic for r in rows] == [r.body for r in rows]


def test_json_lines_of_a_topic_and_a_time(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    begin = 1_700_000_000_000
    options = ExportOptions("jsonl", ("TopicTest",), begin + 5_000, begin + 9_000)
    export(spark, store, to, options)
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
    done = reput("export", store, "--to", to, "--format", "jsonl", "--json")
    assert done.returncode == 0, done.stderr
    files = [path for path in to.rglob("part-*") if path.is_file()]
    assert json.loads(done.stdout)["files"] == len(files) > 1
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
        export(spark, store, to, ExportOptions())
    assert not list(to.rglob("part-*.parquet"))
    export(spark, store, tmp_path / "rest", ExportOptions(fail_on_data_loss=False))
    assert 20 < spark.read.parquet(str(tmp_path / "rest")).count() < 33
    with pytest.raises(ConfigError, match="is not a directory"):
        export(spark, store / "none", tmp_path / "other", ExportOptions())


# --- Catching up --------------------------------------------------------------------------------


def test_a_new_root_far_behind_is_built_in_bulk_and_the_query_goes_on(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming.query, "CATCH_UP_BYTES", 5_000)
    told: list[tuple[int, int]] = []
    options = DispatchOptions(
        available_now=True, on_catch_up=lambda done, total: told.append((done, total))
    )
    running = begin_dispatch(spark, store, tmp_path / "output", options)
    running.query.awaitTermination()
    assert query_error(running.query) is None
    assert running.caught_up is not None
    assert (running.caught_up.messages, running.sink.counts.messages) == (33, 0)
    assert told[-1][0] == told[-1][1]
    running.close()
    dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    sent = [*messages(30), *(Message("Other", queue_offset=n, body=b"\xff") for n in range(40))]
    write_log(build_log(sent, 4096), store / "commitlog")
    running = begin_dispatch(spark, store, tmp_path / "output", options)
    running.query.awaitTermination()
    assert running.caught_up is None
    assert running.sink.counts.messages == 37
    running.close()


def test_damage_in_a_log_far_behind_ends_the_query_as_ever(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming.query, "CATCH_UP_BYTES", 5_000)
    flip(log_files(store)[1], 100)
    options = DispatchOptions(available_now=True)
    running = begin_dispatch(spark, store, tmp_path / "output", options)
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination()
    assert isinstance(running.sink.error or query_error(running.query), DamageError)
    running.close()
    with pytest.raises(DamageError):
        dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
