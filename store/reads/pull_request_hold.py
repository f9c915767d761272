"""Long polling: reads that found nothing are held until a message arrives for them.

As in a broker (``PullRequestHoldService``, ``NotifyMessageArrivingListener``) the dispatcher only
says what has arrived. It does so where it runs in the same process; for one in another process, a
broker included, a thread looks at the root while reads are held, and lets all of them look again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

import numpy as np

from store.commitlog.dispatch_request import DispatchRequests
from store.reads.get_message import TagFilter
from store.root.progress import PROGRESS

_LOOK_SECONDS = 0.05  # how often the root is looked at while reads are held


class HeldRead:
    """A read that waits on one queue for a message with one of some tags."""

    def __init__(self, topic: str, queue_id: int, tag_filter: TagFilter) -> None:
        self.topic, self.queue_id = topic, queue_id
        self._hashes = tag_filter.hashes if tag_filter.tags is not None else None
        self._arrived = threading.Event()

    def wait(self, seconds: float) -> bool:
        """Wait until a message may have arrived since the last call; False if none has."""
        arrived = self._arrived.wait(seconds)
        self._arrived.clear()
        return arrived

    def wake(self) -> None:
        """Let the read look again."""
        self._arrived.set()

    def is_met_by(self, requests: DispatchRequests) -> bool:
        """Tell whether one of the messages is for this read, as far as hashes tell."""
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
    """The reads held on one root by this process; get it with ``of``."""

    _services: ClassVar[WeakValueDictionary[Path, PullRequestHoldService]] = WeakValueDictionary()
    _guard: ClassVar = threading.Lock()

    def __init__(self, root: Path) -> None:
        self._progress = root / PROGRESS
        self._lock = threading.Condition()
        self._held: set[HeldRead] = set()
        self._seen: object = None
        self._is_looking = False

    @classmethod
    def of(cls, root: Path) -> PullRequestHoldService:
        """Return the service of a root, the same to all who ask in this process."""
        key = root.resolve()
        with cls._guard:
            service = cls._services.get(key)
            if service is None:
                service = cls._services[key] = cls(key)
            return service

    @contextmanager
    def hold(self, read: HeldRead) -> Iterator[HeldRead]:
        """Hold a read while inside: an arrival from now on ends its next ``wait``."""
        with self._lock:
            if not self._held:
                self._seen = self._signature()
            self._held.add(read)
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look, name="pull-request-hold", daemon=True).start()
        try:
            yield read
        finally:
            with self._lock:
                self._held.discard(read)
                self._lock.notify()

    def held_count(self) -> int:
        """Return how many reads are held now."""
        with self._lock:
            return len(self._held)

    def notify_message_arriving(self, requests: DispatchRequests) -> None:
        """Wake the reads that these messages are for; they are durable and readable."""
        with self._lock:
            self._seen = self._signature()
            for read in self._held:
                if read.is_met_by(requests):
                    read.wake()

    def _look(self) -> None:
        """Wake all when the root has changed without a word, until no read is held."""
        with self._lock:
            while self._held:
                self._lock.wait(_LOOK_SECONDS)
                now = self._signature()
                if now is None or now != self._seen:  # None: a broker's root, which has no progress
                    self._seen = now
                    for read in self._held:
                        read.wake()
            self._is_looking = False

    def _signature(self) -> tuple[int, int] | None:
        try:
            status = self._progress.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns
