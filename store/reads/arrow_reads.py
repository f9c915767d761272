"""The reads of ``MessageStore`` that return Arrow: a queue from a position on, and the log.

Both return a ``pyarrow.RecordBatchReader``, which DuckDB, polars and pandas take as it is. Kernels
fill the columns; batches are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from store.commitlog.commit_log import CommitLog
from store.config import StoreConfig
from store.consumequeue.reader import QueueReader
from store.errors import ConfigError, LostDataError, shown
from store.reads.consistent_reads import ConsistentReads, of_generation
from store.unsupported import CompactionTopics

if TYPE_CHECKING:
    import pyarrow as pa

    from store.reads.message_filter import MessageFilter


class ArrowReads(ConsistentReads):
    """Reads in bulk; ``MessageStore`` opens the files."""

    store_root: Path
    config: StoreConfig
    max_body_bytes: int
    _log: CommitLog
    _compaction: CompactionTopics

    def _queue(self, topic: str, queue_id: int) -> QueueReader | None:
        raise NotImplementedError

    def read_arrow(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.RecordBatchReader:
        """Return the messages of a queue from a position on, as Arrow batches that are read lazily.

        ``columns`` are names of MESSAGE_FIELDS, by default all of them. The reader ends after
        ``max_count`` messages or at the queue's end at the time of the call. Its column
        ``queue_offset`` is the one stored in the message, as in ``get_message``. Raises ConfigError
        for an unknown column, for a queue that does not exist, and for an offset outside the queue,
        UnsupportedFormatError as ``get_message``.
        """
        import pyarrow as pa  # noqa: PLC0415 - heavy

        from store.arrow.schema import MESSAGE_FIELDS, message_schema  # noqa: PLC0415 - heavy

        wanted = tuple(MESSAGE_FIELDS if columns is None else columns)
        schema = message_schema(wanted)
        end = self._end_of_read(topic, queue_id, offset)
        stop = end if max_count is None else min(offset + max_count, end)

        def batches() -> Iterator[pa.RecordBatch]:
            at = offset
            while at < stop:
                batch = self._queue_batch(topic, queue_id, (at, stop), wanted)
                at += batch.num_rows
                yield batch

        return pa.RecordBatchReader.from_batches(schema, batches())

    @of_generation
    def _end_of_read(self, topic: str, queue_id: int, offset: int) -> int:
        self._compaction.refuse(topic)
        queue = self._queue(topic, queue_id)
        if queue is None:
            raise ConfigError(f"{self.output} has no queue {queue_id} of topic {shown(topic)}")
        if not queue.span.min <= offset <= queue.span.max:
            raise ConfigError(
                f"offset {offset} is outside queue {queue_id} of topic {shown(topic)}, which holds "
                f"offsets {queue.span.min} to {queue.span.max}"
            )
        return queue.span.max

    @of_generation
    def _queue_batch(
        self, topic: str, queue_id: int, span: tuple[int, int], wanted: Sequence[str]
    ) -> pa.RecordBatch:
        from store.arrow.batches import BodyLimits  # noqa: PLC0415 - heavy
        from store.arrow.queue_batches import queue_batch  # noqa: PLC0415 - heavy

        queue = self._queue(topic, queue_id)
        at = span[0]
        if queue is None or not queue.span.min <= at < queue.span.max:
            raise LostDataError(
                self.output,
                at,
                span[1],
                reason=f"queue {queue_id} of topic {shown(topic)} no longer holds them",
            )
        return queue_batch(queue, self._log, span, wanted, BodyLimits(self.max_body_bytes))

    def scan(
        self, wanted: MessageFilter | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Return the messages of the log that match, in log order, as Arrow batches read lazily.

        Reads the log alone (``store.reads.message_search``), by default all of it. ``columns`` as
        in ``read_arrow``. Raises ConfigError for an unknown column.
        """
        import pyarrow as pa  # noqa: PLC0415 - heavy

        from store.arrow.schema import MESSAGE_FIELDS, message_schema  # noqa: PLC0415 - heavy
        from store.reads.message_filter import MessageFilter  # noqa: PLC0415 - heavy
        from store.reads.message_search import LogSearch  # noqa: PLC0415 - heavy

        names = tuple(MESSAGE_FIELDS if columns is None else columns)
        search = LogSearch(
            self.store_root,
            self.config,
            MessageFilter() if wanted is None else wanted,
            max_body_bytes=self.max_body_bytes,
        )
        return pa.RecordBatchReader.from_batches(message_schema(names), search.batches(names))
