"""Brokers that keep queues, timers, transactions or the index in RocksDB.

The queues that are built from the log answer as the broker does from RocksDB, and a broker that
keeps its queues in files starts on them.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.live import SIZES
from tests.integration.questions import (
    Question,
    key_questions,
    own_answer,
    queue_questions,
)
from tests.integration.servers.reput import open_store, reput, rows
from tests.integration.servers.rocketmq import RocketMq
from tests.integration.traffic import Received, Sent, ask, consume, produce, wait_for_delivery
from tests.support.dispatching import assert_same_content, assert_same_store, built_tree

TOPICS = ["TopicA", "TopicB"]
GROUP = "RocksGroup"
COUNT = 300
CONSUMED = 40
QUEUES_IN_ROCKSDB = {
    "5.3.3": {"storeType": "defaultRocksDB"},
    "5.5.0": {"storeType": "defaultRocksDB", "useSeparateStorePathForRocksdbCQ": "true"},
}
QUEUES_IN_FILES = {
    "5.3.3": {"rocksdbCQDoubleWriteEnable": "true"},
    "5.5.0": {
        "timerRocksDBEnable": "true",
        "transRocksDBEnable": "true",
        "indexRocksDBEnable": "true",
    },
}


@dataclass
class Stopped:
    """A broker that has stopped, and what it answered before."""

    mq: RocketMq
    sent: list[Sent]
    questions: list[Question]
    answers: list[list[Received] | int]

    @property
    def output(self) -> Path:
        """The OUTPUT of the queues that are built from its log."""
        return self.mq.directory / "out"


@pytest.fixture(scope="module", params=QUEUES_IN_ROCKSDB)
def stopped(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stopped]:
    """Send messages of every kind to a broker with queues in RocksDB, ask it, and dispatch."""
    directory = tmp_path_factory.mktemp(f"rocksdb-{request.param}")
    options = {**SIZES, **QUEUES_IN_ROCKSDB[request.param]}
    mq = RocketMq(directory, request.param, options, TOPICS)
    try:
        mq.start()
        sent = produce(mq, TOPICS, COUNT)
        wait_for_delivery(mq, sent)
        consume(mq, TOPICS[0], GROUP, CONSUMED)
        questions = [*key_questions(sent), *queue_questions(mq, TOPICS)]
        answers = ask(mq, questions)
        mq.stop_broker()
        broker = Stopped(mq, sent, questions, answers)
        done = reput(mq, "dispatch", mq.store, "--output", broker.output, "--available-now")
        assert done.returncode == 0, done.stderr
        assert 'own_queues_not_read="storeType=defaultRocksDB"' in done.stderr
        yield broker
    finally:
        mq.kill()


def test_built_queues_answer_as_the_broker_did_from_rocksdb(stopped: Stopped) -> None:
    with open_store(stopped.mq, stopped.output) as store:
        own = [own_answer(store, question) for question in stopped.questions]
    assert own == stopped.answers
    assert len(own) > 60


def test_the_index_files_are_the_brokers(stopped: Stopped) -> None:
    index = [
        {
            name: content
            for name, content in built_tree(directory).items()
            if name.startswith("index/")
        }
        for directory in (stopped.output, stopped.mq.store)
    ]
    assert index[0]
    assert_same_content(*index)


def test_its_own_queues_are_refused_by_name_and_nothing_is_written_beside_them(
    stopped: Stopped,
) -> None:
    mq, before = stopped.mq, sorted(stopped.mq.store.rglob("*"))
    commands: list[list[str | int | Path]] = [
        ["get", mq.store, "--topic", TOPICS[0], "--queue", 0, "--offset", 0],
        ["topics", mq.store],
        ["verify", mq.store],
        ["recover", mq.store, "--output", mq.store],
        ["rebuild", mq.store, "--output", mq.store],
        ["dispatch", mq.store, "--output", mq.store, "--available-now"],
    ]
    for command in commands:
        done = reput(mq, *command)
        assert done.returncode == 5, (command, done.stdout, done.stderr)
        assert "the consume queues are in RocksDB and not read (storeType=" in done.stderr
    assert sorted(mq.store.rglob("*")) == before


def test_its_log_is_read_like_any_other(stopped: Stopped) -> None:
    mq, kinds = stopped.mq, {m.kind for m in stopped.sent}
    searched = rows(mq, "search", mq.store, "--topic", TOPICS[0], "--topic", TOPICS[1])
    delivered = [m for m in stopped.sent if m.is_delivered]
    assert len(searched) == len(delivered)
    tailed = rows(mq, "tail", mq.store, "--topic", TOPICS[0], "-n", 5)
    assert tailed == [m for m in searched if m["topic"] == TOPICS[0]][-5:]
    usage = {r["topic"]: r["messages"] for r in rows(mq, "usage", mq.store) if "topic" in r}
    assert sum(usage[topic] for topic in TOPICS) == len(delivered)
    pending = rows(mq, "pending", mq.store, "--all")
    assert {r["state"] for r in pending} == {"delivered", "cancelled"}
    held = [m for m in stopped.sent if m.kind in {"delayed", "timed", "commit", "rollback"}]
    assert kinds >= {"delayed", "timed", "commit", "rollback"}
    assert len(pending) == len(held)
    exported = mq.directory / "exported"
    done = reput(mq, "export", mq.store, "--to", exported)
    assert done.returncode == 0, done.stderr


def test_committed_offsets_in_rocksdb_are_named_not_taken_for_none(stopped: Stopped) -> None:
    mq = stopped.mq
    done = reput(mq, "topics", mq.store, "--output", stopped.output)
    assert done.returncode == 0, done.stderr
    assert "consumerOffsets is a RocksDB, which is not read" in done.stdout + done.stderr
    to = mq.directory / "resend"
    done = reput(mq, "export", mq.store, "--to", to, "--not-consumed-by", GROUP)
    assert done.returncode == 2, done.stderr
    assert "consumerOffsets is a RocksDB, which is not read" in done.stderr


def test_a_rebuild_makes_the_same_files(stopped: Stopped, tmp_path: Path) -> None:
    done = reput(stopped.mq, "rebuild", stopped.mq.store, "--output", tmp_path / "rebuilt")
    assert done.returncode == 0, done.stderr
    assert_same_store(tmp_path / "rebuilt", stopped.output)


def test_a_broker_with_queues_in_files_starts_on_the_built_ones(stopped: Stopped) -> None:
    mq = stopped.mq
    for kind in ("consumequeue", "consumequeue_rocksdb", "index"):
        shutil.rmtree(mq.store / kind, ignore_errors=True)
    for kind in ("consumequeue", "index"):
        shutil.copytree(stopped.output / kind, mq.store / kind)
    mq.set_options({"storeType": "default", "useSeparateStorePathForRocksdbCQ": "false"})
    mq.start_broker()
    assert ask(mq, stopped.questions) == stopped.answers


@pytest.mark.parametrize("version", QUEUES_IN_FILES)
def test_queues_that_are_in_files_too_are_read(tmp_path: Path, version: str) -> None:
    mq = RocketMq(tmp_path, version, {**SIZES, **QUEUES_IN_FILES[version]}, TOPICS)
    try:
        mq.start()
        sent = produce(mq, TOPICS, COUNT)
        wait_for_delivery(mq, sent)
        questions = [*key_questions(sent), *queue_questions(mq, TOPICS)]
        answers = ask(mq, questions)
        mq.stop_broker()
    finally:
        mq.kill()
    output = tmp_path / "out"
    with open_store(mq, mq.store) as store:
        assert [own_answer(store, question) for question in questions] == answers
    done = reput(mq, "verify", mq.store)
    assert done.returncode == 0, done.stdout + done.stderr
    done = reput(mq, "rebuild", mq.store, "--output", output)
    assert done.returncode == 0, done.stderr
    ours, brokers = built_tree(output), built_tree(mq.store)
    assert ours
    assert_same_content(ours, {name: brokers[name] for name in brokers.keys() & ours.keys()})
    done = reput(mq, "pending", mq.store, "--all")
    assert done.returncode == 0, done.stderr
    if version >= "5.5":
        for setting in ("timerRocksDBEnable=true", "transRocksDBEnable=true"):
            assert setting in done.stderr
        done = reput(mq, "pending", mq.store, "--kind", "timer")
        assert done.returncode == 5
        assert "timerRocksDBEnable=true" in done.stderr
    else:
        done = reput(mq, "dispatch", mq.store, "--output", mq.store, "--available-now")
        assert done.returncode == 5
        assert "rocksdbCQDoubleWriteEnable=true" in done.stderr
