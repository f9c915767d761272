"""Messages as files: the data source's rows, written by Spark, a directory a topic and day.

``DIR/topic=T/day=YYYY-MM-DD/part-….parquet`` (or ``.json``) is read by Spark, DuckDB and others as
a table with the columns ``topic`` and ``day``. Days are those of the store time, in UTC.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from store.errors import ConfigError
from streaming.failures import error_of
from streaming.source import FORMAT, CommitLogDataSource

FORMATS = {"parquet": "parquet", "jsonl": "json"}
_LOOK_SECONDS = 0.2
_GROUP = "reput export"

Report = Callable[[int, int], None]  # tasks done, tasks in all


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What is exported; times are epoch ms of the store time, both inclusive."""

    file_format: str = "parquet"
    topics: tuple[str, ...] = ()
    from_time: int | None = None
    to_time: int | None = None
    broker_conf: Path | None = None
    broker_version: str | None = None
    fail_on_data_loss: bool = True


def check_target(store_root: Path, to: Path, options: ExportOptions) -> None:
    """Raise ConfigError for what can be refused without Spark."""
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    if options.file_format not in FORMATS:
        raise ConfigError(
            f"--format {options.file_format!r} is not known; known are {', '.join(FORMATS)}"
        )
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} exists and is not empty: give a new directory")


def export(
    spark: SparkSession,
    store_root: Path,
    to: Path,
    options: ExportOptions,
    report: Report | None = None,
) -> None:
    """Write the messages of a log below ``to``, which must be new or empty.

    Raises as ``check_target`` and the data source do; then there are no files but Spark's
    ``_temporary``.
    """
    check_target(store_root, to, options)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        rows = messages(spark, store_root, options)
        rows = rows.withColumn("day", f.to_date("store_timestamp"))
        writer = rows.write.partitionBy("topic", "day").mode("append")
        with _watched(spark.sparkContext, report):
            writer.format(FORMATS[options.file_format]).save(str(to.absolute()))
    except ConfigError:
        raise
    except Exception as e:
        raise error_of(e) from e


def messages(spark: SparkSession, store_root: Path, options: ExportOptions) -> DataFrame:
    """Return the messages asked for as rows."""
    spark.dataSource.register(CommitLogDataSource)
    reader = spark.read.format(FORMAT)
    given = {
        "brokerConf": options.broker_conf,
        "brokerVersion": options.broker_version,
        "subscribe": ",".join(options.topics) or None,
        "startingTimestamp": options.from_time,
        "endingTimestamp": options.to_time,
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
    }
    for name, value in given.items():
        if value is not None:
            reader = reader.option(name, str(value))
    rows = reader.load(str(store_root.absolute()))
    # The source begins and ends at records; where a clock stepped back, others lie between.
    if options.from_time is not None:
        rows = rows.where(f.col("store_timestamp") >= f.lit(_moment(options.from_time)))
    if options.to_time is not None:
        rows = rows.where(f.col("store_timestamp") <= f.lit(_moment(options.to_time)))
    return rows


def _moment(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


@contextmanager
def _watched(context: SparkContext, report: Report | None) -> Iterator[None]:
    """Report how many tasks of the job are done while it runs."""
    if report is None:
        yield
        return
    end = threading.Event()

    def look() -> None:
        tracker = context.statusTracker()
        while not end.wait(_LOOK_SECONDS):
            stages = [tracker.getStageInfo(n) for n in tracker.getActiveStageIds()]
            for stage in stages:
                if stage is not None and stage.numTasks:
                    report(stage.numCompletedTasks, stage.numTasks)

    thread = threading.Thread(target=look, name="reput-export", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
