"""The sink of the mirror: messages and the offset after them, in one Kafka transaction.

A micro-batch is one or more transactions, each with its own position, because a transaction must
not exceed Kafka's timeout. What Kafka has committed is authoritative; no state is kept locally.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from kafka import errors

from checkpoints.recovery.fingerprint import find_log_change, read_fingerprint
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage, Stretch
from store.errors import (
    ConfigError,
    DamageError,
    KafkaIOError,
    LostDataError,
    MirrorInUseError,
    StoreError,
)
from streaming.kafka.position import Position, encode_position
from streaming.kafka.producer import (
    BATCH_HEADER_SIZE,
    REQUEST_OVERHEAD,
    BatchRefusedError,
    TransactionalProducer,
)
from streaming.kafka.record_batches import Encoder, RecordBatch, Route
from streaming.kafka.routes import Router
from streaming.sinks.ordered_sink import BatchSink, SinkCounts, StoppedError, take_following

_log = logging.getLogger(__name__)

_ENCODERS = 2
_RECONNECT_SECONDS = 1.0
_FAILURES_MAX = 2  # consecutive failures at the same offset
_TIMEOUT_PART = 4  # a transaction is committed after this fraction (1/4) of its timeout
CHANGED_HINT = (
    "mirrored messages cannot be taken back; to continue, set the position: --force-position with "
    "--from-offset or --from-time"
)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """How a mirror writes; sizes in bytes."""

    name: str
    position_topic: str
    batch_bytes: int
    request_bytes_max: int
    transaction_bytes: int
    fail_on_data_loss: bool
    wait_seconds: float  # how long to wait for an unavailable Kafka
    is_clean: Callable[[], bool]  # whether the log was closed cleanly


@dataclass(frozen=True, slots=True)
class MirrorLink:
    """What a mirror writes through; ``connect`` creates a producer and reads the position."""

    connect: Callable[[], tuple[TransactionalProducer, Position | None]]
    router: Router
    encoder: Encoder


@dataclass(frozen=True, slots=True)
class MirrorStart:
    """Where a mirror starts: its producer, the position to resume from, and Kafka's own."""

    producer: TransactionalProducer
    position: Position
    committed: Position | None  # None: Kafka holds none under this name


