"""The comparison of a directory's queues and index with what a dispatch of the log would write.

The log's requests pass through the same ``ConsumeQueueStore`` and ``IndexService`` as in a
dispatch, but their writes are compared with the files of the directory (``store.compare.queues``,
``store.compare.index``); nothing is written. Memory is therefore bounded by a batch and by the
slot table of one index file.

All bytes of ``consumequeue/``, ``consumequeue_ext/`` and the index are compared, except units and
entries that a directory may have besides those of the log: older, stale and doubled ones, as far as
the ``ComparisonPolicy`` allows them. These are counted, each kind under its own name.
"""

from __future__ import annotations

from pathlib import Path

from store.commitlog.dispatch_request import DispatchRequests
from store.compare.findings import ComparisonPolicy, Counts, Difference, Findings, MapCache
from store.compare.index import IndexComparison
from store.compare.index_alignment import IndexAligner
from store.compare.queues import QueueComparison
from store.config import StoreConfig
from store.consumequeue.names import queue_directory
from store.consumequeue.writer import ConsumeQueueStore, QueueDrops, QueueEnds, QueueKey
from store.errors import ConfigError
from store.index.index_end import IndexEnd
from store.index.writer import IndexService
from store.layout import CONSUME_QUEUE_DIR

__all__ = ["ComparisonPolicy", "Counts", "Difference", "StoreComparison"]

_DERIVED = ".derived-from-the-log"


class StoreComparison:
    """Compares the files of one directory with dispatch requests in log order.

    Raises DamageError for a message for which no queue can be created, StoreIOError.
    """

    def __init__(self, compared: Path, config: StoreConfig, policy: ComparisonPolicy) -> None:
        derived = compared / _DERIVED
        if derived.exists():
            raise ConfigError(f"{derived} must not exist: rename it")
        self._findings = Findings()
        views = MapCache(self._findings)
        self._queue_files = QueueComparison(compared, derived, config, policy, views)
        self._queues = ConsumeQueueStore(derived, config, self._queue_files)
        self._index_files = IndexComparison(compared, config, policy, views)
        self._index: IndexService | None = None
        if config.message_index_enable:
            self._index = IndexService(derived, config, self._index_files)
        self.index_files = self._index_files.files
        self.has_older = policy.is_aged
        self._compared = compared
        self._is_exact = not (policy.is_aged or policy.may_be_ahead or policy.by_broker)
        self._aligner = IndexAligner(self._index_files.files, config, policy, views)
        self._has_begun = False

    def put(self, requests: DispatchRequests) -> None:
        """Compare the units and entries of these requests, which follow those of the last call."""
        self._begin()
        self._queues.put_message_position_info(requests)
        self._queue_files.end_batch()
        if self._index is None:
            return
        if self._is_exact:
            self._index.build_index(requests)
            return
        for part in self._aligner.align(requests):
            self._index.build_index(part)

    def finish(self, end: int) -> tuple[Difference, ...]:
        """Compare the rest of the files and return all differences.

        ``end`` is the offset up to which the log was read.
        """
        self._begin()
        self._queue_files.finish(end)
        if self._index is not None:
            for part in self._aligner.rest(end):
                self._index.build_index(part)
        self._index_files.finish()
        counts = self._findings.counts
        counts.entries -= counts.older_entries + counts.doubled_entries + counts.stale_entries
        return self._findings.differences()

    @property
    def counts(self) -> Counts:
        """How much was compared, and how much was only counted."""
        return self._findings.counts

    def take_drops(self) -> dict[QueueKey, QueueDrops]:
        """Return the messages that the broker's rules drop or misplace (format notes §5.3)."""
        return self._queues.take_drops()

    # --- The state of an unfinished comparison ----------------------------------------------------

    def differs(self) -> bool:
        """Return whether any difference has been found so far."""
        return self._findings.has_any()

    def differences(self) -> tuple[Difference, ...]:
        """Return the differences found so far."""
        return self._findings.differences()

    def queue_ends(self) -> QueueEnds:
        """Return the ends of the derived queues."""
        return self._queues.ends()

    def index_end(self) -> tuple[int, IndexEnd | None, int]:
        """Return the current index file's number, its end, and the time of the last full file.

        The number is -1 and the end is empty before the first file; the end is None without an
        index.
        """
        if self._index is None:
            return -1, None, 0
        number, end = self._index_files.number, self._index.end()
        if not end.file:
            return -1, end, 0
        names = [path.name for path in self.index_files]
        name = names[number] if number < len(names) else end.file
        return number, IndexEnd(name, end.header), self._index.last_full_timestamp

    def shift_of(self, key: QueueKey) -> int | None:
        """Return a queue's displacement from its derived position, None without derived units."""
        return self._queue_files.shift_of(self._directory(key))

    def end_of_older(self, key: QueueKey) -> tuple[int, int]:
        """Return the end of a queue's units below the log's minimum, and of their files, in bytes.

        Both are -1 if there are none.
        """
        return self._queue_files.end_of_older(self._directory(key))

    def _directory(self, key: QueueKey) -> Path:
        return queue_directory(self._compared / CONSUME_QUEUE_DIR, *key)

    def _begin(self) -> None:
        """Pass the index entries older than the log to the index first."""
        if self._has_begun or self._index is None:
            return
        self._has_begun = True
        for part in self._aligner.older():
            self._index.build_index(part)
