"""Arrivals to Kafka: after a batch is durable, one small event for each queue it appended to.

The broker's ``NotifyMessageArrivingListener`` for consumers elsewhere. An event is JSON::

    {"topic": "T", "queue_id": 3, "max_offset": 17, "store_timestamp": 1700000000000}

``max_offset`` is the end of the queue, up to which a consumer can pull, as ``reput topics`` shows
it, and ``store_timestamp`` the store time of the queue's newest message in ms. A queue that dropped
all messages of a batch has no event. The key is ``T/3``, so that a compacted topic keeps the newest
event of each queue.

Kafka never blocks the dispatch: it only puts events into a bounded table, one per queue, where a
newer event replaces an older one. A thread sends them. An event stays in the table until Kafka has
accepted it, unless a newer one replaces it; an event that does not fit is dropped and counted.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from kafka import KafkaProducer

from store.errors import StoreError
from store.layout import CQ_UNIT_SIZE
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import ClientOptions
from streaming.kafka.topic_rules import check_kafka_name
from streaming.sinks.dispatch_sink import DurableBatch

_log = logging.getLogger(__name__)

ARRIVALS_TOPIC = "reput-arrivals"
QUEUES_MAX = 100_000
CLOSE_SECONDS = 5.0
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 0.5, 10.0
_LOG_SECONDS = 60.0
# Short, to detect an unavailable Kafka soon; options that the user sets take precedence.
_DEFAULTS: Mapping[str, Any] = {
    "delivery.timeout.ms": 10_000,
    "request.timeout.ms": 5_000,
    "max.block.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,
}

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The event of a queue with messages up to ``max_offset`` (exclusive); its time is in ms."""

    topic: str
    queue_id: int
    max_offset: int
    store_timestamp: int

    def encode(self) -> bytes:
        """Encode as JSON."""
        names = ("topic", "queue_id", "max_offset", "store_timestamp")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


@dataclass(frozen=True, slots=True)
class ArrivalCounts:
    """Events by outcome; ``coalesced`` ones were superseded before Kafka accepted them.

    ``waiting`` ones are in the table, those in flight included.
    """

    sent: int = 0
    coalesced: int = 0
    dropped: int = 0
    failures: int = 0  # failed attempts to connect or to send
    waiting: int = 0


