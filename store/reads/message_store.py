"""MessageStore: a broker's reads on a store, without a broker (format notes §11).

Files are opened read-only and mapped on first use; no JVM is started. Each call sees the current
files, so a store may be read while a broker or a dispatch writes to it. "Not found" is reported by
the broker's own values (-1, None, a status); damage raises DamageError (promise I8).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from store import java
from store.commitlog.commit_log import CommitLog
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.record import Message, limit_bodies, limited
from store.config import StoreConfig, check_shape
from store.consumequeue.names import can_name_directory, list_topics, queue_directory
from store.consumequeue.queue_bounds import DispatchLimit
from store.consumequeue.reader import QueueReader
from store.consumequeue.time_search import Boundary, find_offset
from store.errors import (
    DamageError,
    LostDataError,
    NoQueuesError,
    ProgressDeletedError,
    StoreIOError,
)
from store.index.file import IndexFiles
from store.io.file_system import link_below
from store.io.listing import list_directories
from store.io.user_path import given_path
from store.layout import CONSUME_QUEUE_DIR
from store.output.resolve_config import check_last_record, find_config
from store.reads.arrow_reads import ArrowReads
from store.reads.consistent_reads import of_generation, of_log
from store.reads.get_message import (
    GetMessageResult,
    GetMessageStatus,
    TagFilter,
    get_message,
    parse_tags,
)
from store.reads.message_place import (
    IndexPlace,
    QueuePlace,
    find_in_index,
    find_in_queue,
    why_not_in_queue,
)
from store.reads.pull_request_hold import HeldRead, await_message
from store.reads.query_message import KEY_TYPE, Query, QueryResult, open_index, query_message
from store.rocksdb import require_queue_files
from store.unsupported import CompactionTopics


class MessageStore(ArrowReads):
    """Reads on one store; a context manager. Threads may share it: its reads run one at a time.

    An offset in a queue is a position there, the number of a unit, as in a broker; after a closed
    gap, it is lower than the ``queue_offset`` of the message. Physical offsets count the log's
    bytes; times are ms since the epoch. Every call may raise DamageError, and StoreIOError where a
    file cannot be read. One body may decompress to ``max_body_bytes``, all to four times that.

    An answer comes from one generation of the files of OUTPUT. While these are replaced, a call
    waits for ``swap_wait_seconds`` at most; then, or if that was interrupted, StoreIOError (EBUSY).
    """

    max_body_bytes = BODY_BYTES_MAX

    def __init__(self, store_root: Path, output: Path, config: StoreConfig) -> None:
        """Use ``open`` instead: it determines the settings."""
        super().__init__(output)
        self.store_root = store_root
        self.config = config
        self._log = CommitLog(config.commit_log_paths(store_root), config)
        self._queues: dict[tuple[str, int], QueueReader] = {}
        self._index = IndexFiles(output, config)
        self._compaction = CompactionTopics(store_root, config)
        self._dispatch: DispatchLimit | None = None

    @classmethod
    def open(
        cls,
        store_root: str | Path,
        output: str | Path | None = None,
        broker_conf: str | Path | None = None,
        broker_version: str | None = None,
    ) -> MessageStore:
        """Open the store of a broker at ``store_root``, with its queues and index at ``output``.

        ``output`` defaults to the store itself. A dispatched OUTPUT records its own settings; those
        of a broker's own files come from ``broker_conf`` (default: the store's broker.conf, if
        any). Raises ConfigError if something is missing or contradictory, UnsupportedFormatError,
        DamageError, StoreIOError.
        """
        path = given_path(store_root)
        target = path if output is None else given_path(output)
        conf = None if broker_conf is None else Path(broker_conf)
        store = cls(path, target, find_config(path, target, conf, broker_version))
        store._refresh_progress()
        return store

    def __enter__(self) -> MessageStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release all maps. Any later call but ``close`` raises StoreError."""
        with self._guard:
            self._is_open = False
            self._queues.clear()
            self._log = CommitLog((), self.config)
            self._index = IndexFiles(self.output, self.config)

    # --- the log ---------------------------------------------------------------------------------

    @of_log
    def min_phy_offset(self) -> int:
        """Return the physical offset at which the log begins, -1 if it has no files."""
        self._log.refresh_if_changed()
        return self._log.min_offset()

    @of_log
    def max_phy_offset(self) -> int:
        """Return the physical offset at which the log ends, dispatched or not; 0 without files."""
        self._log.refresh()
        return self._log.max_offset()

    @of_log
    def missing_files(self) -> list[LostDataError | StoreIOError]:
        """Return an error for each range that no file of the log holds, or whose file is none."""
        self._log.refresh_if_changed()
        return self._log.missing_files()

    @of_log
    def reput_from_offset(self) -> int | None:
        """Return the physical offset up to which the log is dispatched; None if by a broker."""
        return None if self._progress is None else self._progress.reput_from_offset

    @of_log
    def look_message_by_offset(self, commit_log_offset: int) -> Message | None:
        """Return the message whose record begins at a physical offset, None if there is none."""
        self._log.refresh_if_changed()
        message = self._log.find_message(commit_log_offset)
        if message is not None:
            limit_bodies((message,), self.max_body_bytes)
        return message

    # --- queues ----------------------------------------------------------------------------------

    @of_generation
    def topics(self, links: list[StoreIOError] | None = None) -> list[str]:
        """Return the topics that have a queue, in order.

        A symbolic link below ``consumequeue`` raises StoreIOError. With ``links``, its error is
        appended to that list instead, possibly more than once, and the other topics are returned.
        """
        self._log.refresh_if_changed()
        topics = list_topics(self._consume_queues(), links)
        return sorted(topic for topic in topics if self._queue_ids(topic, links))

    @of_generation
    def queue_ids(self, topic: str, links: list[StoreIOError] | None = None) -> list[int]:
        """Return the ids of a topic's queues, in order, damaged queues included.

        ``links``: as in ``topics``.
        """
        self._log.refresh_if_changed()
        return self._queue_ids(topic, links)

    @of_generation
    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the position of the first message still in the log; 0 without a queue.

        If all messages have expired, it equals ``max_offset_in_queue``.
        """
        queue = self._queue(topic, queue_id)
        return queue.span.min if queue is not None else 0

    @of_generation
    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the position that the next message will get; 0 without a queue."""
        queue = self._queue(topic, queue_id)
        return queue.span.max if queue is not None else 0

    def get_message(  # noqa: PLR0913, PLR0917 - the signature is a contract
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: str = "*",
        wait_seconds: float = 0,
    ) -> GetMessageResult:
        """Read messages from a position on, as many as a broker returns at once (§11.1).

        At the queue's end, waits up to ``wait_seconds`` for a message with one of the ``tags``
        (``*``, ``A || B``), through restarts of the dispatcher (``store.reads.pull_request_hold``).
        Raises ConfigError, UnsupportedFormatError for a compaction topic.
        """
        tag_filter = parse_tags(tags)
        wanted = HeldRead(topic, queue_id, tag_filter)

        def read(begin: int) -> GetMessageResult:
            return self._get_message(topic, queue_id, begin, max_count, tag_filter)

        return await_message(self.output, wanted, read, offset, wait_seconds)

    @of_generation
    def _get_message(
        self, topic: str, queue_id: int, offset: int, max_count: int, tag_filter: TagFilter
    ) -> GetMessageResult:
        self._compaction.refuse(topic)
        queue = self._queue(topic, queue_id)
        if queue is None:
            next_begin = 0 if self.config.answers.corrects_offset else offset
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, next_begin, 0, 0)
        result = get_message(queue, self._log, offset, max_count, tag_filter)
        return limited(result, self.max_body_bytes)

    @of_generation
    def offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: Boundary = Boundary.LOWER,
    ) -> int:
        """Return the position for a time (§11.4, with the rule since 5.1.1).

        LOWER: of the first message stored at or after the time, the queue's end if there is none.
        UPPER: of the last message stored at or before it, the queue's start if there is none. If
        the clock stepped back, LOWER is a message whose predecessor is earlier, UPPER one whose
        successor is later. 0 without a queue.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.span.max == 0:
            return 0
        span = queue.span.min, queue.span.max
        return find_offset(
            span, timestamp_ms, boundary=Boundary(boundary), store_time=queue.store_time
        )

    @of_generation
    def message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at a position, -1 if there is none."""
        queue = self._queue(topic, queue_id)
        if queue is None or not queue.span.min <= offset < queue.span.max:
            return -1
        message = queue.message(offset)
        return message.store_timestamp if message is not None else -1

    @of_generation
    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of a queue's first message, -1 if it has none."""
        queue = self._queue(topic, queue_id)
        if queue is None or queue.span.min == queue.span.max:
            return -1
        message = queue.message(queue.span.min)
        return message.store_timestamp if message is not None else -1

    @of_generation
    def message_bytes(self, topic: str, queue_id: int, begin: int, end: int) -> int:
        """Return the bytes in the log of the messages from position ``begin`` to ``end``."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.message_bytes(begin, end)

    @of_generation
    def place_in_queue(self, message: Message) -> tuple[QueuePlace | None, str]:
        """Return where its queue refers to a message, or why it does not."""
        queue = self._queue(message.topic, message.queue_id)
        place = None if queue is None else find_in_queue(message, queue)
        if place is not None:
            return place, ""
        reput = None if self._progress is None else self._progress.reput_from_offset
        return None, why_not_in_queue(message, reput, is_queue=queue is not None)

    # --- the index -------------------------------------------------------------------------------

    @of_generation
    def query_message(  # noqa: PLR0913, PLR0917 - the signature is a contract
        self,
        topic: str,
        key: str,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        index_type: str = KEY_TYPE,
    ) -> QueryResult:
        """Return the newest ``max_count`` messages with a key, in log order.

        ``index_type`` "K" queries a key or unique key, "T" a whole tag (indexed since 5.4.0). Both
        times are inclusive store times. Raises ConfigError if the index is off, has no tags or has
        not been built: that differs from "not found".
        """
        self._log.refresh_if_changed()
        query = Query(topic, key, begin_ms, end_ms, index_type)
        result = query_message(self._index, self._log, self._progress, query, max_count)
        return limited(result, self.max_body_bytes)

    @of_generation
    def places_in_index(self, message: Message) -> list[IndexPlace]:
        """Return the index entries of a message. Raises ConfigError as ``query_message``."""
        self._log.refresh_if_changed()
        return find_in_index(message, open_index(self._index, self._log, self._progress))

    # ---------------------------------------------------------------------------------------------

    def _refresh_progress(self) -> None:
        progress = self._progress_reader.read()
        if progress is self._progress:
            return
        if progress is None:
            self._forget_files()
            raise ProgressDeletedError(
                f"{self.output} changed: its progress was deleted; reopen the store"
            )
        self._log.refresh_if_changed()
        check_last_record(progress, self._log, self.store_root, self.output)
        known = self._progress
        if known is None or progress.shape != known.shape:
            check_shape(progress.shape, self.config, self.output, "reopen the store")
        if known is None or not progress.continues(known):
            self._forget_files()
        self._log.known_end = progress.reput_from_offset
        self._progress = progress
        self._dispatch = DispatchLimit(progress.reput_from_offset, self._progress_reader.is_at_rest)

    def _forget_files(self) -> None:
        self._queues.clear()
        self._index = IndexFiles(self.output, self.config)

    def _queue(self, topic: str, queue_id: int) -> QueueReader | None:
        """Return a queue in its current state, None if it has no directory."""
        self._log.refresh_if_changed()
        return self._fresh_queue(topic, queue_id)

    def _fresh_queue(self, topic: str, queue_id: int) -> QueueReader | None:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not can_name_directory(topic):
                return None
            queues = self._consume_queues()
            directory = queue_directory(queues, topic, queue_id)
            link = link_below(queues, directory)
            if link is not None:
                raise link
            if not directory.is_dir():
                return None
            queue = QueueReader(self.output, (topic, queue_id), self._log)
            self._queues[topic, queue_id] = queue
        queue.refresh(self._dispatch)
        return queue

    def _queue_ids(self, topic: str, links: list[StoreIOError] | None = None) -> list[int]:
        if not can_name_directory(topic):
            return []
        queues = self._consume_queues()
        link = link_below(queues, queues / topic)
        if link is not None:
            if links is None:
                raise link
            links.append(link)
            return []
        names = {path.name for path in list_directories(queues / topic, links)}
        ids = sorted({i for i in map(java.parse_int, names) if i is not None and str(i) in names})
        if self._progress is None:
            return ids
        return [i for i in ids if self._is_queue(topic, i)]

    def _is_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a directory is a queue: not one that holds units beyond progress only."""
        try:
            queue = self._fresh_queue(topic, queue_id)
        except (DamageError, StoreIOError):
            return True  # a read of this queue raises it; the other queues stay readable
        return queue is not None and queue.span.max > 0

    def _consume_queues(self) -> Path:
        """Return the directory of the queues. Raises ConfigError if the log has none yet."""
        path = self.output / CONSUME_QUEUE_DIR
        if self._progress is None:
            require_queue_files(self.store_root, self.output, self.config.rocksdb_queues)
        if self._progress is None and not path.is_dir() and not self._log.is_empty():
            raise NoQueuesError(
                f"{path} does not exist: nothing has been dispatched there; dispatch the log, or "
                "specify the OUTPUT that holds its queues (--output)"
            )
        return path
