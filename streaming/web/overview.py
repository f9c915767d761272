"""The cached overview of a store: topics, queues and lags, listed in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from store.errors import StoreError
from store.reads.message_store import MessageStore
from store.reads.topics import Overview, describe_topics

Opened = Callable[[], AbstractContextManager[MessageStore]]
_AGE_MIN, _DURATIONS = 2.0, 10.0  # refreshed when older than both: seconds, and its own durations
_FIRST_WAIT = 1.0
_DAMAGES_MAX = 100


@dataclass(frozen=True, slots=True)
class Listing:
    """An overview as of a time (epoch ms), or why it could not be read."""

    overview: Overview | None
    error: StoreError | None
    as_of_ms: int
    seconds: float = 0.0


class OverviewCache:
    """Lists a store in the background when a listing is wanted and the last one is old."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._changed = threading.Condition()
        self._listing: Listing | None = None
        self._listed_at = 0.0
        self._is_running = False

    def get(self, wait: float = _FIRST_WAIT) -> Listing | None:
        """Return the last listing; without one, wait for it up to some seconds."""
        with self._changed:
            if not self._is_running and self._is_old():
                self._is_running = True
                threading.Thread(target=self._list, name="reput-overview", daemon=True).start()
            if self._listing is None:
                self._changed.wait_for(lambda: self._listing is not None, wait)
            return self._listing

    def damages(self) -> list[str]:
        """Return what was damaged when the store was last listed."""
        listing = self._listing
        if listing is None or listing.overview is None:
            return []
        found = [q.damage for t in listing.overview.topics for q in t.queues if q.damage]
        lags = [lag.damage for _, lag in listing.overview.groups if lag.damage]
        return [str(e) for e in (*found, *lags, *listing.overview.links)][:_DAMAGES_MAX]

    def _is_old(self) -> bool:
        if self._listing is None:
            return True
        age = time.monotonic() - self._listed_at
        return age > max(_AGE_MIN, _DURATIONS * self._listing.seconds)

    def _list(self) -> None:
        began, now = time.monotonic(), int(time.time() * 1000)
        overview, error = None, None
        try:
            with self._opened() as store:
                overview = describe_topics(store)
        except StoreError as e:
            error = e
        finally:
            with self._changed:
                self._listed_at = time.monotonic()
                self._listing = Listing(overview, error, now, self._listed_at - began)
                self._is_running = False
                self._changed.notify_all()
