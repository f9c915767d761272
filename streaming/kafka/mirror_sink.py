"""The sink of the mirror: messages and the offset after them, in one Kafka transaction.

A micro-batch is one or more transactions, each with its own position, because a transaction must
not exceed Kafka's timeout. What Kafka has committed is authoritative; no state is kept locally.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

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
from streaming.kafka.oversized import REFUSED, SizeCheck, too_large
from streaming.kafka.position import Position, encode_position
from streaming.kafka.producer import DeliveryError, DeliveryFailure, TransactionalProducer
from streaming.kafka.records import LogFile, Record, RecordReader, Route
from streaming.kafka.routes import Router
from streaming.sinks.ordered_sink import (
    BatchSink,
    SinkCounts,
    StoppedError,
    in_log_order,
    take_following,
)

_log = logging.getLogger(__name__)

_RECONNECT_SECONDS = 1.0
_FAILURES_MAX = 2  # consecutive failures at the same offset
_TIMEOUT_PART = 4  # a transaction is committed after this fraction (1/4) of its timeout
CHANGED_HINT = (
    "mirrored messages cannot be taken back; to continue, set the position: --force-position with "
    "--from-offset or --from-time"
)


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """How a mirror writes; sizes in bytes."""

    name: str
    position_topic: str
    batch_bytes: int
    transaction_bytes: int
    fail_on_data_loss: bool
    wait_seconds: float  # how long to wait for an unavailable Kafka
    is_clean: Callable[[], bool]  # whether the log was closed cleanly


@dataclass(frozen=True, slots=True)
class MirrorLink:
    """What a mirror writes through; ``connect`` creates a producer and reads the position."""

    connect: Callable[[], tuple[TransactionalProducer, Position | None]]
    router: Router
    reader: RecordReader
    sizes: SizeCheck
    stopping: threading.Event  # ends every wait for Kafka


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
        position = start.position
        super().__init__(position.commit_log_offset)
        self._producer, self._committed = start.producer, start.committed
        self.position = position
        self._may_be = position  # what Kafka holds if the last failed commit took effect
        self.lost: list[Damage] = []
        self.counts = SinkCounts(durable_to=position.commit_log_offset)
        self._waiting: list[Stretch] = []  # requests and skipped gaps that are not in Kafka yet
        self._begun_at = position.commit_log_offset
        self._log = log
        self._link = link
        self._settings = settings
        self._sent_to = position.commit_log_offset  # in the open transaction
        self._last: int | None = None  # offset of the last record before that
        self._messages = self._oversized = 0
        self._lost_to = position.lost_to

    def stop_waiting(self) -> None:
        """Stop waiting for an unavailable Kafka."""
        self._link.stopping.set()

    def _end(self) -> None:
        """Close the producer and the router."""
        self._producer.close()
        self._link.router.close()

    def _put(self, requests: list[DispatchRequests], lost: list[Damage]) -> None:
        """Write what has been put since the last write, once it fills a transaction."""
        self._waiting += in_log_order([*requests, *lost])
        for gap in lost:
            self.lost.append(gap)
            self._lost_to = gap.end
        if self._at - self.position.commit_log_offset >= self._settings.transaction_bytes:
            self._write()

    def _finish(self) -> None:
        self._write()
        if self._at > self._begun_at:
            self.counts = replace(self.counts, batches=self.counts.batches + 1)

    def _write(self) -> None:
        """Write all that waits, and commit it; resume after an outage of Kafka."""
        failures, failed_at = 0, -1
        while (at := self.position.commit_log_offset) < self._at:
            requests, _, _ = take_following(self._waiting, at, lambda gap: gap)
            try:
                self._fit_batches(requests)
                self._transact(requests, self._at)
            except KafkaIOError as e:
                failures = failures + 1 if failed_at == self.position.commit_log_offset else 1
                failed_at = self.position.commit_log_offset
                if failures > _FAILURES_MAX:  # the cause is not an outage
                    raise
                self._reconnect(e)
        self._waiting = []

    def _reconnect(self, failure: KafkaIOError) -> None:
        """Resume from what Kafka has committed. Raises the failure after ``wait_seconds``.

        Raises StoppedError if a stop ends the wait first. A new producer and the position in Kafka
        do not depend on what the failed producer knows.
        """
        _log.warning("%s (retrying for %.0f s)", failure, self._settings.wait_seconds)
        deadline, stopping = time.monotonic() + self._settings.wait_seconds, self._link.stopping
        while time.monotonic() < deadline and not stopping.is_set():
            try:
                self._renew_producer()
            except KafkaIOError:
                stopping.wait(_RECONNECT_SECONDS)
                continue
            return
        if stopping.is_set():
            raise StoppedError(f"stopped while Kafka was unavailable: {failure}") from failure
        raise failure

    def _renew_producer(self) -> None:
        """Replace the producer, and read what Kafka has committed."""
        self._producer.close()
        self._producer, found = self._link.connect()
        if found is not None and found == self._may_be:
            self._count(found)
        elif found != self._committed:
            offset = found.commit_log_offset if found is not None else None
            raise MirrorInUseError(
                f"another mirror of the name {self._settings.name!r} has written: its position "
                f"is offset {offset}"
            )

    def _fit_batches(self, requests: list[DispatchRequests]) -> None:
        """Replace the producer if its batches are larger than a topic of the requests accepts."""
        for part in requests:
            with suppress(StoreError):  # raised again in its turn
                self._routes(part)
        if self._producer.batch_bytes > self._link.sizes.batch_bytes(self._settings.batch_bytes):
            self._renew_producer()

    def _begin(self) -> None:
        """Raise DamageError if the log no longer holds what was mirrored last."""
        self._log.refresh()
        check_position(self._log, self.position)
        self._begun_at = self._at

    def _skippable(self, damage: Damage) -> Damage | None:
        last = self._log.last_file()
        is_last = last is not None and damage.begin >= last.base
        may_skip = not is_last or self._settings.is_clean()
        return damage if may_skip and not self._settings.fail_on_data_loss else None

    def _transact(self, requests: list[DispatchRequests], end: int) -> None:
        """Write requests; commit whenever a transaction is full, and at the end.

        If a message that Kafka refused has been set aside, return: they are to be written again.
        """
        began = time.monotonic()
        try:
            for part in requests:
                if not self._producer.is_open:
                    self._producer.begin()
                for record in self._outgoing(part):
                    self._producer.send(record)
                    self._messages += 1
                last = int(part.commit_log_offset[-1]) if len(part) else self._last
                self._sent_to, self._last = part.end, last
                if self._is_full():
                    self._commit()
            if self.position.commit_log_offset < end:
                self._sent_to = end
                self._commit()
        except DeliveryError as e:
            offset, error = self._explain(e.failure, requests)
            if not e.failure.is_too_large or not self._link.sizes.set_aside(
                e.failure.topic, offset, len(e.failure.value)
            ):
                self._give_up(error)
                raise error from e
            self._start_over()
            self._renew_producer()
        except BaseException as e:
            self._give_up(e)
            raise
        finally:
            spent = self.counts.apply_seconds + time.monotonic() - began
            self.counts = replace(self.counts, apply_seconds=spent)

    def _is_full(self) -> bool:
        producer = self._producer
        is_late = producer.seconds_open > producer.timeout_seconds / _TIMEOUT_PART
        sent = self._sent_to - self.position.commit_log_offset
        return is_late or sent >= self._settings.transaction_bytes

    def _commit(self) -> None:
        """Write the position after what has been sent, and commit."""
        producer, settings = self._producer, self._settings
        if not producer.is_open:
            producer.begin()
        record = self.position.last_record
        if self._last is not None:
            record = read_fingerprint(self._log, self._last)
        self._may_be = position = replace(
            self.position,
            commit_log_offset=self._sent_to,
            last_record=record,
            lost_to=self._lost_to,
            messages=self.position.messages + self._messages,
            oversized=self.position.oversized + self._oversized,
        )
        producer.send_position(
            settings.position_topic, settings.name.encode(), encode_position(position)
        )
        producer.flush()
        producer.commit()
        self._count(position)

    def _count(self, position: Position) -> None:
        """Update counts and position to what has been committed."""
        last = position.last_record
        self.counts = replace(
            self.counts,
            messages=self.counts.messages + position.messages - self.position.messages,
            bytes=self.counts.bytes + position.commit_log_offset - self.position.commit_log_offset,
            durable_to=position.commit_log_offset,
            last_store_timestamp=last.store_timestamp if last is not None else 0,
        )
        self.position, self._committed = position, position
        self._start_over()

    def _start_over(self) -> None:
        """Forget what was sent since the last commit."""
        self._sent_to, self._last = self.position.commit_log_offset, None
        self._messages = self._oversized = 0

    def _outgoing(self, part: DispatchRequests) -> Iterator[Record]:
        """Yield the records of a stretch that are to be sent, in log order.

        If one of them cannot be sent, commit what precedes it, then raise why.
        """
        done: int | None = None
        try:
            file = self._file_of(part)
            for record in self._link.reader.read(part, self._routes(part), file):
                fitting = self._link.sizes.fit(record, file.path)
                if fitting is not None:
                    yield fitting
                self._oversized += fitting is not record
                done = record.commit_log_offset
        except StoreError:
            before = None if done is None else read_fingerprint(self._log, done)
            if before is not None:
                self._sent_to, self._last = before.offset + before.size, before.offset
            if self._sent_to > self.position.commit_log_offset:
                self._commit()
            raise

    def _file_of(self, part: DispatchRequests) -> LogFile:
        file = self._log.find(part.begin)
        if file is None:
            path = self._log.directories[0]
            reason = "this part of the log has expired"
            raise LostDataError(path, part.begin, part.end, reason=reason)
        return LogFile(file.view(), file.base, str(file.path))

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

    def _explain(
        self, failure: DeliveryFailure, requests: list[DispatchRequests]
    ) -> tuple[int, StoreError]:
        """Return the offset of a message that was not delivered, and why.

        The offset is -1 if the cause is not the message, or if it is the position.
        """
        target = f"to partition {failure.partition} of topic {failure.topic}"
        error = self._producer.explain(failure.error, f"writing {target}")
        offset = -1 if isinstance(error, KafkaIOError) else self._find(failure, requests)
        if offset < 0:
            return offset, error
        path = self._log.path_of(offset)
        if failure.is_too_large:
            why = f"its body takes {len(failure.value)} bytes before compression, {REFUSED}"
            return offset, too_large(offset, path, failure.topic, why)
        what = f"writing the message at offset {offset} of {path} {target}"
        return offset, self._producer.explain(failure.error, what)

    def _find(self, failure: DeliveryFailure, requests: list[DispatchRequests]) -> int:
        for part in requests:
            file, routes = self._file_of(part), self._routes(part)
            for record in self._link.reader.read(part, routes, file):
                if failure.is_of(record):
                    return record.commit_log_offset
        return -1

    def _give_up(self, cause: BaseException) -> None:
        """Abort the open transaction; if that fails, the next producer of the name ends it."""
        self._start_over()
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
