"""The recipes of docs/lakehouse.md on Spark 4.2 with Delta Lake, and a stream that is killed."""

import json
import os
import random
import re
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.commitlog.record import NewMessage, make_properties
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.integration.servers.processes import Server
from tests.support.bulk_writer import BulkWriter
from tests.support.stores.written import CONF, small_config
from tools.maven import POMS, jars

PROJECT = Path(__file__).parents[2]
PYTHON = PROJECT / ".venv-spark-4.2" / "bin" / "python"
BROKERS = ("a", "b", "c")
KILLS = int(os.environ.get("REPUT_KILLS", "2"))
SECONDS = 600
SETTINGS = {  # for small tables on a small machine
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
CONFIG = replace(small_config(), mapped_file_size_commit_log=1 << 20)

ORDER = NewMessage(
    "OrderTopic",
    0,
    b'{"id": ########, "amount": 2.5}',
    make_properties(uniq_key="U########", keys="order-########"),
)
OTHER = NewMessage("Other", 1, b"########")

QUERY = """
query = (
    log.writeStream.format("delta")
    .option("checkpointLocation", "/lake/checkpoints/messages")
    .partitionBy("broker")
    .trigger(processingTime="200 milliseconds")
    .start("/lake/messages")
)
query.awaitTermination()
"""
ROWS = """
rows = spark.read.format("delta").load("/lake/messages").select("broker", "commit_log_offset")
print("RESULT", [list(row) for row in rows.collect()])
"""
TABLES = """
import json
rows = spark.read.format("delta").load("/lake/messages").groupBy("broker").count().collect()
found = {"messages": {row.broker: row["count"] for row in rows}}
latest = spark.read.format("delta").load("/lake/latest").collect()
found["latest"] = sorted((row.uniq_key, row.topic, row.broker) for row in latest)
windows = spark.read.format("delta").load("/lake/by_minute").collect()
found["by_minute"] = [(row.orders, row.amount) for row in windows]
print("RESULT", json.dumps(found))
"""


def make_broker(data: Path, name: str) -> Path:
    store_root = data / name / "store"
    store_root.mkdir(parents=True)
    conf = CONF | {"mappedFileSizeCommitLog": str(CONFIG.mapped_file_size_commit_log)}
    settings = "\n".join(f"{key}={value}" for key, value in conf.items())
    (store_root / "broker.conf").write_text(f"{settings}\nbrokerName=broker-{name}\n")
    return store_root


def append(store_root: Path, templates: list[NewMessage], count: int) -> None:
    with BulkWriter(store_root, CONFIG) as writer:
        writer.append_many(templates, count)


def blocks() -> list[str]:
    """Return the programs of the page, the session first."""
    text = (PROJECT / "docs" / "lakehouse.md").read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def delta() -> str:
    """Return the jars of Delta as `spark.jars` takes them."""
    return ",".join(map(str, jars(POMS / "delta.xml", {"delta.version": "4.4.0"}).glob("*.jar")))


def program(directory: Path, delta: str, *parts: str) -> list[str]:
    """Return the command that runs parts of the page below a directory."""
    text = "\n".join(parts)
    package = '"spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0"'
    assert package in text
    text = text.replace(package, f'"spark.jars", "{delta}"')
    text = text.replace("SparkSession.builder", 'SparkSession.builder.master("local[2]")', 1)
    settings = "".join(f'.config("{key}", "{value}")' for key, value in SETTINGS.items())
    text = text.replace(".getOrCreate()", f"{settings}.getOrCreate()", 1)
    text = text.replace("/data/", f"{directory}/data/").replace("/lake/", f"{directory}/lake/")
    return [str(PYTHON), "-c", text]


def environment() -> dict[str, str]:
    # Imported from the checkout under test, whichever one the environment was made from.
    path = {"PYTHONPATH": str(PROJECT)}
    return {"PYSPARK_PYTHON": str(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"} | path


def result(command: list[str], directory: Path) -> Any:
    """Run a program to its end; return what it printed as its result."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT ").replace("'", '"'))


def test_the_recipes_of_the_page_fill_their_tables(tmp_path: Path, delta: str) -> None:
    for name in BROKERS:
        store_root = make_broker(tmp_path / "data", name)
        append(store_root, [ORDER, OTHER], 40)
    found = result(program(tmp_path, delta, *blocks(), TABLES), tmp_path)
    assert found["messages"] == {f"broker-{name}": 40 for name in BROKERS}
    assert [key for key, *_ in found["latest"]] == [f"U{n:08d}" for n in range(0, 40, 2)]
    assert {topic for _, topic, _ in found["latest"]} == {"OrderTopic"}
    assert found["by_minute"] == []  # the watermark has not passed: all were stored just now


def test_a_stream_of_three_brokers_that_is_killed_adds_each_message_once(
    tmp_path: Path, delta: str
) -> None:
    stores = [make_broker(tmp_path / "data", name) for name in BROKERS]
    for store_root in stores:
        append(store_root, [ORDER, OTHER], 100)
    session, all_messages = blocks()[:2]
    command = program(tmp_path, delta, session, QUERY)
    stream = Server("delta-stream", command, tmp_path, environment())
    commits = tmp_path / "lake" / "messages" / "_delta_log"
    stop, chance = threading.Event(), random.Random(20261123)

    def write() -> None:
        while not stop.wait(0.5):
            for store_root in stores:
                append(store_root, [ORDER, OTHER], chance.randrange(1, 200))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(KILLS):
            before = len(list(commits.glob("*.json")))
            stream.start()
            stream.wait_until(lambda n=before: len(list(commits.glob("*.json"))) > n, "committed")
            stop.wait(chance.random() * 3)
            stream.kill()
    finally:
        stop.set()
        writer.join()
    rows = result(program(tmp_path, delta, session, all_messages, ROWS), tmp_path)
    found = sorted((broker, offset) for broker, offset in rows)
    expected = [
        (f"broker-{name}", message.commit_log_offset)
        for name, store_root in zip(BROKERS, stores, strict=True)
        for message in LogSearch(store_root, CONFIG, MessageFilter()).messages()
    ]
    assert expected == found
