"""The transactional producer against a client that fails in every way that librdkafka does."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from store.errors import ConfigError, KafkaIOError, MirrorInUseError
from streaming.kafka import producer as module
from streaming.kafka.client_options import client_options
from streaming.kafka.producer import DeliveryError, TransactionalProducer
from streaming.kafka.records import Record

RECORD = Record("t", b"value", b"key", 2, 17, [("a", b"b")], 5)
SECONDS = 0.5
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, "timed out", retriable=True)


@dataclass
class Message:
    """What librdkafka reports of a message."""

    size: int = 5

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"value" if self.size == 5 else bytes(self.size)


@dataclass
class Client:
    """A client whose calls do what a test wants, and are recorded."""

    settings: dict[str, Any]
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    does: dict[str, Callable[[], Any]] = field(default_factory=dict)
    left: int = 0  # messages that are not acknowledged

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, *arguments))
            return self.does.get(name, lambda: None)()

        return call

    def flush(self, seconds: float) -> int:
        self.does.get("flush", lambda: None)()
        if self.left:
            time.sleep(seconds)
        return self.left

    def deliver(self, code: int, size: int = 5) -> None:
        """Report that a message was not delivered."""
        self.settings["on_delivery"](KafkaError(code), Message(size))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    found: list[Client] = []

    def make(settings: dict[str, Any], **_more: Any) -> Client:
        found.append(Client(settings))
        return found[-1]

    monkeypatch.setattr(module, "Producer", make)
    return found


def make(stopping: threading.Event | None = None, **properties: str) -> TransactionalProducer:
    properties = {"delivery_timeout_ms": str(int(SECONDS * 1000)), **properties}
    options = client_options("h:1", properties)
    return TransactionalProducer(options, "x", "zstd", 1_000, stopping or threading.Event())


def failing(code: int, **more: bool) -> Callable[[], None]:
    """Return a call that fails."""

    def fail() -> None:
        raise KafkaException(KafkaError(code, "reason", **more))

    return fail


def test_a_transaction(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    producer.send(RECORD)
    producer.send_position("positions", b"name", b"{}")
    producer.flush()
    assert producer.is_open
    producer.commit()
    assert not producer.is_open
    (client,) = clients
    assert client.settings["batch.size"] == 1_000
    names = [call[0] for call in client.calls]
    assert names == [
        "init_transactions", "begin_transaction", "produce", "produce", "commit_transaction",
    ]  # fmt: skip
    assert client.calls[2] == ("produce", "t", b"value", b"key", 2, None, None, 17, [("a", b"b")])
    assert client.calls[3] == ("produce", "positions", b"{}", b"name")


def test_what_is_not_acknowledged_in_time_is_not_committed(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    clients[0].left = 1
    began = time.monotonic()
    with pytest.raises(KafkaIOError, match="writing: Kafka at h:1 did not answer within"):
        producer.flush()
    assert SECONDS <= time.monotonic() - began < 10 * SECONDS


@pytest.mark.parametrize("call", ["flush", "send"])
def test_what_was_not_delivered_is_raised_with_the_first_reason(
    clients: list[Client], call: str
) -> None:
    producer = make()
    producer.begin()
    clients[0].deliver(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    clients[0].deliver(KafkaError._PURGE_QUEUE)
    clients[0].does["produce"] = failing(KafkaError._STATE)
    with pytest.raises(DeliveryError) as raised:
        producer.flush() if call == "flush" else producer.send(RECORD)
    failure = raised.value.failure
    assert failure.is_of(RECORD)
    assert failure.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert isinstance(producer.explain(failure.error, "writing"), ConfigError)


def test_of_messages_that_are_too_large_the_largest_is_raised(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    for size in (10, 900, 30):
        clients[0].deliver(KafkaError.MSG_SIZE_TOO_LARGE, size)
    with pytest.raises(DeliveryError) as raised:
        producer.flush()
    assert len(raised.value.failure.value) == 900


def test_failures_before_a_transaction_are_forgotten(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    clients[0].deliver(KafkaError._PURGE_QUEUE)
    producer.abort()
    producer.begin()
    producer.flush()
    producer.commit()
    assert not producer.is_open


def test_a_call_that_times_out_is_resumed(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    answers = [TIMED_OUT, TIMED_OUT]

    def commit() -> None:
        if answers:
            raise KafkaException(answers.pop())

    clients[0].does["commit_transaction"] = commit
    producer.commit()
    assert [c for c in clients[0].calls if c[0] == "commit_transaction"] == [
        ("commit_transaction", 0.1)
    ] * 3


def test_a_commit_without_an_answer_is_an_error_in_bounded_time(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    clients[0].does["commit_transaction"] = failing(KafkaError._TIMED_OUT, retriable=True)
    clients[0].does["poll"] = lambda: time.sleep(0.01)
    clients[0].settings["error_cb"](KafkaError(KafkaError._TRANSPORT, "connection refused"))
    with pytest.raises(KafkaIOError, match=r"committing: .* did not answer .*: connection ref"):
        producer.commit()
    assert producer.is_open


@pytest.mark.parametrize("raised_as", ["error", "state", "callback"])
def test_a_fenced_producer_says_so(clients: list[Client], raised_as: str) -> None:
    producer = make()
    producer.begin()
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))

    def in_callback() -> None:
        raise SystemError("a result with an exception set") from fenced

    def fence() -> None:
        raise fenced

    clients[0].does |= {
        "error": {"produce": fence},
        "state": {"produce": failing(KafkaError._FATAL), "commit_transaction": fence},
        "callback": {"produce": failing(KafkaError._FATAL), "poll": in_callback},
    }[raised_as]
    with pytest.raises(MirrorInUseError, match="another mirror of that name"):
        producer.send(RECORD)


def test_a_full_queue_is_waited_for(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    fulls = [BufferError(), BufferError()]

    def produce() -> None:
        if fulls:
            raise fulls.pop()

    clients[0].does["produce"] = produce
    producer.send(RECORD)
    assert len([c for c in clients[0].calls if c[0] == "produce"]) == 3


def test_a_queue_that_stays_full_is_an_error_in_bounded_time(clients: list[Client]) -> None:
    producer = make()
    producer.begin()

    def produce() -> None:
        raise BufferError

    clients[0].does |= {"produce": produce, "poll": lambda: time.sleep(0.01)}
    with pytest.raises(KafkaIOError, match="did not answer"):
        producer.send(RECORD)


def test_a_stop_shortens_a_wait(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.1)
    stopping = threading.Event()
    producer = make(stopping, delivery_timeout_ms="60000")
    producer.begin()
    clients[0].left = 1
    stopping.set()
    began = time.monotonic()
    with pytest.raises(KafkaIOError):
        producer.flush()
    assert time.monotonic() - began < 10


def test_closing_waits_for_nothing_and_can_be_repeated(clients: list[Client]) -> None:
    producer = make()
    producer.begin()
    producer.close()
    producer.close()
    producer.abort()
    names = [call[0] for call in clients[0].calls]
    assert names == ["init_transactions", "begin_transaction", "purge"]


def test_a_producer_that_cannot_start_is_closed(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = failing(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    monkeypatch.setattr(
        Client, "init_transactions", lambda _self, _seconds: refused(), raising=False
    )
    with pytest.raises(ConfigError, match="starting to write: Kafka at h:1 denied access: reason"):
        make()
    assert clients[0].calls == [("purge",)]
