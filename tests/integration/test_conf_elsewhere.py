"""A new user of a real broker: its broker.conf is elsewhere, and no other option is given."""

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reput.cli.stores import named_stores
from streaming import CommitLogDataSource, build_session, register_source
from streaming.sources.message_source import FORMAT
from tests.integration.live import units
from tests.integration.servers.reput import COMMAND_SECONDS, REPUT
from tests.integration.servers.rocketmq import RocketMq
from tests.integration.traffic import delivered, produce, wait_for_delivery
from tests.support.consoles import console, source

TOPIC = "TopicTest"
NAME = "prod-a"
COUNT = 200
OWN = {
    "brokerName": NAME,
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "1000",
    "maxHashSlotNum": "97",
    "maxIndexNum": "500",
}
GET = ("get", "--topic", TOPIC, "--queue", "0", "--offset", "0")
READS = (("topics",), GET)
LOG_READS = (("search", "--topic", TOPIC), ("tail", "--topic", TOPIC), ("usage",))


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMq]:
    """Run a broker, which has preallocated a log file; it stays up."""
    mq = RocketMq(tmp_path_factory.mktemp("elsewhere"), options=OWN, topics=(TOPIC,))
    try:
        mq.start()
        sent = produce(mq, (TOPIC,), COUNT)
        wait_for_delivery(mq, sent)
        assert delivered(sent)[TOPIC] > COUNT // 2
        yield mq
    finally:
        mq.kill()


def reput(command: tuple[str, ...], *arguments: object) -> list[dict[str, Any]]:
    """Run a command that must succeed; return the objects it printed."""
    line = [*REPUT, command[0], *map(str, arguments), *command[1:], "--json"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return [json.loads(text) for text in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def output(mq: RocketMq) -> Path:
    """Dispatch what the broker has stored."""
    path = mq.directory / "out"
    arguments = (mq.store, "--output", path, "--broker-conf", mq.conf, "--available-now")
    reput(("dispatch",), *arguments)
    return path


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = build_session("conf elsewhere", "local[2]")
    register_source(session, CommitLogDataSource)
    yield session
    session.stop()


def test_it_dispatches_and_reads(mq: RocketMq, output: Path) -> None:
    assert units(output)[TOPIC] == units(mq.store)[TOPIC] > 0
    conf = ("--broker-conf", mq.conf)
    for command in (("status",), ("verify",), *READS):
        assert reput(command, mq.store, "--output", output, *conf)
    for command in (*READS, *LOG_READS):
        assert reput(command, mq.store, *conf)


def test_the_files_alone_show_the_settings(mq: RocketMq, output: Path) -> None:
    """Without any broker.conf too: the first thing that a user tries."""
    for command in (*READS, *LOG_READS):
        assert reput(command, mq.store)
        assert reput(command, mq.store) == reput(command, mq.store, "--broker-conf", mq.conf)
    for command in READS:
        assert reput(command, mq.store, "--output", output)


def test_it_opens_the_console(mq: RocketMq, output: Path) -> None:
    (named,) = named_stores([str(mq.store)], mq.conf)
    assert named.name == NAME
    with console(source(mq.store, output, NAME, broker_conf=mq.conf)) as c:
        assert c.api(f"{NAME}/status")["problem"] is None
        assert c.api(f"{NAME}/status")["damage"] == []
        (first,) = c.api(f"{NAME}/messages", max=1, order="oldest")["messages"]
        offset = first["commit_log_offset"]
        command = c.api(f"{NAME}/messages/{offset}")["command"]
        labels = f'node_id="{NAME}"'
        assert labels in c.client.get("/metrics").text
    line = command.replace("reput", shlex.join(REPUT), 1)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_reads_from_spark(mq: RocketMq, spark: SparkSession) -> None:
    read = spark.read.format(FORMAT)
    with_conf = read.option("brokerConf", str(mq.conf)).load(str(mq.store))
    for frame in (with_conf, spark.read.format(FORMAT).load(str(mq.store))):
        counts = Counter(row.topic for row in frame.select("topic").collect())
        assert counts[TOPIC] == units(mq.store)[TOPIC]


def test_a_wrong_setting_is_a_usage_error_that_names_it(mq: RocketMq) -> None:
    wrong = mq.directory / "wrong.conf"
    text = mq.conf.read_text("utf-8").replace("CommitLog=65536", "CommitLog=131072")
    wrong.write_text(text, "utf-8")
    line = [*REPUT, "search", str(mq.store), "--broker-conf", str(wrong)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--broker-conf {wrong}: mappedFileSizeCommitLog=131072" in done.stderr
