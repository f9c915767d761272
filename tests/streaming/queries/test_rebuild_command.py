"""The command ``reput rebuild``: by threads without a JVM, and by a Spark query."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from checkpoints.state_paths import BULK_DIR
from reput.cli import run
from store.config import load_config
from store.errors import DamageError, StoreIOError
from streaming.queries.rebuild import RebuildResult, rebuild_output, take_output
from streaming.queries.spark_feed import spark_feed
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.logs.build import Message
from tests.support.cases import first_cases
from tests.support.dispatching import assert_same_store, built_tree, dispatch_all
from tests.support.sessions import Run
from tests.support.stores.aged import log_files
from tests.support.verify_stores import CONFIG, flip, messages, write_store

REAL = [path for path in ARCHIVES if archive_name(path) in {"g1", "g3", "g5", "g7", "g10"}][::-1]
CONF = """mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=13
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    sent = [*messages(30), *(Message("Other", queue_offset=n, body=b"\xff") for n in range(3))]
    store_root = write_store(tmp_path, sent)
    (store_root / "broker.conf").write_text(CONF)
    return store_root


def rebuild_by_spark(
    spark: SparkSession, store_root: Path, output: Path, version: str | None = None
) -> tuple[RebuildResult, list[tuple[int, int]]]:
    """Rebuild by a query; return also the progress that was reported."""
    reports: list[tuple[int, int]] = []
    conf = store_root / "broker.conf"
    feed = spark_feed(spark, store_root, load_config(store_root, conf, version))
    owned = take_output(store_root, output, conf, version)
    return rebuild_output(owned, feed, lambda done, total: reports.append((done, total))), reports


@pytest.mark.spark
@pytest.mark.parametrize("golden", first_cases(REAL), indirect=True, ids=archive_name)
def test_a_real_store_is_rebuilt_by_a_query(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    rebuilt, reports = rebuild_by_spark(spark, golden.store_root, tmp_path, golden.version)
    assert_same_store(tmp_path, golden.expected)
    assert rebuilt.messages > 0
    assert reports[-1][0] == reports[-1][1] == rebuilt.end_offset - rebuilt.begin_offset
    assert not (tmp_path / BULK_DIR).exists()


@pytest.mark.spark
def test_damage_in_a_query_is_reported_once_the_files_before_it_are_in_place(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    flip(log_files(store)[1], 100)
    rebuilt, _ = rebuild_by_spark(spark, store, tmp_path / "output")
    assert rebuilt.damage is not None
    assert (rebuilt.damage.begin, rebuilt.end_offset) == (4096, 4096)
    with pytest.raises(DamageError):
        dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


@pytest.mark.spark
def test_a_failed_query_leaves_the_output_unchanged(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    rebuild_by_spark(spark, store, tmp_path / "output")
    before = built_tree(tmp_path / "output")
    (tmp_path / "output/reput/bulk").write_text("in the way")
    with pytest.raises(StoreIOError):
        rebuild_by_spark(spark, store, tmp_path / "output")
    assert built_tree(tmp_path / "output") == before


@pytest.mark.spark
def test_the_command_rebuilds_by_a_query_repeatedly(
    run_spark: Run, store: Path, tmp_path: Path
) -> None:
    dispatch_all(store, tmp_path / "dispatched", CONFIG)
    command = ["rebuild", store, "--output", tmp_path / "output"]
    code, out, errors = run_spark(*command, "--json", "--master", "local[1]")
    assert code == 0, errors
    result: dict[str, Any] = json.loads(out)
    assert (result["messages"], result["queues"], result["damage"]) == (33, 2, None)
    assert (result["begin_offset"], result["resumed_from"]) == (0, 0)
    assert set(result) == set(RebuildResult.__dataclass_fields__)
    assert set(result["stages"]) == {"dispatch", "swap"}
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    assert not (tmp_path / "output" / BULK_DIR).exists()
    code, out, errors = run_spark(*command, "--master", "local[*]")
    assert code == 0, errors
    assert out.startswith(f"rebuilt {tmp_path / 'output'}: 33 messages, offsets 0 to ")
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_the_commands_rebuild_and_verify_without_a_jvm(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    output = str(tmp_path / "output")
    assert run(["rebuild", str(store), "--output", output]) == 0
    assert capsys.readouterr().out.startswith(f"rebuilt {output}: 33 messages")
    dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    assert run(["verify", str(store), "--output", output]) == 0
    flip(min((tmp_path / "output/consumequeue/TopicTest/0").iterdir()), 30)
    assert run(["verify", str(store), "--output", output]) == 1
    assert "unit 1" in capsys.readouterr().out
    assert run(["rebuild", str(store), "--output", output, "--master", "local[1]"]) == 7
