"""The dispatchers and the sink that calls them: the counterpart of a broker's ``doDispatch``.

The sink takes stretches of dispatch requests in log order. It drops records below the reput
offset, refuses a stretch that does not begin where the last one ended, passes the rest to each
dispatcher in turn and makes it durable. Applying a batch again, or dividing the log into other
batches, leaves the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from checkpoints.commit import BatchEnd, queue_key
from checkpoints.output import DispatchOutput
from checkpoints.retention import Retention
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.consumequeue.files import QueueTail
from store.consumequeue.queue_ends import QueueEnd
from store.consumequeue.writer import ConsumeQueueStore, QueueKey
from store.index.index_end import IndexEnd
from store.index.writer import IndexService, IndexState
from store.output.progress import LostRange
from store.reads.pull_request_hold import PullRequestHoldService
from streaming.sinks.ordered_sink import BatchSink, SinkCounts, WaitingParts


class CommitLogDispatcher(Protocol):
    """One of the broker's ``CommitLogDispatcher``s."""

    def dispatch(self, requests: DispatchRequests) -> None:
        """Apply requests that directly follow those of the last call."""


class ConsumeQueueDispatcher:
    """Appends each ordinary or committed message to its consume queue."""

    def __init__(self, store: ConsumeQueueStore) -> None:
        self.store = store

    def dispatch(self, requests: DispatchRequests) -> None:
        """Append the units; idempotent by each queue's ``max_physic_offset``."""
        self.store.put_message_position_info(requests)


class IndexDispatcher:
    """Puts each message's keys into the index.

    Idempotent by its own watermark, the end of the last record dispatched. A broker compares
    with the last record's start and indexes that record twice; this is not copied.
    """

    def __init__(self, service: IndexService, watermark: int) -> None:
        self.service = service
        self._watermark = watermark

    def dispatch(self, requests: DispatchRequests) -> None:
        """Put the keys of records at or above the watermark."""
        self.service.build_index(requests.starting_at(self._watermark), flush=False)
        self._watermark = max(self._watermark, requests.end)


@dataclass(frozen=True, slots=True)
class DurableBatch:
    """A batch that has become durable: its requests, in log order.

    ``tails_of`` returns the ends of those of the given queues that the dispatch has touched.
    """

    requests: tuple[DispatchRequests, ...]
    tails_of: Callable[[Iterable[QueueKey]], Mapping[QueueKey, QueueTail]]


ArrivalListener = Callable[[DurableBatch], None]


def notify_message_arriving(output: Path) -> ArrivalListener:
    """Return a listener that wakes the reads held on OUTPUT in this process.

    The broker's class is ``NotifyMessageArrivingListener``. Reads in other processes poll OUTPUT.
    """
    service = PullRequestHoldService.of(output)

    def notify(batch: DurableBatch) -> None:
        for requests in batch.requests:
            service.notify_message_arriving(requests)

    return notify


@dataclass(slots=True)
class _Batch:
    """The part of the batch in flight that has been applied."""

    seconds: float = 0.0  # spent applying it
    has_record: bool = False  # the batch record is written, with these ends
    queue_ends: dict[QueueKey, QueueEnd] = field(default_factory=dict)
    index_end: IndexEnd | None = None
    waiting: WaitingParts = field(default_factory=WaitingParts)
    requests: list[DispatchRequests] = field(default_factory=list)
    lost: list[Damage] = field(default_factory=list)


