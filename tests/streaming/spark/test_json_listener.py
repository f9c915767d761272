"""Progress that is passed as JSON is what PySpark passes field by field."""

from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from streaming import CommitLogDataSource, register_source
from streaming.sources.message_source import FORMAT
from streaming.spark.json_listener import JsonListener
from tests.support.stores.written import make_store

BATCHES = 3


class _Noting:
    """Notes the progress of each batch of a query with messages."""

    def __init__(self) -> None:
        self.seen: list[StreamingQueryProgress] = []
        self.is_complete = Event()

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        if event.progress.numInputRows:
            self.seen.append(event.progress)
        if len(self.seen) == BATCHES:
            self.is_complete.set()

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


class _ByField(_Noting, StreamingQueryListener):
    """As PySpark calls it."""


class _ByJson(_Noting, JsonListener):
    """As the queries here do."""


@pytest.mark.spark
@pytest.mark.classic("a client of Spark Connect gets JSON")
def test_progress_as_json_has_the_fields_of_pyspark(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path / "store", 300)
    register_source(spark, CommitLogDataSource)
    listeners: list[_ByField | _ByJson] = [_ByField(), _ByJson()]
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        log = spark.readStream.format(FORMAT).option("startingOffsets", "earliest")
        frame = log.option("maxBytesPerTrigger", "20k").load(str(tmp_path / "store"))
        writer = frame.writeStream.format("noop").queryName("noted").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
        assert all(listener.is_complete.wait(60) for listener in listeners)
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    for field, json in zip(listeners[0].seen, listeners[1].seen, strict=False):
        assert (json.id, json.runId, json.name) == (field.id, field.runId, "noted")
        assert (json.batchId, json.durationMs) == (field.batchId, field.durationMs)
        assert (json.timestamp, json.numInputRows) == (field.timestamp, field.numInputRows)
        for name in ("description", "startOffset", "endOffset", "latestOffset", "numInputRows"):
            value = getattr(json.sources[0], name)
            assert ("None" if value == "null" else value) == getattr(field.sources[0], name), name
