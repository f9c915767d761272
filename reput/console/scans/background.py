"""Answers that take long: computed in the background on demand, then cached.

A page shows the last answer. If that answer is old, the request also starts the next run. A large
answer that no page has requested for some time is released.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from store.errors import StoreError
from store.java import now_ms

T = TypeVar("T")

_KEPT_SECONDS = 600.0  # that a large answer is kept at least, without a newer one
_WAIT_SECONDS = 1.0  # for the first answer
_LARGE = threading.Lock()  # of all brokers: computing a large answer takes memory
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The answer as of a time (epoch ms), or why there is none."""

    answer: T | None
    error: StoreError | None
    as_of_ms: int
    seconds: float = 0.0  # that it took


class BackgroundCache(Generic[T]):
    """Computes an answer in the background, and keeps the last one. Threads may share it.

    ``read`` takes the time (epoch ms) and an event that ends it early. ``then`` takes the answer
    and that event; it is called once pages can see the answer, before the next run. ``age`` says
    when an answer is old: after so many seconds, and after so many times as long as it took; an
    error, after as long as it took. Only one large answer is computed at a time.

    ``failure`` describes the bug that ended the last run, None if none did; it has been logged.
    """

    def __init__(
        self,
        read: Callable[[int, threading.Event], T],
        what: str,
        *,
        then: Callable[[T, threading.Event], None] | None = None,
        age: tuple[float, float] = (5.0, 20.0),
        is_large: bool = True,
    ) -> None:
        self._read = read
        self._what = what
        self._then = then
        self._age_min, self._durations = age
        self._is_large = is_large
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._found_at = 0.0
        self._release = threading.Timer(0, self._forget)  # of the last answer; not started yet
        self.last: Found[T] | None = None
        self.failure: str | None = None
        self.is_running = False

    def get(self, wait: float = _WAIT_SECONDS) -> Found[T] | None:
        """Return the last answer; without one, wait for it up to some seconds."""
        with self._changed:
            if not self.is_running and not self._closed.is_set() and self._is_old():
                threading.Thread(target=self._run, name="reput-scan", daemon=True).start()
                self.is_running = True  # not if no thread could be started
            if self.last is None:
                self._changed.wait_for(lambda: self.last is not None, wait)
            return self.last

    def close(self) -> None:
        """End the current run; start no further one."""
        self._closed.set()
        self._release.cancel()

    def _is_old(self) -> bool:
        if self.last is None:
            return True
        return time.monotonic() - self._found_at > self._age_max(self.last)

    def _age_max(self, found: Found[Any]) -> float:
        times = self._durations if found.error is None else 1.0
        return max(self._age_min, times * found.seconds)

    def _run(self) -> None:
        try:
            if self._is_large:
                with _LARGE:
                    self._find()
                self._release_later()
            else:
                self._find()
        finally:
            with self._changed:
                self.is_running = False

    def _find(self) -> None:
        began, now = time.monotonic(), now_ms()
        answer = error = failure = None
        try:
            answer = self._read(now, self._closed)
            self._publish(Found(answer, None, now, time.monotonic() - began))
            if self._then is not None:
                self._then(answer, self._closed)
        except StoreError as e:
            error = e
        except Exception as e:  # noqa: BLE001 - it is shown; the next attempt may succeed
            failure = f"internal error: {type(e).__name__}; the log of reput serve has its details"
            error = StoreError(failure)
            if failure != self.failure:
                _log.exception("%s cannot be listed", self._what)
        if answer is None:
            self._publish(Found(None, error, now, time.monotonic() - began))
        self.failure = failure

    def _publish(self, found: Found[T]) -> None:
        with self._changed:
            self.last, self._found_at = found, time.monotonic()
            self._changed.notify_all()

    def _release_later(self) -> None:
        self._release.cancel()
        if self.last is not None and not self._closed.is_set():
            seconds = max(_KEPT_SECONDS, 2 * self._age_max(self.last))
            self._release = threading.Timer(seconds, self._forget)
            self._release.daemon = True
            self._release.start()

    def _forget(self) -> None:
        """Release the answer: no page has wanted it since it was old, else it had been replaced."""
        with self._changed:
            self.last = None
