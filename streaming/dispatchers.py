"""The dispatcher list and the sink that applies it: what a broker's ``doDispatch`` does.

The sink takes stretches of dispatch requests in log order. It drops what lies below the reput
offset, refuses a stretch that does not follow on from the last, hands the rest to each dispatcher
in turn and makes it durable. Applying a batch again, or in other cuts, leaves the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from checkpoints.progress import BatchEnd, LostRange, queue_key
from checkpoints.retention import Retention
from checkpoints.root import DispatchRoot
from store.config import StoreConfig
from store.consume_queue_store import ConsumeQueueStore
from store.dispatch_request import DispatchRequests, concat
from store.index_service import IndexService, IndexState
from store.pull_request_hold import PullRequestHoldService
from store.scan import Damage
from streaming.batch_sink import BatchSink, SinkCounts
from streaming.stretches import Stretch, take_following


class CommitLogDispatcher(Protocol):
    """One of the broker's ``CommitLogDispatcher``s."""

    def dispatch(self, requests: DispatchRequests) -> None:
        """Apply requests that follow on from those of the last call."""


class ConsumeQueueDispatcher:
    """Appends each ordinary or committed message to its consume queue."""

    def __init__(self, store: ConsumeQueueStore) -> None:
        self.store = store

    def dispatch(self, requests: DispatchRequests) -> None:
        """Append; idempotent by each queue's ``max_physic_offset``."""
        self.store.put_message_position_info(requests)


class IndexDispatcher:
    """Puts each message's keys into the index.

    Idempotent by its own watermark, the end of the last record dispatched: a broker compares
    with the last record's start and indexes that record twice, which is not copied.
    """

    def __init__(self, service: IndexService, watermark: int) -> None:
        self.service = service
        self._watermark = watermark

    def dispatch(self, requests: DispatchRequests) -> None:
        """Put the keys of records at or above the watermark."""
        self.service.build_index(requests.starting_at(self._watermark))
        self._watermark = max(self._watermark, requests.end)


ArrivalListener = Callable[[DispatchRequests], None]


def notify_message_arriving(output: Path) -> ArrivalListener:
    """Return a listener that lets the reads held on a root in this process go on.

    A broker's is called ``NotifyMessageArrivingListener``. Reads in other processes watch the root.
    """
    return PullRequestHoldService.of(output).notify_message_arriving


class DispatchSink(BatchSink):
    """Applies batches to one root."""

    name = "dispatch"

    def __init__(
        self,
        root: DispatchRoot,
        config: StoreConfig,
        *,
        fail_on_data_loss: bool = True,
        keep_expired: bool = False,
        listeners: Sequence[ArrivalListener] = (),
    ) -> None:
        super().__init__()
        self._root = root
        self._fail_on_data_loss = fail_on_data_loss
        self._listeners = tuple(listeners)
        if not root.is_unread:
            self._listeners += (notify_message_arriving(root.path),)
        self._is_settled = True  # all that was applied is named by progress
        self.damage: Damage | None = None  # of the log, behind all that was applied
        self._retention = Retention(root, config, keep_expired=keep_expired or root.is_unread)
        self._retention.follow_log()
        self.counts = SinkCounts(
            reput_from_offset=root.progress.reput_from_offset,
            expired_files=self._retention.files,
        )
        self._queues = ConsumeQueueStore(root.path, config, root.disk)
        self._index = (
            IndexService(root.path, config, root.disk, is_unread=root.is_unread)
            if config.message_index_enable
            else None
        )
        self.dispatchers: list[CommitLogDispatcher] = [ConsumeQueueDispatcher(self._queues)]
        if self._index is not None:
            watermark = root.progress.reput_from_offset
            self.dispatchers.append(IndexDispatcher(self._index, watermark))

    def _end(self) -> None:
        """Flush, and give the root back."""
        if self._index is not None and self._is_settled:
            self._index.flush()
        self._root.close(clean=self._is_settled)

    def _apply(self, stretches: list[Stretch]) -> None:
        began = time.monotonic()
        at = self._root.progress.reput_from_offset
        self._root.check_log()
        requests, lost, damage = take_following(stretches, at, self._may_skip)
        end = at
        if requests:
            batch = concat(requests)
            self._root.begin_batch(
                self._queues.marks(batch), self._index.mark() if self._index is not None else None
            )
            self._is_settled = False
            for dispatcher in self.dispatchers:
                dispatcher.dispatch(batch)
            end = batch.end
        for gap in lost:
            end = max(end, gap.end)
        if end > at:
            self._commit(requests, lost, end)
            self._is_settled = True
            self._retention.follow_log(self._index)
            self.counts = replace(
                self.counts,
                batches=self.counts.batches + 1,
                messages=self.counts.messages + sum(len(r) for r in requests),
                bytes=self.counts.bytes + end - at,
                reput_from_offset=end,
                last_store_timestamp=_last_timestamp(requests, self.counts),
                apply_seconds=self.counts.apply_seconds + time.monotonic() - began,
                expired_files=self._retention.files,
            )
            for part in requests:
                for listener in self._listeners:
                    listener(part)
        if damage is not None:
            self.damage = damage
            raise damage.error()

    def _may_skip(self, offset: int) -> bool:
        return not self._fail_on_data_loss and self._root.may_skip(offset)

    def _commit(self, requests: list[DispatchRequests], lost: list[Damage], end: int) -> None:
        offsets = [int(r.commit_log_offset[i]) for r in requests if len(r) for i in (0, -1)]
        drops = {key: (d.repeated, d.gaps) for key, d in self._queues.take_drops().items()}
        known = map(queue_key, self._root.progress.drops)
        self._root.commit(
            BatchEnd(
                reput_from_offset=end,
                first_offset=offsets[0] if offsets else -1,
                last_offset=offsets[-1] if offsets else -1,
                messages=sum(len(r) for r in requests),
                index=self._index.state() if self._index is not None else IndexState(),
                drops=drops,
                marks=self._queues.marks_of({*known, *drops}),
                lost=tuple(LostRange(d.begin, d.end, d.path, d.reason) for d in lost),
            )
        )


def _last_timestamp(requests: list[DispatchRequests], counts: SinkCounts) -> int:
    stamps = [int(r.store_timestamp[-1]) for r in requests if len(r)]
    return stamps[-1] if stamps else counts.last_store_timestamp
