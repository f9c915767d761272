"""What the source does in Spark's Python workers: errors of one line, a quiet early end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from store.config import StoreConfig
from store.errors import BodyTooLargeError, ConfigError, DamageError
from streaming.sources.dispatch_source import DispatchRequestReader
from streaming.sources.message_source import (
    FORMAT,
    CommitLogDataSource,
    CommitLogReader,
    CommitLogStreamReader,
    FilteringReader,
)
from streaming.sources.workers.calls import in_option_terms
from streaming.spark.errors import to_store_error
from tests.support.bulk_writer import BulkWriter
from tests.support.stores.written import TEMPLATES, corrupt, make_store

ERROR = "store.errors."
adds_trace = pytest.mark.classic("the client of Spark Connect appends the server's stack trace")
# A session of the user's own: nothing filters what its workers print.
OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
log = spark.read.format("rocketmq-commitlog").load(sys.argv[1])
found = log.limit(3)
print(found.toArrow().num_rows, len(found.collect()), log.count())
spark.stop()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store_root = tmp_path / "store"
    make_store(store_root, 1_000)
    return store_root


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options).load(str(store))


def error_of(frame: DataFrame) -> Exception:
    with pytest.raises(Exception, match=ERROR) as caught:
        frame.collect()
    return caught.value


def check_line(text: str, sentence: str) -> None:
    """Check that a text is Spark's words and the error, in one or two lines, without more."""
    assert "Traceback" not in text
    assert "--" not in text
    lines = text.replace("An exception was thrown from the Python worker:\n", "").split("\n")
    assert sentence in lines[0]
    assert [line for line in lines[1:] if line and not line.startswith(" SQLSTATE")] == []


@pytest.mark.spark
@adds_trace
def test_a_wrong_option_is_one_line(spark: SparkSession, store: Path) -> None:
    with pytest.raises(Exception, match="minPartitions") as caught:
        load(spark, store, minPartitions="x").collect()
    check_line(str(caught.value), "ConfigError: option 'minPartitions' = 'x' is not a positive")


@pytest.mark.spark
@adds_trace
def test_a_store_without_a_log_names_the_option_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    error = error_of(load(spark, tmp_path))
    check_line(str(error), f"NoLogError: {tmp_path}/commitlog does not exist")
    assert "storePathCommitLog is elsewhere (brokerConf)" in str(error)
    assert isinstance(to_store_error(error), ConfigError)


@pytest.mark.spark
@adds_trace
def test_damage_in_a_task_is_one_line(spark: SparkSession, store: Path) -> None:
    corrupt(store / "commitlog" / f"{0:020d}", 8)
    error = error_of(load(spark, store))
    check_line(str(error), "DamageError: damaged: ")
    assert isinstance(to_store_error(error), DamageError)
    assert "or continue past it with failOnDataLoss=false;" in str(error)


@pytest.mark.spark
def test_the_error_of_a_stream_is_its_first_line(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    reader = spark.readStream.format(FORMAT).option("startingOffsets", '{"commit_log_offset": 5}')
    writer = reader.load(str(store)).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    text, _, plan = str(query.exception()).partition("=== Streaming Query ===")
    check_line(text, "ConfigError: offset 5 is not a record boundary")
    assert "Traceback" not in plan


def test_an_error_of_another_kind_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "of a worker")
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    with pytest.raises(AttributeError):
        CommitLogReader(None).partitions()  # type: ignore[arg-type]
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.classic("starts a classic session in a process of its own")
def test_a_limit_ends_the_read_without_a_traceback(tmp_path: Path) -> None:
    with BulkWriter(tmp_path, StoreConfig(mapped_file_size_commit_log=1 << 26)) as writer:
        writer.append_many(TEMPLATES, 800_000)
    command = [sys.executable, "-c", OWN_SESSION, str(tmp_path)]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "3 3 800000\n", done.stderr
    assert "Traceback" not in done.stderr
    assert "BrokenPipeError" not in done.stderr


def test_outside_a_worker_an_error_keeps_its_text(tmp_path: Path) -> None:
    source = CommitLogDataSource({"path": str(tmp_path)})
    with pytest.raises(Exception, match=r"\(--broker-conf\)"):
        source.reader(source.schema()).partitions()


def test_the_flags_of_commands_become_options() -> None:
    text = str(BodyTooLargeError.of_body(5, 10))
    assert "raise the limit: the option maxBodyBytes, or MessageStore" in in_option_terms(text)
    hint = "skip it with --fail-on-data-loss false (reput dispatch, mirror) or failOnDataLoss=false"
    assert in_option_terms(hint) == "skip it with failOnDataLoss=false"
    assert in_option_terms("(see --broker-version)") == "(see brokerVersion)"
    assert in_option_terms("--fail-on-data-loss false") == "failOnDataLoss=false"
    command = "reput rebuild STORE --output OUTPUT"
    assert in_option_terms(command) == command


@pytest.mark.parametrize("kind", [FilteringReader, CommitLogStreamReader, DispatchRequestReader])
def test_what_spark_calls_is_wrapped_in_every_reader(kind: type) -> None:
    called = ("read", "partitions", "pushFilters", "initialOffset", "latestOffset", "commit")
    found = [getattr(kind, name) for name in called if hasattr(kind, name)]
    own = [method for method in found if method.__module__.startswith("streaming.")]
    assert own
    assert all(hasattr(method, "__wrapped__") for method in own)
