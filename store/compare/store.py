"""Comparing a root with its log: what a dispatch would write is looked for, nothing is written.

The log's requests go through the same ``ConsumeQueueStore`` and ``IndexService`` as a dispatch;
what these write is compared with the root's files instead (``compare_queue``, ``compare_index``).
So memory is bounded by a batch and by one index file's slot table.

Compared are all bytes of ``consumequeue/``, ``consumequeue_ext/`` and the index, but for what a
root may have beside the log's units and entries: older, stale and doubled ones, as the ``ComparisonPolicy``
allow. These are counted under their own names.
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
from store.index.ends import IndexEnd
from store.index.writer import IndexService
from store.layout import CONSUME_QUEUE_DIR

__all__ = ["ComparisonPolicy", "Counts", "Difference", "StoreComparison"]

_DERIVED = ".derived-from-the-log"


class StoreComparison:
    """Compares one root with dispatch requests in log order.

    Raises DamageError for a message no queue can be made for, StoreIOError.
    """

    def __init__(self, root: Path, config: StoreConfig, terms: ComparisonPolicy) -> None:
        derived = root / _DERIVED
        if derived.exists():
            raise ConfigError(f"{derived} must not exist: rename it")
        self._findings = Findings()
        self._queue_files = QueueComparison(root, derived, config, terms, self._findings)
        self._queues = ConsumeQueueStore(derived, config, self._queue_files)
        self._index_files = IndexComparison(root, config, terms, self._findings)
        self._index: IndexService | None = None
        if config.message_index_enable:
            self._index = IndexService(derived, config, self._index_files)
        self.index_files = self._index_files.files
        self.has_older = terms.is_aged
        self._root = root
        self._is_exact = not (terms.is_aged or terms.may_be_ahead or terms.by_broker)
        self._aligner = IndexAligner(
            self._index_files.files, config, terms, self._findings.counts, MapCache(self._findings)
        )
        self._has_begun = False

    def put(self, requests: DispatchRequests) -> None:
        """Compare what these requests, which follow on from the last ones, put in the root."""
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
        """Compare what no request covers; the log was read up to ``end``. Return what differs."""
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
        """How much was compared, and what was only counted."""
        return self._findings.counts

    def take_drops(self) -> dict[QueueKey, QueueDrops]:
        """Return what a broker's own rules drop or misplace (format notes §5.3)."""
        return self._queues.take_drops()

    # Where the derivation is, and what of it the root has; of a comparison that goes on. ---------

    def differs(self) -> bool:
        """Tell whether anything differs so far."""
        return self._findings.has_any()

    def differences(self) -> tuple[Difference, ...]:
        """Return what differs so far."""
        return self._findings.differences()

    def queue_ends(self) -> QueueEnds:
        """Return where the derived queues end."""
        return self._queues.ends()

    def index_end(self) -> tuple[int, IndexEnd | None, int]:
        """Return which of ``index_files`` is in work, where it ends, and the last full one's time.

        -1 and an empty mark before the first file, None without an index.
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
        """Return how far a queue lies from where it was derived; None if no unit of it was."""
        return self._queue_files.shift_of(self._directory(key))

    def end_of_older(self, key: QueueKey) -> tuple[int, int]:
        """Return where a queue's units below the log's minimum end and their files do, in bytes.

        Both are -1 if it has none.
        """
        return self._queue_files.end_of_older(self._directory(key))

    def _directory(self, key: QueueKey) -> Path:
        return queue_directory(self._root / CONSUME_QUEUE_DIR, *key)

    def _begin(self) -> None:
        """Put the index entries older than the log first."""
        if self._has_begun or self._index is None:
            return
        self._has_begun = True
        for part in self._aligner.older():
            self._index.build_index(part)
