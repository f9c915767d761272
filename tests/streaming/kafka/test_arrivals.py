"""Arrivals without a Kafka: events sent, coalesced and dropped; nothing blocks."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import LogRange, Scanner
from store.config import StoreConfig
from store.errors import ConfigError
from streaming.kafka.arrivals import Arrival, KafkaArrivals, arrivals_of
from streaming.kafka.client_options import client_options
from tests.logs.build import COMMIT, PREPARED, Message, build_log, encode, write_log

FILE_SIZE = 1 << 20
NOWHERE = client_options("127.0.0.1:1", {})


def requests_of(directory: Path, messages: Sequence[Message]) -> DispatchRequests:
    """Write a log and scan it."""
    config = StoreConfig(mapped_file_size_commit_log=FILE_SIZE)
    write_log(build_log(messages, FILE_SIZE), directory)
    end = sum(len(encode(message, 0)) for message in messages)
    (found,) = Scanner(config).read(LogRange(0, end, str(directory / f"{0:020d}"), 0))
    assert isinstance(found, DispatchRequests)
    return found


def message(topic: str, queue_id: int, offset: int, flag: int = 0) -> Message:
    return Message(topic, queue_id, offset, store_timestamp=1000 + offset, sys_flag=flag)


def test_one_event_per_queue_with_its_newest_message(tmp_path: Path) -> None:
    messages = [
        message("A", 0, 4),
        message("A", 1, 0),
        message("A", 0, 5, COMMIT),
        message("B", 0, 9),
        message("A", 0, 6, PREPARED),
        message("C", 0, 1, PREPARED),
    ]
    arrivals = arrivals_of(requests_of(tmp_path, messages))
    assert arrivals == [
        Arrival("A", 0, 6, 1005),
        Arrival("A", 1, 1, 1000),
        Arrival("B", 0, 10, 1009),
    ]
    assert json.loads(arrivals[0].encode()) == {
        "topic": "A",
        "queue_id": 0,
        "max_offset": 6,
        "store_timestamp": 1005,
    }


class FakeProducer:
    """Accepts events, fails or blocks, as configured."""

    def __init__(self) -> None:
        self.values: list[dict[str, Any]] = []
        self.failing = False
        self.released = threading.Event()
        self.released.set()
        self.attempts = 0

    def __call__(self, **_options: Any) -> "FakeProducer":
        return self

    def send(self, topic: str, value: bytes, key: bytes) -> "FakeFuture":
        assert topic == "arrivals"
        event = json.loads(value)
        assert key == f"{event['topic']}/{event['queue_id']}".encode()
        return FakeFuture(self, event)

    def close(self, timeout: float) -> None:
        pass


class FakeFuture:
    """An event in flight."""

    def __init__(self, producer: FakeProducer, event: dict[str, Any]) -> None:
        self.producer, self.event = producer, event

    def get(self, timeout: float) -> None:
        self.producer.attempts += 1
        self.producer.released.wait(timeout)
        if self.producer.failing:
            raise KafkaTimeoutError("not today")
        self.producer.values.append(self.event)


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_events_are_sent_and_counted(tmp_path: Path) -> None:
    producer = FakeProducer()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(requests_of(tmp_path, [message("A", 0, n) for n in range(5)]))
    eventually(lambda: len(producer.values) == 1)
    assert producer.values[0]["max_offset"] == 5
    counts = arrivals.close()
    assert (counts.sent, counts.dropped, counts.failures) == (1, 0, 0)


def test_newer_events_replace_waiting_ones(tmp_path: Path) -> None:
    producer = FakeProducer()
    producer.released.clear()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(requests_of(tmp_path / "0", [message("A", 0, 0)]))
    eventually(lambda: producer.attempts == 1)  # in flight
    for n in range(1, 6):
        arrivals(requests_of(tmp_path / str(n), [message("A", 0, n)]))
    assert arrivals.counts.waiting == 1
    assert arrivals.counts.coalesced == 4
    producer.released.set()
    eventually(lambda: len(producer.values) == 2)
    assert [v["max_offset"] for v in producer.values] == [1, 6]
    arrivals.close()


def test_a_failed_event_returns_unless_a_newer_one_is_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer = FakeProducer()
    producer.failing = True
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(requests_of(tmp_path / "0", [message("A", 0, 0), message("B", 0, 0)]))
    eventually(lambda: producer.attempts >= 4)
    assert arrivals.counts.waiting == 2
    producer.released.clear()
    now = producer.attempts
    eventually(lambda: producer.attempts > now)
    arrivals(requests_of(tmp_path / "1", [message("A", 0, 1)]))  # while older ones are in flight
    producer.released.set()
    now = producer.attempts
    eventually(lambda: producer.attempts > now + 1)
    producer.failing = False
    eventually(lambda: {v["topic"]: v["max_offset"] for v in producer.values} == {"A": 2, "B": 1})
    counts = arrivals.close()
    assert counts.dropped == 0
    assert counts.failures >= 2
    warnings = [r for r in caplog.records if "the dispatch continues" in r.getMessage()]
    assert len(warnings) == 1  # not at each attempt


def test_the_table_is_bounded_and_events_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    producer = FakeProducer()
    producer.released.clear()
    producer.failing = True
    arrivals = KafkaArrivals(NOWHERE, "arrivals", queues_max=3, make_producer=producer)
    arrivals(requests_of(tmp_path / "0", [message("X", 0, 0)]))
    eventually(lambda: producer.attempts == 1)
    arrivals(requests_of(tmp_path / "1", [message("A", q, 0) for q in range(5)]))
    counts = arrivals.counts
    assert (counts.waiting, counts.dropped) == (3, 2)
    producer.released.set()
    eventually(lambda: arrivals.counts.dropped == 3)  # there is no room for X to return to
    began = time.monotonic()
    counts = arrivals.close()
    assert time.monotonic() - began < 6
    assert counts.dropped == 6  # including those waiting at the end
    assert counts.sent == 0


class Absent:
    """Fails like a producer that cannot reach a broker, when the test releases it."""

    def __init__(self) -> None:
        self.fails = threading.Event()

    def __call__(self, **_options: Any) -> FakeProducer:
        self.fails.wait()
        raise KafkaTimeoutError("Unable to bootstrap")


def test_an_unreachable_kafka_delays_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    absent = Absent()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=absent)
    requests = requests_of(tmp_path, [message("A", q, n) for q in range(4) for n in range(100)])
    arrivals(requests)
    for _ in range(200):
        arrivals(requests)
    assert arrivals.counts.waiting == 4
    counts = arrivals.close(seconds=0.1)  # nothing has been acknowledged yet
    assert (counts.sent, counts.dropped) == (0, 4)
    arrivals(requests)  # after the end
    assert arrivals.counts.dropped == 8
    absent.fails.set()

    def warnings() -> int:
        return len([r for r in caplog.records if "the dispatch continues" in r.getMessage()])

    eventually(lambda: warnings() == 1)


def test_a_listener_raises_nothing_and_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=FakeProducer())
    arrivals(None)  # type: ignore[arg-type]
    assert "arrivals were not enqueued" in caplog.text
    arrivals(requests_of(tmp_path, [message("A", 0, 0)]))
    assert arrivals.close().sent == 1


def test_a_topic_that_kafka_refuses_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot name a topic"):
        KafkaArrivals(NOWHERE, "a b")
