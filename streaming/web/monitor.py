"""The monitor of a log: one thread reads what is appended, once for all who want it.

It counts messages and bytes by topic, and matches each new stretch with the filters of the open
tails; tails with the same conditions are matched once. What a tail cannot take is counted and
dropped, so a slow client or a fast log costs bounded memory and time.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from store.commitlog.message_json import message_summary
from store.config import StoreConfig
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.dispatch_request import DispatchRequests
    from store.reads.matches import LogFollower, LogMatches
    from store.reads.message_filter import MessageFilter

POLL_SECONDS = 0.2
_RETRY_SECONDS = 2.0  # after damage
_MINUTE = 60
_MATCH_SECONDS = 1.0  # for the conditions of a tail in one stretch
_STRETCH_MESSAGES_MAX = 200  # that are decoded for a tail; older ones count as skipped
_PENDING_MAX = 1000  # messages that wait for a tail's client
_PENDING_BYTES_MAX = 4 * 1024 * 1024
_READY_SECONDS = 30.0
_CLOSE_SECONDS = 2.0
_log = logging.getLogger(__name__)


class TailFeed:
    """What waits for the client of one tail: texts of messages, and how many were dropped.

    ``wake`` is called, in the monitor's thread, when something has been added. ``begin`` is the
    offset from which on messages are offered.
    """

    def __init__(self, key: str, wanted: MessageFilter, wake: Callable[[], None]) -> None:
        self.key = key  # equal for tails with the same conditions
        self.wanted = wanted
        self.begin = 0
        self.is_closed = False
        self._wake = wake
        self._guard = threading.Lock()
        self._texts: deque[str] = deque()
        self._bytes = 0
        self._skipped: deque[tuple[int, int]] = deque()  # before which text, and how many
        self._first = 0  # number of the first text, counted from the begin
        self._error: str | None = None

    def offer(self, texts: Iterable[str], skipped: int) -> None:
        """Add messages that follow skipped ones; if there are too many, drop the oldest."""
        with self._guard:
            if skipped:
                self._skipped.append((self._first + len(self._texts), skipped))
            for text in texts:
                self._texts.append(text)
                self._bytes += len(text)
            dropped = 0
            while len(self._texts) > _PENDING_MAX or self._bytes > _PENDING_BYTES_MAX:
                self._bytes -= len(self._texts.popleft())
                dropped += 1
            if dropped:
                self._first += dropped
                while self._skipped and self._skipped[0][0] <= self._first:
                    dropped += self._skipped.popleft()[1]
                self._skipped.appendleft((self._first, dropped))
        self._wake()

    def fail(self, error: str) -> None:
        """Report an error of the log."""
        with self._guard:
            self._error = error
        self._wake()

    def take(self) -> tuple[list[str | int], str | None]:
        """Return and remove the messages, numbers of skipped ones among them, and the error."""
        with self._guard:
            taken: list[str | int] = []
            for number, text in enumerate(self._texts, self._first):
                while self._skipped and self._skipped[0][0] <= number:
                    taken.append(self._skipped.popleft()[1])
                taken.append(text)
            taken += [count for _, count in self._skipped]
            error, self._error = self._error, None
            self._first += len(self._texts)
            self._texts.clear()
            self._skipped.clear()
            self._bytes = 0
        return taken, error


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

    def __init__(self, store_root: Path, config: StoreConfig, max_body_bytes: int) -> None:
        self._source = store_root, config, max_body_bytes
        self._guard = threading.Lock()
        self._counts = _Counts()
        self._feeds: list[TailFeed] = []
        self._follower: LogFollower | None = None
        self._position: int | None = None  # up to which messages have been offered
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._error: str | None = None
        self._started_at = 0
        self._polled_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="reput-monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._started_at = int(time.time())
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._ready.set()  # nobody waits any longer
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
            if not feed.is_closed:
                self._feeds.append(feed)

    def remove(self, feed: TailFeed) -> None:
        """Stop to offer messages to a tail."""
        with self._guard:
            feed.is_closed = True
            if feed in self._feeds:
                self._feeds.remove(feed)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
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
        expired = follower.expired_bytes - before
        now = time.time()
        with self._guard:  # held for a moment only: the event loop waits for it
            self._position = follower.end  # a tail that is added later begins here
            feeds = list(self._feeds)
            self._polled_ms = int(now * 1000)
            for requests in new or ():
                self._counts.add(requests, int(now))
            self._counts.forget(int(now))
        if expired:
            for feed in feeds:
                feed.fail(f"{expired} bytes of the log expired before they could be read")
        for requests in new or ():
            _offer(follower.matches, requests, feeds)
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
        with self._guard:
            feeds = list(self._feeds)
        for feed in feeds:
            feed.fail(error)


def _offer(matches: LogMatches, requests: DispatchRequests, feeds: list[TailFeed]) -> None:
    """Give the messages of a stretch to the tails whose conditions they meet.

    Tails whose conditions cannot be matched, or take too long, miss the stretch; the others do not.
    """
    for _, group in groupby(sorted(feeds, key=lambda f: f.key), key=lambda f: f.key):
        alike = list(group)
        deadline = time.monotonic() + _MATCH_SECONDS
        try:
            texts, skipped = _texts(matches, requests, alike[0].wanted, deadline)
            error = "the conditions take too long for a live tail" if _is_past(deadline) else ""
        except StoreError as e:
            texts, skipped, error = [], len(requests), str(e)
        for feed in alike:
            if texts or skipped:
                feed.offer(texts, skipped)
            if error:
                feed.fail(error)


def _texts(
    matches: LogMatches, requests: DispatchRequests, wanted: MessageFilter, deadline: float
) -> tuple[list[str], int]:
    """Return the newest messages of a stretch, and how many were skipped. Raises StoreError."""
    rows = matches.rows(requests, wanted, lambda: _is_past(deadline))
    if _is_past(deadline):
        return [], len(requests)
    skipped = max(len(rows) - _STRETCH_MESSAGES_MAX, 0)
    found = matches.messages(requests, rows[skipped:], wanted)
    return [json.dumps(message_summary(m)) for m in found], skipped


def _is_past(deadline: float) -> bool:
    return time.monotonic() > deadline
