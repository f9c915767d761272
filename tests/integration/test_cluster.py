"""Rebuild, export and a read on a real Spark cluster: driver and workers run an installed wheel."""

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyarrow.dataset import dataset

from checkpoints.state_paths import NEW_OUTPUT_DIR
from store import MessageStore
from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from store.output.progress import read_progress
from tests.integration.servers.processes import wait_for
from tests.integration.servers.spark_cluster import SparkCluster
from tests.support.bulk_writer import BulkWriter
from tests.support.dispatching import assert_same_store, dispatch_all
from tests.support.environments import (
    REPOSITORY,
    Environment,
    build_wheel,
    install,
    site_packages,
)

pytestmark = pytest.mark.integration

Start = Callable[..., subprocess.Popen[str]]  # of a command of reput, on the cluster
CONFIG = StoreConfig(
    mapped_file_size_commit_log=16 << 20, max_hash_slot_num=50_000, max_index_num=200_000
)
CONF = "mappedFileSizeCommitLog=16777216\nmaxHashSlotNum=50000\nmaxIndexNum=200000\n"
READ = """
import json, sys
from reput import build_session
spark = build_session("brokers", sys.argv[1])
log = spark.read.format("rocketmq-commitlog").load(sys.argv[2:])
sums = log.groupBy("broker").agg({"commit_log_offset": "sum", "*": "count"}).orderBy("broker")
rows = sums.select("broker", "count(1)", "sum(commit_log_offset)").collect()
print(json.dumps([list(row) for row in rows]))
spark.stop()
"""
EXPORT = """
import sys
from reput import build_session
spark = build_session("export", sys.argv[1])
spark.conf.set("spark.sql.session.timeZone", "UTC")
log = spark.read.format("rocketmq-commitlog").load(sys.argv[3:])
days = log.selectExpr("*", "to_date(store_timestamp) AS day")
days.write.partitionBy("broker", "topic", "day").parquet(sys.argv[2])
spark.stop()
"""
PACKED = """
import json, os, sys
from reput import build_session
spark = build_session("packed", sys.argv[1], {"spark.archives": os.environ["ARCHIVE"]})
count = spark.read.format("rocketmq-commitlog").load(sys.argv[2]).count()

def place(_):
    import reput
    return reput.__file__

places = spark.sparkContext.range(4).map(place).distinct().collect()
print(json.dumps([count, places]))
spark.stop()
"""
MESSAGES = 600_000
SECONDS = 240


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def installed(directory: Path) -> Environment:
    """Install this project's wheel, for the driver and the workers."""
    return install(build_wheel(REPOSITORY, directory / "wheel"), directory / "installed")


@pytest.fixture(scope="module")
def cluster(directory: Path, installed: Environment) -> Iterator[SparkCluster]:
    cluster = SparkCluster(directory, python=str(installed.python))
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def store(directory: Path) -> Path:
    """Return a store of some hundred thousand messages in many files: several batches."""
    store_root = directory / "store"
    properties = make_properties(uniq_key="01234567########", keys="order-######## all")
    body = b"body ######## " + b"x" * 1_000
    templates = [NewMessage("Topic", queue, body, properties) for queue in range(5)]
    with BulkWriter(store_root, CONFIG) as writer:
        writer.append_many(templates, MESSAGES)
    (store_root / "broker.conf").write_text(CONF)
    return store_root


@pytest.fixture(scope="module")
def dispatched(directory: Path, store: Path) -> Path:
    dispatch_all(store, directory / "dispatched", CONFIG)
    return directory / "dispatched"