class DispatchSink(BatchSink):
    """Applies batches to one OUTPUT."""

    name = "dispatch"

    def __init__(
        self,
        output: DispatchOutput,
        config: StoreConfig,
        *,
        fail_on_data_loss: bool = True,
        keep_expired: bool = False,
        listeners: Sequence[ArrivalListener] = (),
    ) -> None:
        super().__init__(output.progress.reput_from_offset)
        self._output = output
        self._fail_on_data_loss = fail_on_data_loss
        self._listeners = tuple(listeners)
        if not output.is_unread:
            self._listeners += (notify_message_arriving(output.path),)
        self._is_committed = True  # progress covers all that was applied
        self._batch = _Batch()
        self._retention = Retention(output, config, keep_expired=keep_expired or output.is_unread)
        self._retention.follow_log()
        self.counts = SinkCounts(
            durable_to=output.progress.reput_from_offset,
            expired_files=self._retention.files,
        )
        self._queues = ConsumeQueueStore(output.path, config, output.disk)
        self._index = (
            IndexService(output.path, config, output.disk, is_unread=output.is_unread)
            if config.message_index_enable
            else None
        )
        self.dispatchers: list[CommitLogDispatcher] = [ConsumeQueueDispatcher(self._queues)]
        if self._index is not None:
            watermark = output.progress.reput_from_offset
            self.dispatchers.append(IndexDispatcher(self._index, watermark))

    def _end(self) -> None:
        """Commit the applied part of an interrupted batch, and release OUTPUT."""
        try:
            if self.error is None and (self._batch.waiting or not self._is_committed):
                self._complete()
        finally:
            self._close_output()

    def _close_output(self) -> None:
        try:
            if self._index is not None and self._is_committed:
                self._index.flush()
        finally:
            self._output.close(clean=self._is_committed)

    def _begin(self) -> None:
        """Raise DamageError if the log no longer holds the record dispatched last."""
        self._output.check_log()

    def _put(self, requests: list[DispatchRequests], lost: list[Damage]) -> None:
        """Pass records to the dispatchers; a sparse part waits."""
        batch, began = self._batch, time.monotonic()
        self._dispatch(batch.waiting.add(requests))
        batch.requests += requests
        batch.lost += lost
        batch.seconds += time.monotonic() - began

    def _dispatch(self, parts: list[DispatchRequests]) -> None:
        for part in parts:
            self._record_ends(part)
            for dispatcher in self.dispatchers:
                dispatcher.dispatch(part)

    def _record_ends(self, part: DispatchRequests) -> None:
        """Write the end of each queue that is about to change to the batch record, durably."""
        batch = self._batch
        if not batch.has_record and self._index is not None:
            batch.index_end = self._index.end()
        ends = {end.key: end for end in self._queues.ends_touched_by(part)}
        if not batch.has_record or not ends.keys() <= batch.queue_ends.keys():
            batch.queue_ends = ends | batch.queue_ends
            self._output.begin_batch(batch.queue_ends.values(), batch.index_end)
            batch.has_record = True
        self._is_committed = False

    def _finish(self) -> None:
        batch, end, began = self._batch, self._at, time.monotonic()
        at = self._output.progress.reput_from_offset
        self._dispatch(batch.waiting.take())
        if end > at:
            if self._index is not None and not self._output.is_unread:
                self._index.flush()
            self._commit(batch.requests, batch.lost, end)
            self._is_committed = True
            self._retention.follow_log(self._index)
            self.counts = replace(
                self.counts,
                batches=self.counts.batches + 1,
                messages=self.counts.messages + sum(len(r) for r in batch.requests),
                bytes=self.counts.bytes + end - at,
                durable_to=end,
                last_store_timestamp=_last_timestamp(batch.requests, self.counts),
                apply_seconds=self.counts.apply_seconds + batch.seconds + time.monotonic() - began,
                expired_files=self._retention.files,
            )
            durable = DurableBatch(tuple(batch.requests), self._queues.tails_of)
            for listener in self._listeners:
                listener(durable)
        self._batch = _Batch()

    def _skippable(self, damage: Damage) -> Damage | None:
        known_end = self._output.known_loss_end(damage.begin)
        if known_end is not None and known_end <= damage.end:
            return replace(damage, end=known_end)
        may_skip = not self._fail_on_data_loss and self._output.may_skip(damage.begin)
        return damage if may_skip else None

    def _commit(self, requests: list[DispatchRequests], lost: list[Damage], end: int) -> None:
        offsets = [int(r.commit_log_offset[i]) for r in requests if len(r) for i in (0, -1)]
        drops = {key: (d.repeated, d.gaps) for key, d in self._queues.take_drops().items()}
        known = map(queue_key, self._output.progress.drops)
        self._output.commit(
            BatchEnd(
                reput_from_offset=end,
                first_offset=offsets[0] if offsets else -1,
                last_offset=offsets[-1] if offsets else -1,
                messages=sum(len(r) for r in requests),
                index=self._index.state() if self._index is not None else IndexState(),
                drops=drops,
                queue_ends=self._queues.ends_of({*known, *drops}),
                lost=tuple(LostRange(d.begin, d.end, d.path, d.reason) for d in lost),
            )
        )


def _last_timestamp(requests: list[DispatchRequests], counts: SinkCounts) -> int:
    stamps = [int(r.store_timestamp[-1]) for r in requests if len(r)]
    return stamps[-1] if stamps else counts.last_store_timestamp
