"""Through Spark Connect: a client reads with nothing of this project, and starts no dispatch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.connect import connect_server
from tests.support.stores.written import make_store

COUNT = 300
READS = """
import sys
from pyspark.sql import SparkSession

address, store, work = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()

def show(what, frame):
    print(what, frame.count())

reader = spark.read.format("rocketmq-commitlog")
show("loaded", reader.load(store))
offsets = '{"TopicB": {"0": 90}}'
show("kafka", reader.options(columns="kafka", startingOffsets=offsets).load(store))
spark.sql(f"CREATE TABLE log USING `rocketmq-commitlog` OPTIONS (path '{store}')")
show("sql", spark.sql("SELECT * FROM log WHERE topic = 'TopicA' AND queue_id = 1"))
stream = spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")
stream = stream.option("maxBytesPerTrigger", "20k").load(store)
writer = stream.writeStream.option("checkpointLocation", work + "/checkpoint")
query = writer.format("parquet").trigger(availableNow=True).start(work + "/streamed")
query.awaitTermination()
show("streamed", spark.read.parquet(work + "/streamed"))
try:
    reader.option("subscribes", "TopicA").load(store).count()
except Exception as error:
    print("refused", "did you mean 'subscribe'" in str(error))
loaded = {name.partition(".")[0] for name in sys.modules}
print("client", sorted(loaded & {"pyspark_reput", "reput", "streaming", "checkpoints", "store"}))
"""
STARTS = """
import sys
from pyspark.sql import SparkSession
from reput import MirrorOptions, StoreError, build_session, start_dispatch, start_mirror

address, store, work = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()

def refused(start):
    try:
        start()
    except StoreError as error:
        print(error)

refused(lambda: start_dispatch(spark, store, work + "/output"))
refused(lambda: start_mirror(spark, store, MirrorOptions(bootstrap="127.0.0.1:1")))
refused(lambda: build_session("a classic session beside a client"))
"""


def run(program: str, *arguments: str) -> list[str]:
    """Run a client in a process of its own; return the lines it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith("SPARK_")},
        cwd=arguments[-1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.process
@pytest.mark.spark
def test_a_client_of_spark_connect_reads_and_is_refused_a_dispatch(tmp_path: Path) -> None:
    store, work = tmp_path / "store", tmp_path / "work"
    make_store(store, COUNT)
    work.mkdir()
    before = sorted(store.rglob("*"))
    with connect_server(work) as address:
        reads = run(READS, address, str(store), str(work))
        starts = run(STARTS, address, str(store), str(work))
    assert reads == [
        f"loaded {COUNT}", "kafka 10", "sql 100", f"streamed {COUNT}", "refused True", "client []",
    ]  # fmt: skip
    reason = (
        "cannot run through Spark Connect: it writes from the driver's process, which must be this "
        "one, and the driver of Spark Connect is its server; give it a classic session, as "
        "build_session() returns in a process of its own, or run"
    )
    assert starts[:2] == [
        f"a dispatch {reason} `reput dispatch`",
        f"a mirror {reason} `reput mirror`",
    ]
    (refused,) = starts[2:]
    assert refused == (
        "SPARK_CONNECT_MODE_ENABLED is set, so sessions of this process are clients of Spark "
        "Connect, but a classic session is needed: unset it, in a process that has no such client"
    )
    assert not (work / "output").exists()
    assert sorted(store.rglob("*")) == before