@pytest.fixture
def start(cluster: SparkCluster, installed: Environment) -> Start:
    """Return a function that starts a command of reput on the cluster."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        where = ("--master", cluster.master_url, "--json")
        return installed.start(*installed.reput, *arguments, *where, **cluster.environment)

    return start


def rebuilt_end(output: Path) -> int:
    """Return the offset up to which a rebuild has dispatched."""
    progress = read_progress(output / NEW_OUTPUT_DIR)
    return progress.reput_from_offset if progress is not None else 0


def test_a_rebuild_on_two_workers_equals_a_dispatch(
    cluster: SparkCluster, start: Start, store: Path, dispatched: Path, installed: Environment
) -> None:
    output = store.parent / "rebuilt"
    with start("rebuild", store, "--output", output) as process:
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(printed)["messages"] == MESSAGES
    assert_same_store(output, dispatched)
    logs = [(e / "stderr").read_text("utf-8", "replace") for e in cluster.executors()]
    assert sum("Finished task" in log for log in logs) >= 2
    site = site_packages(installed.python.parents[1])
    kept = site / "reput/store/kernels/__pycache__"  # workers compile the kernels here
    assert list(kept.glob("numba-*/*/*.nbi"))


def test_a_rebuild_survives_the_loss_of_a_worker(
    cluster: SparkCluster, start: Start, store: Path, dispatched: Path, directory: Path
) -> None:
    output = directory / "killed"
    with start("rebuild", store, "--output", output) as process:
        wait_for(lambda: rebuilt_end(output) > 0, "a batch applied")
        worker = cluster.workers[0]
        worker.kill()
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(printed)["messages"] == MESSAGES
    assert_same_store(output, dispatched)
    worker.log.unlink()
    worker.start()
    cluster.await_worker(worker)


def test_a_killed_rebuild_resumes_on_the_cluster(
    start: Start, store: Path, dispatched: Path, directory: Path
) -> None:
    output = directory / "again"
    with start("rebuild", store, "--output", output) as process:
        wait_for(lambda: rebuilt_end(output) > 0, "a batch applied")
        process.kill()
    assert not (output / "consumequeue").exists()
    done = rebuilt_end(output)
    began = time.perf_counter()
    with start("rebuild", store, "--output", output) as process:
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (errors, time.perf_counter() - began)
    assert json.loads(printed)["resumed_from"] >= done
    assert_same_store(output, dispatched)


def test_three_brokers_are_one_table_while_a_worker_is_killed(
    cluster: SparkCluster, installed: Environment, store: Path, directory: Path
) -> None:
    names = ["east", "north", "west"]
    for name in names:
        shutil.copytree(store, directory / name, copy_function=os.link)
    with MessageStore.open(store) as s:
        total = sum(pc.sum(b.column(0)).as_py() for b in s.scan(columns=["commit_log_offset"]))
    known = set(cluster.executors())

    def has_finished_a_task() -> bool:
        logs = [executor / "stderr" for executor in set(cluster.executors()) - known]
        return any(
            "Finished task" in log.read_text("utf-8", "replace") for log in logs if log.exists()
        )

    command = [installed.python, "-c", READ, cluster.master_url, *(directory / n for n in names)]
    with installed.start(*command, **cluster.environment) as process:
        wait_for(has_finished_a_task, "a task finished")
        assert process.poll() is None
        cluster.workers[0].kill()
        printed, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(printed) == [[name, MESSAGES, total] for name in names]


def test_spark_exports_brokers_by_topic_and_day(
    cluster: SparkCluster, installed: Environment, store: Path, directory: Path
) -> None:
    for name in ("south", "up"):
        shutil.copytree(store, directory / name, copy_function=os.link)
    arguments = [directory / name for name in ("exported", "south", "up")]
    installed.run_python(EXPORT, cluster.master_url, *arguments, **cluster.environment)
    table = dataset(directory / "exported", partitioning="hive").to_table(
        columns=["broker", "topic", "day", "store_timestamp"]
    )
    assert table.group_by(["broker", "topic"]).aggregate([([], "count_all")]).to_pylist() == [
        {"broker": name, "topic": "Topic", "count_all": MESSAGES} for name in ("south", "up")
    ]
    days = pc.strftime(table["store_timestamp"], "%Y-%m-%d")
    assert pc.all(pc.equal(days, table["day"].cast("string"))).as_py()


def test_workers_run_the_wheel_of_a_packed_environment(
    cluster: SparkCluster, installed: Environment, store: Path, directory: Path
) -> None:
    archive = directory / "environment.tar.gz"
    venv = installed.python.parents[1]
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(venv, ".")
    (installed.directory / "packed").symlink_to(venv)  # the driver, too, starts this Python
    sent = {"PYSPARK_PYTHON": "./packed/bin/python", "ARCHIVE": f"{archive}#packed"}
    arguments = (PACKED, cluster.master_url, store)
    printed = installed.run_python(*arguments, **cluster.environment | sent)
    count, places = json.loads(printed.splitlines()[-1])
    assert count == MESSAGES
    assert places
    assert all(Path(place).is_relative_to(directory / "work") for place in places)
