"""The threads that match new messages with the conditions of the open tails.

Tails with the same conditions are a group, which is matched once. A few threads serve all groups,
so that no expression holds up the monitor, and one of them only groups without an expression. Next
is the group whose expression has the fewest states, then that which has taken the least time. A
group that takes too long for one stretch of the log is ended. What a group has no time for is
counted and dropped.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from reput.console.pages import rare_logger
from reput.console.tails.tail_queue import TailFeed
from store.commitlog.message_json import message_summary
from store.config import StoreConfig
from store.errors import StoreError

if TYPE_CHECKING:
    from store.commitlog.dispatch_request import DispatchRequests
    from store.commitlog.scanner import Damage
    from store.reads.matches import LogMatches

_THREADS = 2  # and one for conditions without an expression
_MATCH_SECONDS = 1.0  # of CPU, for the conditions of a tail in one stretch
_MATCH_WALL_SECONDS = 3.0  # if the machine is busy, or another process matches
_WAITING_BYTES_MAX = 64 * 1024 * 1024  # of the log for a group; older messages count as skipped
_STRETCH_MESSAGES_MAX = 200  # that are decoded for a tail; older ones count as skipped
_TOO_LONG = "the conditions take too long for a live tail, which has ended; search instead"
_ANY = sys.maxsize
_log = rare_logger(__name__)


@dataclass(eq=False)
class _Group:
    """Tails with the same conditions; ``states`` are those of their expressions."""

    states: int
    seconds: float = 0.0  # taken so far
    feeds: list[TailFeed] = field(default_factory=list)
    waiting: deque[tuple[int, DispatchRequests]] = field(default_factory=deque)
    skipped: int = 0  # messages of stretches that were dropped
    is_busy: bool = False


class TailMatcher:
    """Offers the stretches of a log to its tails. Threads may share it.

    The threads are started with the first tail, and are daemons: none holds up the end of the
    process.
    """

    def __init__(self, store_root: Path, config: StoreConfig, max_body_bytes: int) -> None:
        self._source = store_root, config, max_body_bytes
        self._changed = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._number = 0  # of the next stretch
        self._is_started = self._is_closed = False

    def __len__(self) -> int:
        """Return the number of open tails."""
        return len(self.feeds())

    def feeds(self) -> list[TailFeed]:
        """Return the open tails."""
        with self._changed:
            return [feed for group in self._groups.values() for feed in group.feeds]

    def add(self, feed: TailFeed) -> None:
        """Offer stretches to a tail from the next one on, unless it has been removed."""
        with self._changed:
            if feed.is_closed or self._is_closed:
                return
            feed.first = self._number
            group = self._groups.get(feed.key)
            if group is None:
                group = self._groups[feed.key] = _Group(feed.wanted.states)
            group.feeds.append(feed)
            if not self._is_started:
                self._is_started = True
                for states_max in (0, *(_ANY,) * _THREADS):
                    threading.Thread(
                        target=self._run, args=(states_max,), name="reput-tails", daemon=True
                    ).start()

    def remove(self, feed: TailFeed) -> None:
        """Offer nothing more to a tail."""
        with self._changed:
            feed.is_closed = True
            group = self._groups.get(feed.key)
            if group is not None and feed in group.feeds:
                group.feeds.remove(feed)
                if not group.feeds:
                    del self._groups[feed.key]

    def offer(self, stretches: Sequence[DispatchRequests]) -> None:
        """Add stretches that follow those before; return at once."""
        if not stretches:
            return
        with self._changed:
            for group in self._groups.values():
                group.waiting.extend(enumerate(stretches, self._number))
                last = stretches[-1].end
                while len(group.waiting) > 1 and (
                    last - group.waiting[0][1].begin > _WAITING_BYTES_MAX
                ):
                    group.skipped += len(group.waiting.popleft()[1])
            self._number += len(stretches)
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        """Report an error of the log to all tails."""
        for feed in self.feeds():
            feed.fail(error)

    def close(self) -> None:
        """End the threads."""
        with self._changed:
            self._is_closed = True
            self._groups.clear()
            self._changed.notify_all()

    # --- the threads -----------------------------------------------------------------------------

    def _run(self, states_max: int) -> None:
        from store.reads.matches import LogMatches  # noqa: PLC0415 - loads the kernels

        reader: _Reader | None = None
        while (group := self._next(states_max)) is not None:
            began = time.monotonic()
            try:
                if reader is None:
                    left_out: list[Damage] = []
                    reader = _Reader(LogMatches(*self._source, left_out), left_out)
                self._match(reader, group)
            except Exception as e:  # noqa: BLE001 - the other tails are served
                _log.exception("a tail failed")
                self._end(group, f"internal error: {type(e).__name__}")
            with self._changed:
                group.seconds += time.monotonic() - began
                group.is_busy = False
                self._changed.notify_all()

    def _next(self, states_max: int) -> _Group | None:
        """Wait for the next group within a limit of states; None once this is closed."""
        with self._changed:
            while not self._is_closed:
                ready = [
                    group
                    for group in self._groups.values()
                    if group.waiting and not group.is_busy and group.states <= states_max
                ]
                if ready:
                    group = min(ready, key=lambda g: (g.states, g.seconds))
                    group.is_busy = True
                    return group
                self._changed.wait()
        return None

    def _match(self, reader: _Reader, group: _Group) -> None:
        """Give the messages of the next stretch to the tails of a group."""
        with self._changed:
            if not group.waiting:
                return
            number, requests = group.waiting.popleft()
            dropped, group.skipped = group.skipped, 0
            feeds = [feed for feed in group.feeds if feed.first <= number]
        limit = _Limit(group)
        try:
            matches, error = reader.at(number), ""
            texts, skipped = _texts(matches, requests, feeds[0], limit) if feeds else ([], 0)
            if reader.left_out:
                skipped, error = skipped + len(reader.left_out), str(reader.left_out[0].passed())
                reader.left_out.clear()
        except StoreError as e:
            texts, skipped, error = [], len(requests), str(e)
        if limit.is_past:
            self._end(group, _TOO_LONG)
            return
        for feed in feeds:
            if texts or skipped or dropped:
                feed.offer(texts, skipped + dropped)
            if error:
                feed.fail(error)

    def _end(self, group: _Group, reason: str) -> None:
        with self._changed:
            feeds = list(group.feeds)
        for feed in feeds:
            self.remove(feed)
            feed.end(reason)


@dataclass
class _Reader:
    """The log as one of the threads reads it; ``left_out`` as of ``LogMatches``."""

    matches: LogMatches
    left_out: list[Damage]
    number: int = -1  # of the last stretch

    def at(self, number: int) -> LogMatches:
        """Return the log with the file of a stretch, which may be new. Raises StoreError."""
        if number > self.number:
            self.matches.log.refresh()
            self.number = number
        return self.matches


class _Limit:
    """The time that a group may take for a stretch; it has none once all its clients have left."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._cpu = time.thread_time() + _MATCH_SECONDS
        self._wall = time.monotonic() + _MATCH_WALL_SECONDS
        self.is_past = False

    def __call__(self) -> bool:
        self.is_past |= time.thread_time() > self._cpu or time.monotonic() > self._wall
        return self.is_past or not self._group.feeds


def _texts(
    matches: LogMatches, requests: DispatchRequests, feed: TailFeed, limit: _Limit
) -> tuple[list[str], int]:
    """Return the newest messages of a stretch, and how many were skipped. Raises StoreError."""
    rows = matches.rows(requests, feed.wanted, limit)
    if limit():
        return [], len(requests)
    skipped = max(len(rows) - _STRETCH_MESSAGES_MAX, 0)
    found = matches.messages(requests, rows[skipped:], feed.wanted)
    return [json.dumps(message_summary(m)) for m in found], skipped
