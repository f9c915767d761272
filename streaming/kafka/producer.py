"""A transactional producer that sends complete record batches.

kafka-python's ``send`` takes one message and encodes its record in Python: about 27,000 per second
on the machine where ``python -m bench mirror`` was first measured. Here the records are already
encoded, so each batch goes into the producer's own queue as if ``send`` had filled it: order,
sequence numbers, retries, fencing and transactions remain kafka-python's. Only this module depends
on the internals of ``KafkaProducer``; the release is pinned for it, and ``check_inside`` reports at
the start if another one is installed.

Every wait is bounded. A batch that was not acknowledged in time does not fail kafka-python's
transaction, and a commit would succeed without it: so the outcome of each batch is checked first.
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
# What a request contains besides its batches: names, ids, lengths.
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
    """Raise ConfigError if the installed kafka-python lacks internals that this module uses."""
    for kind, names in _INSIDE:
        for name in names:
            if not hasattr(kind, name):
                raise ConfigError(
                    f"kafka-python {kafka_version} has no {kind.__name__}.{name}: install the "
                    "release that requirements.lock names"
                )


class _Builder(DefaultRecordBatchBuilder):  # type: ignore[misc]  # published without types
    """Builds a batch whose records are already encoded and compressed; only adds the header."""

    def __init__(self, batch: RecordBatch, codec: int) -> None:
        super().__init__(
            magic=_MAGIC,
            compression_type=codec,
            is_transactional=False,  # set with the producer's state when the batch is sent
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
        """Ignore further records: the batch is complete."""

    def _maybe_compress(self) -> bool:
        return self._is_compressed


class _Batch(ProducerBatch):  # type: ignore[misc]  # published without types
    """A batch in the producer's queue. It is never split: nothing would track its parts."""

    def __init__(self, batch: RecordBatch, codec: int) -> None:
        records = MemoryRecordsBuilder(_MAGIC, codec, 0, offset=batch.count)
        records._builder = _Builder(batch, codec)
        super().__init__(TopicPartition(batch.topic, batch.partition), records)
        self.source = batch

    @property
    def record_count(self) -> int:
        """Return the number of records; 1 while the sender checks if the batch can be split."""
        count: int = self.records.next_offset()
        return count if self.final_state is not None else 1

    def error(self) -> BaseException | None:
        """Return why it was not written; valid once it is done."""
        exceptions = self.produce_future.value[2]
        return None if exceptions is None else exceptions(0)


class BatchRefusedError(Exception):
    """Kafka rejected a batch; ``cause`` is kafka-python's error."""

    def __init__(self, batch: RecordBatch, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.batch = batch
        self.cause = cause


class TransactionalProducer:
    """A producer with a transactional id; creating it ends one left open.

    Single records, such as the position, are written last.
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
            raise as_store_error(e, options, "starting to write") from e

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
        self._began, self.is_open = time.monotonic(), True

    def send(self, batches: Iterable[RecordBatch]) -> None:
        """Queue batches, in this order per partition; their topics must exist."""
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
        """Wait until Kafka has acknowledged all batches of the transaction.

        Raises BatchRefusedError, KafkaIOError.
        """
        deadline = time.monotonic() + self._wait_seconds
        for batch in self._pending:
            if not batch.produce_future.wait(max(deadline - time.monotonic(), 0)):
                raise KafkaIOError(
                    f"Kafka at {self._options} did not acknowledge a batch within "
                    f"{self._wait_seconds:.0f} s (delivery.timeout.ms)"
                )
            cause = batch.error()
            if cause is not None:
                raise BatchRefusedError(batch.source, cause)
        self._pending.clear()

    def send_record(self, topic: str, key: bytes, value: bytes) -> None:
        """Write one record and wait for its acknowledgement."""

        def send() -> None:
            self._producer.send(topic, value, key).get(self._wait_seconds)

        self._try(send, f"writing to {topic}")

    def commit(self) -> None:
        """Commit, and wait for it within bounds.

        If this raises, the transaction may still have been committed: read the position again.
        """
        self._end(self._producer._transaction_manager.begin_commit, "committing")

    def abort(self) -> None:
        """Abort if possible; otherwise the next producer ends the transaction."""
        self._pending.clear()
        if self.is_open:
            self._end(self._producer._transaction_manager.begin_abort, "aborting")

    def close(self) -> None:
        """Close the producer within bounds."""
        try:
            self._producer.close(timeout=_CLOSE_SECONDS)
        except errors.KafkaError:
            pass  # the next producer aborts what was not committed
        finally:
            if self._producer._sender.is_alive():
                self._producer._sender.force_close()

    def explain(self, error: BaseException, what: str) -> StoreError:
        """Return an error of a transaction as a StoreError."""
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
