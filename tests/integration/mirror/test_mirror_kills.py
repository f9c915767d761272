"""A mirror killed anywhere: readers of what is committed see each message once, in order."""

import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store.config import load_config
from store.errors import MirrorInUseError
from streaming.kafka.topic_rules import TopicRules
from streaming.queries.mirror_query import prepare_mirror
from tests.integration.mirror.mirroring import (
    append,
    expected,
    held,
    make_store,
    messages_of,
    mirror,
    options_for,
    run_here,
)
from tests.integration.servers.kafka import KafkaServer

KILLS = 50
CLI_KILLS = 3
PRODUCER = "streaming.kafka.producer"
# Where a mirror kills itself: module, function, when, at which call.
STEPS = {
    "before it is fenced in": (PRODUCER, "TransactionalProducer.__init__", "before", 1),
    "fenced in": (PRODUCER, "TransactionalProducer.__init__", "after", 1),
    "position read": ("streaming.queries.mirror_query", "read_position", "after", 1),
    "begun": (PRODUCER, "TransactionalProducer.begin", "after", 2),
    "before messages": (PRODUCER, "TransactionalProducer.send", "before", 100),
    "messages on their way": (PRODUCER, "TransactionalProducer.send", "after", 100),
    "before the position": (PRODUCER, "TransactionalProducer.send_position", "before", 2),
    "position on its way": (PRODUCER, "TransactionalProducer.send_position", "after", 2),
    "position written": (PRODUCER, "TransactionalProducer.flush", "after", 2),
    "before the commit": (PRODUCER, "TransactionalProducer.commit", "before", 2),
    "commit asked for": (PRODUCER, "TransactionalProducer.commit", "during", 2),
    "committed": (PRODUCER, "TransactionalProducer.commit", "after", 2),
    "batch done": ("streaming.kafka.mirror_sink", "MirrorSink.apply", "after", 1),
    "at the end": (PRODUCER, "TransactionalProducer.close", "before", 1),
}  # fmt: skip


class Forks:
    """Processes that mirror a store, forked from one in which all is loaded."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.integration.mirror.mirror_process"]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def start(self, order: dict[str, Any]) -> int:
        """Start a process; return its id."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        line = self.line()
        assert line.startswith("pid "), line
        return int(line[4:])

    def line(self) -> str:
        """Return the next line that the server or a process of it wrote."""
        return self._lines.get(timeout=120)

    def said(self) -> list[str]:
        """Return the lines that are there."""
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        return lines

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._lines.put(line.strip())

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(60)
        self._reader.join(60)
        self._server.stdout.close()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    server = Forks()
    yield server
    server.close()


def order(kafka: KafkaServer, store: Path, name: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap": kafka.bootstrap,
        "store": str(store),
        "name": name,
        "transaction_bytes": 12_000,
        "max_bytes": 40_000,
        "chunk_bytes": 5_000,
        **more,
    }


def wait_for_end(pid: int) -> None:
    """Wait until a process of the server is gone."""
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "a mirror does not end"
        time.sleep(0.002)


def assert_each_once(kafka: KafkaServer, store: Path, name: str, count: int) -> None:
    """Compare what is committed with the store's messages, in order."""
    messages = messages_of(store, load_config(store))
    assert len(messages) == count
    counts = {f"{name}.Orders": 2, f"{name}._RETRY_g": 1}
    found = held(kafka.bootstrap, counts)
    assert found == expected(messages, TopicRules(prefix=f"{name}.").kafka_name, counts)


def with_topics(store: Path) -> None:
    """Say how many queues the topics have."""
    (store / "config").mkdir()
    table = {
        "Orders": {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6},
        "%RETRY%g": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6},
    }
    (store / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def test_killed_at_random_moments(kafka: KafkaServer, forks: Forks, tmp_path: Path) -> None:
    store, name, count = tmp_path / "store", "random", 3_000
    make_store(store, count)
    with_topics(store)
    randoms = random.Random(20)
    kills = 0
    while kills < KILLS:
        pid = forks.start(order(kafka, store, name))
        if randoms.random() < 0.75:
            assert forks.line() == "ready"
            time.sleep(randoms.uniform(0, 0.25))
        else:
            time.sleep(randoms.uniform(0, 1))
        with suppress(ProcessLookupError):  # it may have ended
            os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
        said = forks.said()
        if "done" in said:  # it was too quick: there is more to do for the next
            append(store, 3_000, count)
            count += 3_000
        else:
            kills += 1
        assert not [line for line in said if line.startswith("failed")], said
    mirror(store, options_for(kafka.bootstrap, name))
    assert_each_once(kafka, store, name, count)


@pytest.mark.parametrize("step", STEPS)
def test_killed_between_two_steps(
    kafka: KafkaServer, forks: Forks, tmp_path: Path, step: str
) -> None:
    store, name = tmp_path / "store", "step" + str(list(STEPS).index(step))
    make_store(store, 500)
    with_topics(store)
    pid = forks.start(order(kafka, store, name, step=STEPS[step]))
    wait_for_end(pid)
    said = forks.said()
    assert [line for line in said if line != "ready"] == [], said
    again = mirror(store, options_for(kafka.bootstrap, name))
    assert again.sink.position.messages == 500
    assert_each_once(kafka, store, name, 500)


def test_a_second_mirror_of_a_name_ends_the_first(kafka: KafkaServer, tmp_path: Path) -> None:
    store, name = tmp_path / "store", "fenced"
    make_store(store, 400)
    with_topics(store)
    options = options_for(kafka.bootstrap, name, transaction_bytes=5_000)
    first = prepare_mirror(store, options)
    done = []

    def stop() -> None:
        done.append(first.sink.position.commit_log_offset)
        if len(done) == 2:
            taken_over.append(prepare_mirror(store, options))

    taken_over: list[Any] = []
    with pytest.raises(MirrorInUseError, match="another mirror of that name"):
        run_here(first, max_bytes=10_000, after_batch=stop)
    first.close()
    (second,) = taken_over
    assert second.begin == done[1]
    run_here(second)
    second.close()
    assert_each_once(kafka, store, name, 400)


def test_what_a_dead_transaction_holds_back_is_waited_for(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    make_store(store, 50)
    with_topics(store)
    mirror(store, options_for(kafka.bootstrap, "waiting"))
    other = options_for(kafka.bootstrap, "other", properties={"transaction.timeout.ms": "5000"})
    dead = prepare_mirror(store, other)
    producer = dead.sink._producer
    producer.begin()
    producer.send_position(dead.options.position_topic, b"other", b"{}")
    producer.flush()
    append(store, 50, 50)
    done = mirror(store, options_for(kafka.bootstrap, "waiting"))  # nothing of it is read twice
    assert done.sink.position.messages == 100
    assert_each_once(kafka, store, "waiting", 100)
    dead.close()
