"""Arrivals without a Kafka: events sent, coalesced and dropped; nothing blocks."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from checkpoints.output import DispatchOutput
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import LogRange, Scanner
from store.config import StoreConfig
from store.errors import ConfigError
from store.reads.message_store import MessageStore
from streaming.kafka.arrivals import Arrival, KafkaArrivals, arrivals_of
from streaming.kafka.client_options import client_options
from streaming.sinks.dispatch_sink import DispatchSink, DurableBatch
from tests.logs.build import COMMIT, PREPARED, Message, build_log, encode, write_log

FILE_SIZE = 1 << 20
CONFIG = StoreConfig(mapped_file_size_commit_log=FILE_SIZE, message_index_enable=False)
NOWHERE = client_options("127.0.0.1:1", {})


class Queues:
    """An OUTPUT to which batches are dispatched, each of messages that follow in one log."""

    def __init__(self, directory: Path) -> None:
        self.store, self.output = directory / "store", directory / "output"
        self._sent: list[Message] = []
        self.batches: list[DurableBatch] = []

    def batch(self, *parts: Sequence[Message]) -> DurableBatch:
        """Append messages to the log; dispatch each part to the queues as one of a batch."""
        stretches = []
        for part in parts:
            begin = sum(len(encode(m, 0)) for m in self._sent)
            self._sent += part
            end = begin + sum(len(encode(m, 0)) for m in part)
            write_log(build_log(self._sent, FILE_SIZE), self.store / "commitlog")
            path = str(self.store / f"commitlog/{0:020d}")
            (found,) = Scanner(CONFIG).read(LogRange(begin, end, path, 0))
            assert isinstance(found, DispatchRequests)
            stretches.append(found)
        owned = DispatchOutput.open(self.output, self.store, CONFIG)
        sink = DispatchSink(owned, CONFIG, listeners=[self.batches.append])
        for stretch in stretches[:-1]:
            sink.apply_part([stretch])
        sink.apply(stretches[-1:])
        sink.close()
        return self.batches[-1]


@pytest.fixture
def queues(tmp_path: Path) -> Queues:
    return Queues(tmp_path)


def message(topic: str, queue_id: int, offset: int, flag: int = 0) -> Message:
    return Message(topic, queue_id, offset, store_timestamp=1000 + offset, sys_flag=flag)


def test_one_event_per_queue_with_its_newest_message(queues: Queues) -> None:
    messages = [
        message("A", 0, 4),
        message("A", 1, 0),
        message("A", 0, 5, COMMIT),
        message("B", 0, 9),
        message("A", 0, 6, PREPARED),
        message("C", 0, 1, PREPARED),
    ]
    arrivals = arrivals_of(queues.batch(messages))
    assert sorted(arrivals, key=lambda a: (a.topic, a.queue_id)) == [
        Arrival("A", 0, 6, 1005),
        Arrival("A", 1, 1, 1000),
        Arrival("B", 0, 10, 1009),
    ]
    assert json.loads(Arrival("A", 0, 6, 1005).encode()) == {
        "topic": "A",
        "queue_id": 0,
        "max_offset": 6,
        "store_timestamp": 1005,
    }


def test_an_event_names_the_end_of_the_queue_and_never_one_before_it(queues: Queues) -> None:
    gap = arrivals_of(queues.batch([message("A", 0, n) for n in (0, 1, 7)]))
    assert gap == [Arrival("A", 0, 3, 1007)]
    repeated = [message("A", 0, 1), message("A", 0, 2)]
    assert arrivals_of(queues.batch(repeated)) == []  # the queue drops both
    assert arrivals_of(queues.batch([message("A", 0, 8), *repeated])) == [Arrival("A", 0, 4, 1008)]
    with MessageStore.open(queues.store, queues.output) as store:
        assert store.max_offset_in_queue("A", 0) == 4


def test_a_batch_of_several_parts_has_one_event_per_queue(queues: Queues) -> None:
    parts = [message("A", 0, 0), message("B", 0, 0)], [message("A", 0, 1)]
    arrivals = arrivals_of(queues.batch(*parts))
    assert sorted(arrivals, key=lambda a: a.topic) == [
        Arrival("A", 0, 2, 1001),
        Arrival("B", 0, 1, 1000),
    ]


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


def test_events_are_sent_and_counted(queues: Queues) -> None:
    producer = FakeProducer()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(queues.batch([message("A", 0, n) for n in range(5)]))
    eventually(lambda: len(producer.values) == 1)
    assert producer.values[0]["max_offset"] == 5
    counts = arrivals.close()
    assert (counts.sent, counts.dropped, counts.failures) == (1, 0, 0)


def test_newer_events_replace_waiting_ones(queues: Queues) -> None:
    producer = FakeProducer()
    producer.released.clear()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(queues.batch([message("A", 0, 0)]))
    eventually(lambda: producer.attempts == 1)  # in flight
    for n in range(1, 6):
        arrivals(queues.batch([message("A", 0, n)]))
    assert arrivals.counts.waiting == 1
    assert arrivals.counts.coalesced == 4
    producer.released.set()
    eventually(lambda: len(producer.values) == 2)
    assert [v["max_offset"] for v in producer.values] == [1, 6]
    arrivals.close()


def test_events_in_flight_are_waiting_and_count_as_dropped_at_close(queues: Queues) -> None:
    producer = FakeProducer()
    producer.released.clear()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(queues.batch([message("A", q, 0) for q in range(1_000)]))
    eventually(lambda: producer.attempts == 1)
    assert arrivals.counts.waiting == 1_000
    arrivals(queues.batch([message("A", 0, 1)]))
    counts = arrivals.close(seconds=0.1)
    assert (counts.sent, counts.coalesced, counts.dropped) == (0, 1, 1_000)
    assert arrivals.counts.waiting == 0
    producer.released.set()
    eventually(lambda: len(producer.values) == 1_000)  # acknowledged too late
    assert arrivals.close() == counts


def test_a_failed_event_returns_unless_a_newer_one_is_waiting(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    producer = FakeProducer()
    producer.failing = True
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=producer)
    arrivals(queues.batch([message("A", 0, 0), message("B", 0, 0)]))
    eventually(lambda: producer.attempts >= 4)
    assert arrivals.counts.waiting == 2
    producer.released.clear()
    now = producer.attempts
    eventually(lambda: producer.attempts > now)
    arrivals(queues.batch([message("A", 0, 1)]))  # while older ones are in flight
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


def test_the_table_is_bounded_and_events_that_do_not_fit_are_counted(queues: Queues) -> None:
    producer = FakeProducer()
    producer.released.clear()
    producer.failing = True
    arrivals = KafkaArrivals(NOWHERE, "arrivals", queues_max=3, make_producer=producer)
    arrivals(queues.batch([message("X", 0, 0)]))
    eventually(lambda: producer.attempts == 1)
    arrivals(queues.batch([message("A", q, 0) for q in range(5)]))
    counts = arrivals.counts
    assert (counts.waiting, counts.dropped) == (3, 3)  # the event in flight has its place
    producer.released.set()
    eventually(lambda: arrivals.counts.failures == 1)
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
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    absent = Absent()
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=absent)
    requests = queues.batch([message("A", q, n) for q in range(4) for n in range(100)])
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
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    arrivals = KafkaArrivals(NOWHERE, "arrivals", make_producer=FakeProducer())
    arrivals(None)  # type: ignore[arg-type]
    assert "arrivals were not enqueued" in caplog.text
    arrivals(queues.batch([message("A", 0, 0)]))
    assert arrivals.close().sent == 1


def test_a_topic_that_kafka_refuses_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot name a topic"):
        KafkaArrivals(NOWHERE, "a b")
