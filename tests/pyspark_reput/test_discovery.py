"""Spark finds the source by itself, in a session that no code of this project created."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stores.written import make_store

COUNT = 300
PROGRAM = """
import sys
from pyspark.sql import SparkSession

store, work = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", work + "/warehouse")
    .getOrCreate()
)

def count(session, table):
    print(table, session.sql(f"SELECT count(*) FROM {table}").collect()[0][0])

spark.read.format("rocketmq-commitlog").load(store).createOrReplaceTempView("loaded")
count(spark, "loaded")
spark.sql(
    f"CREATE TEMPORARY VIEW declared_view USING `rocketmq-commitlog` OPTIONS (path '{store}')"
)
count(spark, "declared_view")
spark.sql(f"CREATE TABLE declared_table USING `rocketmq-commitlog` OPTIONS (path '{store}')")
count(spark.newSession(), "declared_table")
stream = spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")
query = stream.load(store).writeStream.format("memory").queryName("streamed")
query.trigger(availableNow=True).start().awaitTermination()
count(spark, "streamed")

from reput import CommitLogDataSource

spark.dataSource.register(CommitLogDataSource)
count(spark, "declared_table")
spark.stop()
"""


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.classic("test_connect.py has the same for a client")
def test_a_session_of_its_own_needs_no_registration(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, COUNT)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(store), str(tmp_path)],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    tables = ("loaded", "declared_view", "declared_table", "streamed", "declared_table")
    assert done.stdout.splitlines() == [f"{table} {COUNT}" for table in tables], done.stderr[-2000:]


def test_a_spark_without_limits_for_streams_is_refused_in_one_line() -> None:
    code = (
        "import pyspark, pyspark.sql.streaming.datasource as limits\n"
        "pyspark.__version__ = '4.1.4'\n"
        "del limits.ReadMaxBytes\n"
        "import pyspark_reput"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "store.errors.SparkError: Spark 4.1.4 is not supported: before 4.2, a stream of a Python "
        "data source cannot limit its batches; install pyspark 4.2 or 4.3"
    )
