"""One transactional producer that takes record batches whole.

kafka-python's ``send`` takes one message and writes its record in Python: some 27,000 a second on
the machine where ``python -m bench mirror`` was measured first. Here the records are ready, so each
batch goes into the producer's own queue as if ``send`` had filled it: order, numbers, retries,
fencing and transactions are kafka-python's. This is the one module that knows what is inside
``KafkaProducer``; the release is pinned for it, and ``check_inside`` says at the start if another
one is there.

Every wait is bounded. A batch that was not acknowledged in time leaves kafka-python's transaction
as it is, and a commit would go through without it: so each one is asked for its outcome first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaProducer, errors
from kafka import __version__ as kafka_version
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import TransactionManager
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from store.errors import ConfigError, KafkaIOError, StoreError
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import ClientOptions
from streaming.kafka.record_batches import CODECS, RecordBatch

BATCH_HEADER_SIZE = DefaultRecordBatchBuilder.HEADER_STRUCT.size
_MAGIC = 2
# A request holds more than its batches: names, ids, lengths.
REQUEST_OVERHEAD = 1024
_CLOSE_SECONDS = 5.0
_INSIDE: tuple[tuple[type, tuple[str, ...]], ...] = (
    (ProducerBatch, ("record_count",)),
    (Sender, ("wakeup",)),
    (TransactionManager, ("begin_commit", "begin_abort", "maybe_add_partition_to_transaction")),
    (DefaultRecordBatchBuilder, ("_maybe_compress", "write_header", "build")),
    (MemoryRecordsBuilder, ("_builder", "_next_offset", "close")),
)


def check_inside() -> None:
    """Raise ConfigError if the installed kafka-python is not made as this module expects."""
    for kind, names in _INSIDE:
        for name in names:
            if not hasattr(kind, name):
                raise ConfigError(
                    f"kafka-python {kafka_version} has no {kind.__name__}.{name}: install the "
                    "release that requirements.lock names"
                )


class _Builder(DefaultRecordBatchBuilder):  # type: ignore[misc]  # published without types
    """A batch whose records are written and compressed: what it lacks is its header."""

    def __init__(self, batch: RecordBatch, codec: int) -> None:
        super().__init__(
            magic=_MAGIC,
            compression_type=codec,
            is_transactional=False,  # set with the producer's state, when it is sent
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=0,
        )
        self._buffer += batch.records
        self._first_timestamp = batch.base_timestamp
        self._max_timestamp = batch.max_timestamp
        self._last_offset = batch.count - 1
        self._num_records = batch.count
        self._is_compressed = batch.is_compressed

    def append(self, *_args: Any, **_more: Any) -> None:
        """Take no further record."""

    def _maybe_compress(self) -> bool:
        return self._is_compressed


class _Batch(ProducerBatch):  # type: ignore[misc]  # published without types
    """A batch in the producer's queue. It is never split: nobody would hear of its parts."""

    def __init__(self, batch: RecordBatch, codec: int) -> None:
        records = MemoryRecordsBuilder(_MAGIC, codec, 0, offset=batch.count)
        records._builder = _Builder(batch, codec)
        super().__init__(TopicPartition(batch.topic, batch.partition), records)
        self.source = batch

    @property
    def record_count(self) -> int:
        """Return how many records there are; 1 while the sender asks if it could be split."""
        count: int = self.records.next_offset()
        return count if self.final_state is not None else 1

    def error(self) -> BaseException | None:
        """Return why it was not written; to be asked when it is done."""
        exceptions = self.produce_future.value[2]
        return None if exceptions is None else exceptions(0)


