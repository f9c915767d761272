"""The backlog of a stream over commit logs, from the progress of its query."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from streaming import BacklogListener, CommitLogDataSource, register_source
from streaming.queries.backlog import Backlog, backlog_bytes
from streaming.sources.message_source import FORMAT
from tests.support.stores.written import make_store


@pytest.mark.parametrize(
    ("end", "latest", "backlog"),
    [
        ('{"commit_log_offset": 5}', '{"commit_log_offset": 12}', {"": 7}),
        ('{"commit_log_offset": 5, "queues": {"T": {}}}', '{"commit_log_offset": 5}', {"": 0}),
        (
            '{"a": {"commit_log_offset": 5}, "b": {"commit_log_offset": 1}}',
            '{"a": {"commit_log_offset": 6}, "b": {"commit_log_offset": 9}, "c": {}}',
            {"a": 1, "b": 8},
        ),
        ('{"topic": {"0": 5}}', '{"topic": {"0": 9}}', {}),  # of Spark's Kafka source
        (None, '{"commit_log_offset": 5}', {}),
        ("5", "7", {}),
        ("no JSON", "7", {}),
    ],
)
def test_the_backlog_is_the_distance_to_the_end_of_each_log(
    end: str | None, latest: str | None, backlog: Backlog
) -> None:
    assert backlog_bytes(end, latest) == backlog


@pytest.mark.spark
def test_the_listener_reports_each_batch(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path / "store", 300)
    register_source(spark, CommitLogDataSource)
    reports: list[tuple[str, Backlog]] = []
    has_ended = threading.Event()

    class Listener(BacklogListener):
        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            has_ended.set()

    listener = Listener(lambda query, backlog: reports.append((query, backlog)))
    spark.streams.addListener(listener)
    try:
        frame = (
            spark.readStream.format(FORMAT)
            .options(startingOffsets="earliest", maxBytesPerTrigger="20k")
            .load(str(tmp_path / "store"))
        )
        writer = frame.writeStream.format("noop").queryName("followed").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()
        # Spark calls listeners after the query. A client of Spark Connect that removes a listener
        # while it receives an event waits for ever: its two threads wait for each other.
        assert has_ended.wait(60), reports
    finally:
        spark.streams.removeListener(listener)
    sizes = [backlog[""] for _, backlog in reports]
    assert {name for name, _ in reports} == {"followed"}
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
