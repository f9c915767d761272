"""What users do, in the checkout and with the installed wheel: commands, Python, Spark.

Only public names are used. The store is a broker's, and so are the expected answers.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow.dataset import dataset

from tests.conftest import Golden
from tests.support.environments import REPOSITORY, Environment

pytestmark = [pytest.mark.process, pytest.mark.spark]

FROM_PYTHON = """
import json, sys
from reput import BacklogListener, Boundary, MessageFilter, MessageStore, StoreError
from reput import build_session, query_error, start_dispatch, stop_query

store, output, work, begin = sys.argv[1:]
answers = {}
spark = build_session("installed", "local[2]")
query = start_dispatch(spark, store, output)
query.processAllAvailable()
query.stop()
answers["failure"] = query_error(query)

with MessageStore.open(store, output=output) as s:
    at = s.offset_in_queue_by_time("OrderTopic", 2, int(begin), Boundary.LOWER)
    found = s.get_message("OrderTopic", 2, at).messages
    answers["read"] = [found[0].queue_offset, found[0].commit_log_offset]
    answers["scanned"] = s.scan(MessageFilter(topics=frozenset({"OrderTopic"}))).read_all().num_rows
try:
    MessageStore.open(work + "/nothing")
except StoreError as error:
    answers["error"] = type(error).__mro__[1].__name__ + ": " + str(error)

spark.streams.addListener(BacklogListener(lambda query, backlog: None))
log = spark.read.format("rocketmq-commitlog").load(store)
rows = log.where("topic = 'OrderTopic'").groupBy("queue_id").count().orderBy("queue_id").collect()
answers["batch"] = [list(row) for row in rows]
stream = spark.readStream.format("rocketmq-commitlog").option("startingOffsets", "earliest")
writer = stream.load(store).writeStream.format("parquet").trigger(availableNow=True)
query = writer.option("checkpointLocation", work + "/checkpoint").start(work + "/streamed")
query.awaitTermination()
stop_query(query)
answers["streamed"] = spark.read.parquet(work + "/streamed").count()
try:
    spark.read.format("rocketmq-commitlog").option("minPartitions", "x").load(store).count()
except Exception as error:
    answers["refused"] = str(error).split("JVM stacktrace")[0]
print(json.dumps(answers))
spark.stop()
"""


@pytest.fixture(scope="module")
def output(
    environment: Environment, broker: Golden, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Dispatch the store with the command."""
    output = tmp_path_factory.mktemp(environment.name) / "output"
    environment.run_reput(
        "dispatch", broker.store_root, "--output", output, "--available-now", "--master", "local[2]"
    )
    return output


def answers_of(broker: Golden) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads((broker.directory / "answers.json").read_text("utf-8"))
    return answers


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_version_is_that_of_the_project(environment: Environment) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    assert environment.run_reput("--version") == f"reput {project['version']}\n"


def test_a_dispatch_is_read_as_the_broker_answers(
    environment: Environment, broker: Golden, output: Path
) -> None:
    answers = answers_of(broker)
    lookup = answers["query"][0]
    where = ("--output", output, "--json", "--topic", lookup["topic"])
    found = environment.run_reput("query", broker.store_root, *where, "--key", lookup["key"])
    assert [m["commit_log_offset"] for m in lines(found)] == lookup["phy_offsets"]
    first = answers["look"][0]
    place = ("--queue", first["queue_id"], "--offset", "earliest", "--max", 1)
    got = lines(environment.run_reput("get", broker.store_root, *where, *place))
    assert [(m["msg_id"], m["size"]) for m in got] == [(first["msg_id"], first["store_size"])]


def test_the_files_are_verified_and_the_messages_exported(
    environment: Environment, broker: Golden, output: Path, tmp_path: Path
) -> None:
    records = answers_of(broker)["records"]
    (verified,) = lines(
        environment.run_reput("verify", broker.store_root, "--output", output, "--json")
    )
    assert (verified["equal"], verified["messages"]) == (True, records)
    files = tmp_path / "files"
    environment.run_reput("export", broker.store_root, "--to", files, "--format", "parquet")
    assert dataset(files, partitioning="hive", exclude_invalid_files=True).count_rows() == records


def test_the_console_serves_the_store(
    environment: Environment, broker: Golden, output: Path
) -> None:
    arguments = ("serve", broker.store_root, "--output", output, "--port", 0, "--json")
    with environment.start(*environment.reput, *arguments) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            page = httpx.get(url, follow_redirects=True)
            assert (page.status_code, "OrderTopic" in page.text) == (200, True)
        finally:
            server.terminate()
        server.communicate(timeout=30)
    assert server.returncode == 0


def test_python_dispatches_and_reads_and_spark_finds_the_source(
    environment: Environment, broker: Golden, tmp_path: Path
) -> None:
    answers = answers_of(broker)
    first, records = answers["look"][0], answers["records"]
    output = tmp_path / "output"
    arguments = (broker.store_root, output, tmp_path, first["store_timestamp"])
    printed = json.loads(environment.run_python(FROM_PYTHON, *arguments).splitlines()[-1])
    queues = [q for q in answers["queues"] if q["topic"] == "OrderTopic"]
    refused = printed.pop("refused")
    assert "errors.ConfigError: option 'minPartitions' = 'x' is not a positive" in refused
    assert "Traceback" not in refused
    assert printed == {
        "failure": None,
        "read": [first["queue_offset"], first["commit_log_offset"]],
        "scanned": sum(count for _, count in printed["batch"]),
        "error": printed["error"],
        "batch": printed["batch"],
        "streamed": records,
    }
    assert [queue for queue, _ in printed["batch"]] == sorted(q["queue_id"] for q in queues)
    assert (
        sum(count for _, count in printed["batch"]) == broker.scenario["messages_put"]["OrderTopic"]
    )
    assert str(tmp_path / "nothing") in printed["error"]
    assert any((output / "consumequeue" / "OrderTopic").iterdir())
