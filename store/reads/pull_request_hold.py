"""Long polling: a read that finds nothing is held until a message arrives for it.

As in a broker (``PullRequestHoldService``, ``NotifyMessageArrivingListener``), the dispatcher only
notifies the service of arrivals, which works within one process. For a dispatcher in another
process, a broker included, a thread polls OUTPUT while reads are held, and wakes all of them if
it has changed.

A held read outlives a restart of the dispatcher. Until its time is up, it is repeated while a swap
or a recovery is in progress or interrupted, or the progress is missing; the error of an OUTPUT
that is still in that state then is raised. A recovery may also shorten the queue, until it is
dispatched again: the read still waits for its own offset.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np

from store.commitlog.dispatch_request import DispatchRequests
from store.errors import ProgressDeletedError, StoreError, StoreIOError
from store.output.progress import PROGRESS
from store.reads.get_message import GetMessageResult, GetMessageStatus, TagFilter

_POLL_SECONDS = 0.05  # how often OUTPUT is polled while reads are held
_RETRY_SECONDS = 0.2  # how often a read is repeated while files are replaced
_AT_QUEUE_END = (GetMessageStatus.OFFSET_OVERFLOW_ONE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
_BEYOND_QUEUE_END = (*_AT_QUEUE_END, GetMessageStatus.OFFSET_OVERFLOW_BADLY)


class HeldRead:
    """A read that waits on one queue for a message that may match its tag filter."""

    def __init__(self, topic: str, queue_id: int, tag_filter: TagFilter) -> None:
        self.topic, self.queue_id = topic, queue_id
        self._hashes = tag_filter.hashes if tag_filter.tags is not None else None
        self._arrived = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait until a message may have arrived since the last call; return False on a timeout."""
        arrived = self._arrived.wait(seconds)
        self._arrived.clear()
        return arrived

    def wake(self) -> None:
        """Make the read try again."""
        self._arrived.set()

    def may_match(self, requests: DispatchRequests) -> bool:
        """Return whether one of the messages is for this read, judged by the hashes of tags."""
        queues = zip(requests.topics, requests.queue_ids.tolist(), strict=True)
        numbers = [n for n, queue in enumerate(queues) if queue == (self.topic, self.queue_id)]
        if not numbers:
            return False
        rows = np.flatnonzero(requests.queue == numbers[0])
        units = requests.multi_queue == numbers[0]
        rows = np.concatenate([rows, requests.multi_row[units]])
        if self._hashes is None:
            return len(rows) > 0
        codes = requests.tags_code[rows].astype(np.int32)
        return bool(np.isin(codes, list(self._hashes)).any())


class PullRequestHoldService:
    """The reads that this process holds on one OUTPUT; obtain it with ``of``."""

    _services: ClassVar[WeakValueDictionary[Path, PullRequestHoldService]] = WeakValueDictionary()
    _guard: ClassVar = threading.Lock()

    def __init__(self, output: Path) -> None:
        self._progress = output / PROGRESS
        self._lock = threading.Condition()
        self._held: set[HeldRead] = set()
        self._last_signature: object = None
        self._is_polling = False

    @classmethod
    def of(cls, output: Path) -> PullRequestHoldService:
        """Return the service of an OUTPUT, one per OUTPUT and process."""
        key = output.resolve()
        with cls._guard:
            service = cls._services.get(key)
            if service is None:
                service = cls._services[key] = cls(key)
            return service

    @contextmanager
    def hold(self, read: HeldRead) -> Iterator[HeldRead]:
        """Hold a read inside the context: an arrival from now on ends its next ``wait``."""
        with self._lock:
            if not self._held:
                self._last_signature = self._signature()
            self._held.add(read)
            if not self._is_polling:
                self._is_polling = True
                threading.Thread(target=self._poll, name="pull-request-hold", daemon=True).start()
        try:
            yield read
        finally:
            with self._lock:
                self._held.discard(read)
                self._lock.notify()

    def held_count(self) -> int:
        """Return the number of reads currently held."""
        with self._lock:
            return len(self._held)

    def notify_message_arriving(self, requests: DispatchRequests) -> None:
        """Wake the reads that these messages may match. The messages must be durable."""
        with self._lock:
            self._last_signature = self._signature()
            for read in self._held:
                if read.may_match(requests):
                    read.wake()

    def _poll(self) -> None:
        """Wake all reads when OUTPUT changes without a notification, while any read is held."""
        with self._lock:
            while self._held:
                self._lock.wait(_POLL_SECONDS)
                signature = self._signature()
                # None: a broker's own files, which have no progress record to watch.
                if signature is None or signature != self._last_signature:
                    self._last_signature = signature
                    for read in self._held:
                        read.wake()
            self._is_polling = False

    def _signature(self) -> tuple[int, int] | None:
        try:
            status = self._progress.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


def await_message(
    output: Path,
    wanted: HeldRead,
    read: Callable[[int], GetMessageResult],
    offset: int,
    seconds: float,
) -> GetMessageResult:
    """Return what ``read`` finds from an offset on; at the queue's end, wait for a message.

    A wait skips messages that arrive with other tags. Raises the errors of ``read``, those of an
    OUTPUT whose files are being replaced only after ``seconds``.
    """
    deadline, was_at_end = time.monotonic() + seconds, False
    try:
        result = read(offset)
    except StoreError as e:
        if seconds <= 0 or not _may_pass(e):
            raise
    else:
        was_at_end = _is_at_end(result, offset)
        if seconds <= 0 or not was_at_end:
            return result
    with PullRequestHoldService.of(output).hold(wanted) as held:
        while True:
            remaining = deadline - time.monotonic()
            try:
                result = read(offset)
            except StoreError as e:
                if remaining <= 0 or not _may_pass(e):
                    raise
                held.wait(min(remaining, _RETRY_SECONDS))
                continue
            if was_at_end and result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
                offset = result.next_begin_offset
                continue
            was_at_end = was_at_end or _is_at_end(result, offset)
            if remaining <= 0 or not (was_at_end and result.status in _BEYOND_QUEUE_END):
                return result
            held.wait(remaining)


def _is_at_end(result: GetMessageResult, offset: int) -> bool:
    """Return whether the read asked for the next message of the queue."""
    return result.status in _AT_QUEUE_END and offset == result.next_begin_offset


def _may_pass(error: StoreError) -> bool:
    """Return whether a restart of the dispatcher resolves an error."""
    is_replaced = isinstance(error, StoreIOError) and error.errno == errno.EBUSY
    return is_replaced or isinstance(error, ProgressDeletedError)