class MirrorSink(BatchSink):
    """Applies micro-batches; each is committed when it has been applied."""

    name = "mirror"

    def __init__(
        self,
        log: CommitLog,
        link: MirrorLink,
        settings: MirrorSettings,
        start: MirrorStart,
    ) -> None:
        """Resume from the position of ``start``."""
        super().__init__()
        position = start.position
        self._producer, self._committed = start.producer, start.committed
        self.position = position
        self._may_be = position  # what Kafka holds if the last failed commit took effect
        self.lost: list[Damage] = []
        self.counts = SinkCounts(reput_from_offset=position.commit_log_offset)
        self._log = log
        self._link = link
        self._settings = settings
        self._closing = threading.Event()
        self._bytes = 0  # of log in the open transaction
        self._messages = 0
        self._lost_to = position.lost_to
        self._pool = ThreadPoolExecutor(_ENCODERS, "reput-mirror")

    def stop_waiting(self) -> None:
        """Stop waiting for an unavailable Kafka."""
        self._closing.set()

    def _end(self) -> None:
        """Close the producer and the router."""
        self._pool.shutdown()
        self._producer.close()
        self._link.router.close()

    def _apply(self, stretches: list[Stretch]) -> None:
        self._check_log()
        failures, failed_at = 0, -1
        while True:
            at = self.position.commit_log_offset
            requests, lost, damage = take_following(stretches, at, self._may_skip)
            end = max([at, *(part.end for part in requests), *(gap.end for gap in lost)])
            for gap in lost:
                if gap.end > self._lost_to:  # not yet counted by a failed attempt
                    self.lost.append(gap)
                    self._lost_to = gap.end
            if end == at:
                break
            try:
                self._transact(requests, end)
            except KafkaIOError as e:
                failures = failures + 1 if failed_at == self.position.commit_log_offset else 1
                failed_at = self.position.commit_log_offset
                if failures > _FAILURES_MAX:  # the cause is not an outage
                    raise
                self._reconnect(e)
                continue
            self.counts = replace(self.counts, batches=self.counts.batches + 1)
            break
        if damage is not None:
            raise damage.error()

    def _reconnect(self, failure: KafkaIOError) -> None:
        """Resume from what Kafka has committed. Raises the failure after ``wait_seconds``.

        Raises StoppedError if a stop ends the wait first.

        kafka-python does not always reconnect to a restarted broker: it may lose a request in
        flight. A new producer and the position in Kafka do not depend on its state.
        """
        _log.warning("%s (retrying for %.0f s)", failure, self._settings.wait_seconds)
        deadline = time.monotonic() + self._settings.wait_seconds
        self._producer.close()
        while time.monotonic() < deadline and not self._closing.is_set():
            try:
                self._producer, found = self._link.connect()
            except KafkaIOError:
                self._closing.wait(_RECONNECT_SECONDS)
                continue
            if found is not None and found == self._may_be:
                self._count(found)
            elif found != self._committed:
                offset = found.commit_log_offset if found is not None else None
                raise MirrorInUseError(
                    f"another mirror of the name {self._settings.name!r} has written: its position "
                    f"is offset {offset}"
                )
            return
        if self._closing.is_set() and time.monotonic() < deadline:
            raise StoppedError(f"stopped while Kafka was unavailable: {failure}") from failure
        raise failure

    def _check_log(self) -> None:
        """Raise DamageError if the log no longer holds what was mirrored last."""
        self._log.refresh()
        check_position(self._log, self.position)

    def _may_skip(self, offset: int) -> bool:
        last = self._log.last_file()
        is_last = last is not None and offset >= last.base
        return not self._settings.fail_on_data_loss and (not is_last or self._settings.is_clean())

    def _transact(self, requests: list[DispatchRequests], end: int) -> None:
        """Write requests; commit whenever a transaction is full, and at the end."""
        began = time.monotonic()
        producer, last = self._producer, None
        try:
            for part, made in self._encoded(requests):
                try:
                    batches = made.result()
                    self._check_sizes(batches)
                except StoreError:
                    if producer.is_open:  # what precedes it is good
                        self._commit(part.begin, last)
                    raise
                if not producer.is_open:
                    producer.begin()
                producer.send(batches)
                self._bytes += part.end - part.begin
                self._messages += sum(batch.count for batch in batches)
                last = part if len(part) else last
                if self._is_full():
                    self._commit(part.end, last)
            if self.position.commit_log_offset < end:
                self._commit(end, last)
        except BatchRefusedError as e:
            refused = self._refused(e)
            self._give_up(refused)
            raise refused from e
        except BaseException as e:
            self._give_up(e)
            raise
        finally:
            spent = self.counts.apply_seconds + time.monotonic() - began
            self.counts = replace(self.counts, apply_seconds=spent)

    def _is_full(self) -> bool:
        producer = self._producer
        is_late = producer.seconds_open > producer.timeout_seconds / _TIMEOUT_PART
        return is_late or self._bytes >= self._settings.transaction_bytes

    def _commit(self, end: int, last: DispatchRequests | None) -> None:
        """Write the position and commit; ``last`` holds the last record before it."""
        producer, settings = self._producer, self._settings
        if not producer.is_open:
            producer.begin()
        producer.flush()
        record = self.position.last_record
        if last is not None:
            record = read_fingerprint(self._log, int(last.commit_log_offset[-1]))
        self._may_be = position = replace(
            self.position,
            commit_log_offset=end,
            last_record=record,
            lost_to=self._lost_to,
            messages=self.position.messages + self._messages,
        )
        producer.send_record(
            settings.position_topic, settings.name.encode(), encode_position(position)
        )
        producer.commit()
        self._count(position)

    def _count(self, position: Position) -> None:
        """Update counts and position to what has been committed."""
        last = position.last_record
        self.counts = replace(
            self.counts,
            messages=self.counts.messages + position.messages - self.position.messages,
            bytes=self.counts.bytes + position.commit_log_offset - self.position.commit_log_offset,
            reput_from_offset=position.commit_log_offset,
            last_store_timestamp=last.store_timestamp if last is not None else 0,
        )
        self.position, self._committed = position, position
        self._bytes = self._messages = 0

    def _encoded(
        self, requests: list[DispatchRequests]
    ) -> Iterator[tuple[DispatchRequests, Future[list[RecordBatch]]]]:
        """Encode ahead of the writes, in order; a result raises its failure."""
        ahead: deque[tuple[DispatchRequests, Future[list[RecordBatch]]]] = deque()
        for part in requests:
            ahead.append((part, self._encode(part)))
            if len(ahead) > _ENCODERS:
                yield ahead.popleft()
        yield from ahead

    def _encode(self, part: DispatchRequests) -> Future[list[RecordBatch]]:
        failed: Future[list[RecordBatch]] = Future()
        try:
            routes = self._routes(part)
            file = self._log.find(part.begin)
            if file is None:
                path, end = self._log.directories[0], part.end
                reason = "this part of the log has expired"
                raise LostDataError(path, part.begin, end, reason=reason)
            view = file.view()
        except StoreError as e:
            failed.set_exception(e)
            return failed
        limits = [self._link.router.message_bytes_max[r.kafka_topic] for r in routes.values()]
        limits.append(self._settings.request_bytes_max - REQUEST_OVERHEAD)
        encoder = self._link.encoder
        most = min([encoder.batch_bytes, *(limit - BATCH_HEADER_SIZE for limit in limits)])
        encode = replace(encoder, batch_bytes=most).encode
        return self._pool.submit(encode, part, routes, (view, file.base, str(file.path)))

    def _routes(self, part: DispatchRequests) -> dict[str, Route]:
        """Return the routes of a stretch's topics. Raises ConfigError, which names the offset."""
        greatest: dict[str, int] = {}
        for topic, queue_id in zip(part.topics, part.queue_ids.tolist(), strict=True):
            greatest[topic] = max(greatest.get(topic, 0), queue_id)
        found = {}
        for topic, queue_id in greatest.items():
            try:
                route = self._link.router.route(topic, queue_id)
            except ConfigError as e:
                path = self._log.path_of(part.begin)
                raise ConfigError(f"{e} (from offset {part.begin} of {path} on)") from e
            if route is not None:
                found[topic] = route
        return found

    def _check_sizes(self, batches: list[RecordBatch]) -> None:
        """Raise ConfigError for a message that Kafka or its client would reject as too large."""
        for batch in batches:
            size = BATCH_HEADER_SIZE + len(batch.records)
            limit = self._link.router.message_bytes_max.get(batch.topic, size)
            if size > limit:
                raise self._too_large(batch, f"max.message.bytes of the topic is {limit}")
            if size + REQUEST_OVERHEAD > self._settings.request_bytes_max:
                limit = self._settings.request_bytes_max
                raise self._too_large(batch, f"max.request.size of the client is {limit}")

    def _too_large(self, batch: RecordBatch, why: str) -> ConfigError:
        offset = batch.largest_offset
        size = BATCH_HEADER_SIZE + len(batch.records)
        return ConfigError(
            f"the message at offset {offset} of {self._log.path_of(offset)} is too large for "
            f"topic {batch.topic}: it takes {size} bytes ({batch.largest_size} before "
            f"compression), {why}"
        )

    def _refused(self, refused: BatchRefusedError) -> StoreError:
        batch = refused.batch
        if isinstance(refused.cause, _TOO_LARGE):
            return self._too_large(batch, "which exceeds Kafka's limit (message.max.bytes)")
        what = (
            f"writing {batch.count} messages from offset {batch.first_offset} of "
            f"{self._log.path_of(batch.first_offset)} on to partition {batch.partition} of topic "
            f"{batch.topic}"
        )
        return self._producer.explain(refused.cause, what)

    def _give_up(self, cause: BaseException) -> None:
        """Abort the open transaction; if that fails, the next producer of the name ends it."""
        self._bytes, self._messages = 0, 0
        if not isinstance(cause, KafkaIOError):
            with suppress(StoreError):
                self._producer.abort()


def check_position(log: CommitLog, position: Position) -> None:
    """Raise DamageError if the log no longer holds the record mirrored last.

    If the log files up to there have expired, the check is inconclusive and passes.
    """
    last = position.last_record
    if last is None:
        return
    is_lost = position.commit_log_offset == position.lost_to
    end = None if is_lost else position.commit_log_offset
    why = find_log_change(log, last, end, verb="mirrored")
    if why:
        raise DamageError(log.path_of(last.offset), last.offset, why, CHANGED_HINT)
