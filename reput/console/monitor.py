"""The monitor of a log: one thread reads what is appended, once for all its consumers.

It counts messages and bytes by topic, and hands each new stretch to the matcher of the open tails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reput.console.tails.matching import TailMatcher
from reput.console.tails.tail_queue import TailFeed
from store.config import StoreConfig
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.dispatch_request import DispatchRequests
    from store.reads.matches import LogFollower

POLL_SECONDS = 0.2
_RETRY_SECONDS = 2.0  # after damage
_MINUTE = 60
_READY_SECONDS = 30.0
_CLOSE_SECONDS = 2.0
_log = logging.getLogger(__name__)


@dataclass
class _Counts:
    """Counts of messages since the start; ``seconds`` holds those of the last minute."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    seconds: deque[tuple[int, Counter[str]]] = field(default_factory=deque)

    def add(self, requests: DispatchRequests, now: int) -> None:
        queues = len(requests.topics)
        messages = np.bincount(requests.queue, minlength=queues).tolist()
        sizes = np.bincount(requests.queue, requests.size, queues).tolist()
        if not self.seconds or self.seconds[-1][0] != now:
            self.seconds.append((now, Counter()))
        for topic, count, size in zip(requests.topics, messages, sizes, strict=True):
            self.messages[topic] += count
            self.bytes[topic] += int(size)
            self.seconds[-1][1][topic] += count

    def forget(self, now: int) -> None:
        while self.seconds and self.seconds[0][0] <= now - _MINUTE:
            self.seconds.popleft()


class LogMonitor:
    """Follows the log of one store from its end at the start, in a thread of its own."""

    def __init__(
        self,
        store_root: Path,
        config: StoreConfig,
        max_body_bytes: int,
        check_log: Callable[[], None],
    ) -> None:
        """Follow a log; ``check_log`` raises StoreError once it has lost all its files."""
        self._source = store_root, config, max_body_bytes
        self._check_log = check_log
        self._guard = threading.Lock()
        self._counts = _Counts()
        self.tails = TailMatcher(store_root, config, max_body_bytes)
        self._follower: LogFollower | None = None
        self._position: int | None = None  # up to which messages have been offered
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._error: str | None = None
        self._started_at = 0
        self._alive_at = 0.0
        self._polled_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="reput-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._started_at = int(time.time())
        self._alive_at = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._ready.set()  # nobody waits any longer
        self.tails.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)  # no longer: it may be compiling the kernels

    # --- counts ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the counts of all topics since the start, and when the log was last read."""
        with self._guard:
            return {
                "messages_in": self._counts.messages.total(),
                "bytes_in": self._counts.bytes.total(),
                "monitor_timestamp": self._polled_ms,
            }

    def error(self) -> str | None:
        """Return why the log cannot be followed, None if it can."""
        return self._error

    def silent_seconds(self) -> float:
        """Return how long ago the thread last tried to read the log, with or without success."""
        return time.monotonic() - self._alive_at

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return messages and bytes by topic since the start."""
        with self._guard:
            return {t: (n, self._counts.bytes[t]) for t, n in self._counts.messages.items()}

    def rates(self) -> dict[str, float]:
        """Return the messages per second by topic in the last minute, or since the start."""
        now = int(time.time())
        with self._guard:
            self._counts.forget(now)
            total: Counter[str] = Counter()
            for _, counts in self._counts.seconds:
                total.update(counts)
        seconds = max(min(now - self._started_at, _MINUTE), 1)
        return {topic: count / seconds for topic, count in total.items()}

    # --- tails -----------------------------------------------------------------------------------

    def add(self, feed: TailFeed) -> None:
        """Offer new messages to a tail from now on. Raises StoreError if the log is not read."""
        self._ready.wait(_READY_SECONDS)
        with self._guard:
            if self._position is None:
                raise StoreError(self._error or "the log is not followed yet; try again")
            feed.begin = self._position
            self.tails.add(feed)

    def remove(self, feed: TailFeed) -> None:
        """Stop offering messages to a tail."""
        self.tails.remove(feed)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            self._alive_at = time.monotonic()
            try:
                has_read = self._poll()
            except StoreError as e:
                self._fail(str(e))
                self._stop.wait(_RETRY_SECONDS)
            except Exception as e:  # noqa: BLE001 - the monitor must not end
                _log.exception("the log is not followed")
                self._fail(f"internal error: {type(e).__name__}")
                self._stop.wait(_RETRY_SECONDS)
            else:
                self._error = None
                if not has_read:
                    self._stop.wait(POLL_SECONDS)

    def _poll(self) -> bool:
        """Read what has been appended; return whether there was anything."""
        follower = self._follower or self._begin()
        before = follower.expired_bytes
        new = follower.poll()
        self._check_log()
        expired = follower.expired_bytes - before
        now = time.time()
        with self._guard:  # held for a moment only: the event loop waits for it
            self._position = follower.end  # a tail that is added later begins here
            self._polled_ms = int(now * 1000)
            for requests in new or ():
                self._counts.add(requests, int(now))
            self._counts.forget(int(now))
            self.tails.offer(new or ())
        if expired:
            self.tails.fail(f"{expired} bytes of the log expired before they could be read")
        return new is not None

    def _begin(self) -> LogFollower:
        """Start at the current end of the log."""
        # Loading the kernels takes longer than the start of the console may.
        from store.reads.matches import LogFollower, LogMatches  # noqa: PLC0415 - loads the kernels

        matches = LogMatches(*self._source)
        self._follower = LogFollower(matches, matches.planner.end())
        self._position = self._follower.end
        self._ready.set()
        return self._follower

    def _fail(self, error: str) -> None:
        if error == self._error:
            return
        self._error = error
        _log.warning("the log cannot be followed: %s", error)
        self.tails.fail(error)
