"""A transactional producer, librdkafka's, whose every wait is bounded.

librdkafka reports each message that it could not deliver, and fails the commit of its transaction.
A call of its transaction API that times out is resumed by the next one, so waits are made of short
calls, between which a stop of the mirror is noticed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from store.errors import KafkaIOError, StoreError
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import BOOTSTRAP_TIMEOUT_MS, ClientOptions
from streaming.kafka.producer_options import producer_options
from streaming.kafka.records import Record

_log = logging.getLogger("librdkafka")
_log.addHandler(logging.NullHandler())
_POLL_SECONDS = 0.1
_STOP_SECONDS = 5.0  # how long a transaction may still take when the mirror is stopped
_FAILED_EARLIER = ("_STATE", "_FATAL")
TOO_LARGE = "MSG_SIZE_TOO_LARGE"


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """A message that was not delivered."""

    error: KafkaError
    topic: str
    partition: int
    key: bytes | None
    value: bytes

    @classmethod
    def of(cls, error: KafkaError, message: Message) -> DeliveryFailure:
        """Return the failure of a message."""
        place = message.topic() or "", message.partition() or 0
        key, value = message.key(), message.value() or b""
        return cls(error, *place, key, value)

    @property
    def is_too_large(self) -> bool:
        """Whether Kafka refused the message for its size."""
        return self.error.name() == TOO_LARGE

    def is_of(self, record: Record) -> bool:
        """Return whether this may be the failure of a record: Kafka's answer names neither."""
        return record.key == self.key and record.value == self.value


class DeliveryError(Exception):
    """A message of the transaction was not delivered."""

    def __init__(self, failure: DeliveryFailure) -> None:
        super().__init__(failure.error.str())
        self.failure = failure


class TransactionalProducer:
    """A producer with a transactional id; creating it ends one left open.

    ``stopping`` shortens every wait. Raises ConfigError, KafkaIOError, MirrorInUseError.
    """

    def __init__(
        self,
        options: ClientOptions,
        transactional_id: str,
        codec: str,
        batch_bytes: int,
        stopping: threading.Event,
    ) -> None:
        self.batch_bytes = batch_bytes
        self.is_open = False
        self._options = options
        self._stopping = stopping
        self._wait_seconds = options.get("delivery.timeout.ms") / 1000
        self._timeout_seconds: float = options.get("transaction.timeout.ms") / 1000
        self._began = 0.0
        self._failure: DeliveryFailure | None = None
        self._cause = ""  # the last failure of a connection
        self._is_closed = False
        settings = {
            **producer_options(options, transactional_id=transactional_id, codec=codec),
            "batch.size": batch_bytes,
            "on_delivery": self._on_delivery,
            "error_cb": self._on_error,
        }
        self._producer = connect(options, lambda: Producer(settings, logger=_log))
        try:
            self._call("init_transactions", "starting to write", BOOTSTRAP_TIMEOUT_MS / 1000)
        except BaseException:
            self.close()
            raise

    @property
    def seconds_open(self) -> float:
        """How long the transaction has been open, in seconds."""
        return time.monotonic() - self._began if self.is_open else 0.0

    @property
    def timeout_seconds(self) -> float:
        """Kafka's transaction timeout, in seconds."""
        return self._timeout_seconds

    def begin(self) -> None:
        """Begin a transaction."""
        self._try(self._producer.begin_transaction, "beginning a transaction")
        self._failure = None
        self._began, self.is_open = time.monotonic(), True

    def send(self, record: Record) -> None:
        """Queue a record; its topic must exist. Raises DeliveryError for an earlier one."""
        topic, value, key, partition, timestamp, headers, _ = record
        self._produce(topic, value, key, partition, None, None, timestamp, headers)

    def send_position(self, topic: str, key: bytes, value: bytes) -> None:
        """Queue a record without headers, the last one of a transaction."""
        self._produce(topic, value, key)

    def flush(self) -> None:
        """Wait until Kafka has acknowledged every record of the transaction.

        Raises DeliveryError, KafkaIOError.
        """

        def is_done() -> bool:
            left = self._producer.flush(_POLL_SECONDS)
            self._check_delivery()
            return left == 0

        self._wait(is_done, "writing", self._wait_seconds)

    def commit(self) -> None:
        """Commit, and wait for it within bounds.

        If this raises, the transaction may still have been committed: read the position again.
        """
        self._call("commit_transaction", "committing", self._wait_seconds)
        self.is_open = False

    def abort(self) -> None:
        """Abort if possible; otherwise the next producer ends the transaction."""
        if self.is_open:
            self._call("abort_transaction", "aborting", self._wait_seconds)
            self.is_open = False

    def close(self) -> None:
        """Close the producer without waiting for Kafka: what was not committed is discarded."""
        if not self._is_closed:
            self._is_closed, self.is_open = True, False
            with suppress(KafkaException):
                self._producer.purge()
            # Its own close() flushes first, without a limit. This is the only reference to it.
            del self._producer

    def explain(self, error: KafkaException | KafkaError, what: str) -> StoreError:
        """Return an error of a transaction as a StoreError."""
        wrapped = error if isinstance(error, KafkaException) else KafkaException(error)
        found = as_store_error(wrapped, self._options, what)
        if self.seconds_open > self._timeout_seconds:
            return KafkaIOError(
                f"{what}: the transaction took {self.seconds_open:.0f} s, longer than "
                f"transaction.timeout.ms ({self._timeout_seconds:.0f} s) allows: {found}"
            )
        return found

    def _reason(self, error: KafkaException) -> KafkaException:
        """Return why the transaction failed, if the error of a record only says that it did."""
        if error.args[0].name() in _FAILED_EARLIER:
            try:
                self._producer.commit_transaction(_POLL_SECONDS)
            except KafkaException as e:
                return e
        return error

    def _produce(self, *arguments: Any) -> None:
        """Queue a record, waiting while the queue is full.

        Callbacks are not served before the queue is full, the transaction has failed or is flushed:
        serving them in between costs a fifth of the rate.
        """
        try:
            self._producer.produce(*arguments)
        except BufferError:
            self._wait(lambda: self._try_produce(arguments), "writing", self._wait_seconds)
        except KafkaException as e:
            self._poll(_POLL_SECONDS)  # a failure of a delivery says why the transaction failed
            raise self.explain(self._reason(e), f"writing to {arguments[0]}") from e

    def _try_produce(self, arguments: tuple[Any, ...]) -> bool:
        self._poll(_POLL_SECONDS / 10)
        try:
            self._producer.produce(*arguments)
        except BufferError:
            return False
        return True

    def _poll(self, seconds: float) -> None:
        """Serve callbacks. Raises the first failure of a delivery."""
        self._try(lambda: self._producer.poll(seconds), "writing")
        self._check_delivery()

    def _check_delivery(self) -> None:
        if self._failure is not None:
            raise DeliveryError(self._failure)

    def _call(self, method: str, what: str, seconds: float) -> None:
        """Call the transaction API until it is done; a call that timed out is resumed."""

        def is_done() -> bool:
            try:
                getattr(self._producer, method)(_POLL_SECONDS)
            except KafkaException as e:
                if not e.args[0].retriable():
                    raise
                self._producer.poll(_POLL_SECONDS)
                return False
            return True

        self._wait(is_done, what, seconds)

    def _wait(self, is_done: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until it is done, but not beyond ``seconds`` or a stop."""
        began = time.monotonic()
        deadline = began + seconds
        while not self._try(is_done, what):
            now = time.monotonic()
            if self._stopping.is_set():
                deadline = min(deadline, now + (_STOP_SECONDS if self.is_open else 0))
            if now >= deadline:
                cause = f": {self._cause}" if self._cause else ""
                raise KafkaIOError(
                    f"{what}: Kafka at {self._options} did not answer within {now - began:.0f} s"
                    f"{cause}"
                )

    def _try(self, do: Callable[[], Any], what: str) -> Any:
        try:
            return do()
        except KafkaException as e:
            raise self.explain(e, what) from e
        except SystemError as e:  # a callback was called while a fatal error was being raised
            if isinstance(e.__cause__, KafkaException):
                raise self.explain(e.__cause__, what) from e
            raise

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Keep the first failure; of messages that are too large, the largest."""
        if error is None:
            return
        failure = DeliveryFailure.of(error, message)
        first = self._failure
        are_large = first is not None and first.is_too_large and failure.is_too_large
        if first is None or (are_large and len(failure.value) > len(first.value)):
            self._failure = failure

    def _on_error(self, error: KafkaError) -> None:
        self._cause = error.str()