class BatchRefusedError(Exception):
    """Kafka did not take a batch; ``cause`` is kafka-python's error."""

    def __init__(self, batch: RecordBatch, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.batch = batch
        self.cause = cause


class TransactionalProducer:
    """A producer under a transactional id; being made ends what another one left open.

    ``key_values`` are single records, such as the position: they are written last.
    Raises ConfigError, KafkaIOError, MirrorInUseError.
    """

    def __init__(self, options: ClientOptions, transactional_id: str, codec: str) -> None:
        check_inside()
        self._options = options
        self._codec = CODECS[codec][0]
        self._wait_seconds = options.get("delivery_timeout_ms") / 1000
        self._timeout_seconds: float = options.get("transaction_timeout_ms") / 1000
        self._began = 0.0
        self._pending: list[_Batch] = []
        self.is_open = False
        arguments = options.of(
            KafkaProducer, transactional_id=transactional_id, compression_type=None
        )
        self._producer = connect(options, lambda: KafkaProducer(**arguments))
        try:
            self._producer.init_transactions()
        except errors.KafkaError as e:
            self.close()
            raise as_store_error(e, options, "beginning to write") from e

    @property
    def seconds_open(self) -> float:
        """How long the transaction has been open, in seconds."""
        return time.monotonic() - self._began if self.is_open else 0.0

    @property
    def timeout_seconds(self) -> float:
        """After how long Kafka gives a transaction up."""
        return self._timeout_seconds

    def begin(self) -> None:
        """Begin a transaction."""
        self._try(self._producer.begin_transaction, "beginning a transaction")
        self._began, self.is_open = time.monotonic(), True

    def send(self, batches: Iterable[RecordBatch]) -> None:
        """Queue batches, in this order a partition; their topics exist."""
        queue, manager = self._producer._accumulator, self._producer._transaction_manager
        for source in batches:
            self._producer.partitions_for(source.topic)
            batch = _Batch(source, self._codec)
            partition = batch.topic_partition
            self._try(lambda p=partition: manager.maybe_add_partition_to_transaction(p), "writing")
            with queue._tp_lock(partition):
                queue._batches[partition].append(batch)
                queue._incomplete.add(batch)
            self._pending.append(batch)
        self._producer._sender.wakeup()

    def flush(self) -> None:
        """Wait until Kafka has all batches of the transaction.

        Raises BatchRefusedError, KafkaIOError.
        """
        deadline = time.monotonic() + self._wait_seconds
        for batch in self._pending:
            if not batch.produce_future.wait(max(deadline - time.monotonic(), 0)):
                raise KafkaIOError(
                    f"Kafka at {self._options} did not take what was written within "
                    f"{self._wait_seconds:.0f} s (delivery.timeout.ms)"
                )
            cause = batch.error()
            if cause is not None:
                raise BatchRefusedError(batch.source, cause)
        self._pending.clear()

    def send_record(self, topic: str, key: bytes, value: bytes) -> None:
        """Write one record and wait for it."""

        def send() -> None:
            self._producer.send(topic, value, key).get(self._wait_seconds)

        self._try(send, f"writing to {topic}")

    def commit(self) -> None:
        """Commit; returns when it has been, within bounds.

        Where this raises, it may have been committed all the same: read the position again.
        """
        self._end(self._producer._transaction_manager.begin_commit, "committing")

    def abort(self) -> None:
        """Abort, as far as that is possible: what is left open is ended by the next producer."""
        self._pending.clear()
        if self.is_open:
            self._end(self._producer._transaction_manager.begin_abort, "aborting")

    def close(self) -> None:
        """Give it up within bounds."""
        try:
            self._producer.close(timeout=_CLOSE_SECONDS)
        except errors.KafkaError:
            pass  # what was not committed is aborted by whoever comes next
        finally:
            if self._producer._sender.is_alive():
                self._producer._sender.force_close()

    def explain(self, error: BaseException, what: str) -> StoreError:
        """Return an error of a transaction as ours."""
        found = as_store_error(error, self._options, what)
        if self.seconds_open > self._timeout_seconds:
            return KafkaIOError(
                f"{what}: the transaction took {self.seconds_open:.0f} s, longer than "
                f"transaction.timeout.ms ({self._timeout_seconds:.0f} s) allows: {found}"
            )
        return found

    def _end(self, begin: Any, what: str) -> None:
        def end() -> None:
            result = begin()
            self._producer._sender.wakeup()
            if not result.wait(timeout_ms=self._wait_seconds * 1000):
                raise errors.KafkaTimeoutError(f"no answer in {self._wait_seconds:.0f} s")

        self._try(end, what)
        self.is_open = False

    def _try(self, do: Any, what: str) -> None:
        try:
            do()
        except (errors.KafkaError, ValueError) as e:
            raise self.explain(e, what) from e