class KafkaArrivals:
    """An arrival listener that notifies a Kafka topic; close it after the dispatch.

    Raises ConfigError for invalid addresses, options or topic name, but nothing if Kafka is
    unreachable.
    """

    def __init__(
        self,
        bootstrap: ClientOptions,
        topic: str,
        *,
        queues_max: int = QUEUES_MAX,
        make_producer: Callable[..., Any] = KafkaProducer,
    ) -> None:
        check_kafka_name(topic, "arrivals")
        self._options = replace(bootstrap, settings={**_DEFAULTS, **bootstrap.settings})
        self._topic = topic
        self._queues_max = queues_max
        self._make_producer = make_producer
        self._changed = threading.Condition()
        self._waiting: dict[Queue, Arrival] = {}
        self._in_flight: dict[Queue, Arrival] = {}  # a copy of what the table held
        self._counts = ArrivalCounts()
        self._closing = False
        self._last_logged = -_LOG_SECONDS
        self._thread = threading.Thread(target=self._run, name="reput-arrivals", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> ArrivalCounts:
        """The events so far, by outcome."""
        with self._changed:
            return replace(self._counts, waiting=len(self._waiting))

    def __call__(self, batch: DurableBatch) -> None:
        """Enqueue the arrivals of a batch; does not block and raises nothing."""
        try:
            arrivals = arrivals_of(batch)
            with self._changed:
                if self._closing:
                    self._count(dropped=len(arrivals))
                    return
                for arrival in arrivals:
                    self._put(arrival)
                self._changed.notify()
        except Exception:  # noqa: BLE001 - a failure here must not stop the dispatch
            _log.exception("arrivals were not enqueued")

    def close(self, seconds: float = CLOSE_SECONDS) -> ArrivalCounts:
        """Send waiting events within ``seconds``; drop the rest and return the final counts.

        An event in flight that Kafka has not acknowledged by then counts as dropped.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            self._count(dropped=len(self._waiting), coalesced=self._superseded_in_flight())
            self._waiting, self._in_flight = {}, {}
            return self._counts

    def _count(self, **more: int) -> None:
        self._counts = replace(
            self._counts, **{name: getattr(self._counts, name) + n for name, n in more.items()}
        )

    def _put(self, arrival: Arrival) -> None:
        """Put an event into the table, in place of an older one of its queue."""
        queue = arrival.topic, arrival.queue_id
        older = self._waiting.get(queue)
        if older is None and len(self._waiting) >= self._queues_max:
            self._count(dropped=1)
            return
        if older is not None and self._in_flight.get(queue) is not older:
            self._count(coalesced=1)  # one in flight is counted by its outcome
        self._waiting[queue] = arrival

    def _superseded_in_flight(self) -> int:
        """Return the number of events in flight that a newer one has replaced in the table."""
        return sum(self._waiting.get(q) is not event for q, event in self._in_flight.items())

    def _run(self) -> None:
        producer, pause = None, _RETRY_SECONDS
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    break
            try:
                if producer is None:
                    producer = self._connect()
                self._send(producer)
                pause = _RETRY_SECONDS
            except Exception as e:  # noqa: BLE001 - the thread survives every failure of Kafka
                self._report_failure(e)
                _close(producer)
                producer = None  # a new one reconnects more reliably
                with self._changed:
                    if self._closing:
                        break
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, _RETRY_SECONDS_MAX)
        _close(producer)

    def _connect(self) -> Any:
        arguments = self._options.of(KafkaProducer)
        return connect(self._options, lambda: self._make_producer(**arguments))

    def _send(self, producer: Any) -> None:
        """Send the waiting events and wait for acks; failed ones stay. Raises the failure."""
        with self._changed:
            batch = self._in_flight = dict(self._waiting)
        sent: list[tuple[Arrival, Any]] = []
        failure: Exception | None = None
        for arrival in batch.values():
            future = None
            if failure is None:
                try:
                    key = f"{arrival.topic}/{arrival.queue_id}".encode()
                    future = producer.send(self._topic, arrival.encode(), key)
                except Exception as e:  # noqa: BLE001 - kafka-python raises many kinds
                    failure = e
            sent.append((arrival, future))
        deadline = time.monotonic() + self._options.get("delivery.timeout.ms") / 1000 + 1
        accepted = []
        for arrival, future in sent:
            try:
                if future is not None:
                    future.get(max(deadline - time.monotonic(), 0))
                    accepted.append(arrival)
            except Exception as e:  # noqa: BLE001 - as above
                failure = e
        self._finish(batch, accepted)
        if failure is not None:
            raise failure

    def _finish(self, batch: dict[Queue, Arrival], accepted: list[Arrival]) -> None:
        """Count the outcomes of events in flight; remove the accepted ones from the table."""
        with self._changed:
            if self._in_flight is not batch:
                return  # close has counted them
            for arrival in accepted:
                queue = arrival.topic, arrival.queue_id
                del self._in_flight[queue]
                if self._waiting.get(queue) is arrival:
                    del self._waiting[queue]
            self._count(sent=len(accepted), coalesced=self._superseded_in_flight())
            self._in_flight = {}

    def _report_failure(self, error: Exception) -> None:
        """Count a failure, and log it at most once per ``_LOG_SECONDS``."""
        with self._changed:
            self._count(failures=1)
            counts = replace(self._counts, waiting=len(self._waiting))
        now = time.monotonic()
        if now - self._last_logged < _LOG_SECONDS:
            return
        self._last_logged = now
        found = error
        if not isinstance(error, StoreError):
            found = as_store_error(error, self._options, f"arrivals to topic {self._topic}")
        _log.warning(
            "%s (the dispatch continues; %d events are waiting, %d were dropped)",
            found,
            counts.waiting,
            counts.dropped,
        )


def _close(producer: Any) -> None:
    """Close a producer, if there is one; ignore failures."""
    if producer is not None:
        with suppress(Exception):
            producer.close(timeout=1)


def arrivals_of(batch: DurableBatch) -> list[Arrival]:
    """Return an event for each queue that a batch appended to, multi-dispatch queues included."""
    arrivals: dict[Queue, Arrival] = {}
    for requests in batch.requests:
        rows = np.flatnonzero(requests.is_queued)
        queue = np.concatenate([requests.queue[rows], requests.multi_queue])
        rows = np.concatenate([rows, requests.multi_row])
        keys = list(zip(requests.topics, requests.queue_ids.tolist(), strict=True))
        tails = batch.tails_of(keys)
        newest = np.array([tails[k].max_physic_offset if k in tails else -1 for k in keys])
        is_newest = requests.commit_log_offset[rows] + requests.size[rows] == newest[queue]
        stamps = requests.store_timestamp[rows]
        for at in np.flatnonzero(is_newest).tolist():  # one for each queue, at most
            topic, queue_id = key = keys[queue[at]]
            end = tails[key].end // CQ_UNIT_SIZE
            arrivals[key] = Arrival(topic, queue_id, end, int(stamps[at]))
    return list(arrivals.values())
