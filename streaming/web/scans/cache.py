"""Answers that take a scan of the log: found in the background when a page wants them, then cached.

A page shows the last answer, and the next scan is begun when a page wants it and that one is old.
An answer that no page wants any more is released.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from store.errors import StoreError

T = TypeVar("T")

_AGE_MIN, _DURATIONS = 5.0, 20.0  # a result is old after these seconds, and 20 x its own duration
_KEPT_SECONDS = 600.0  # at least, without a newer result
_WAIT_SECONDS = 1.0  # for the first result
_SCANNING = threading.Lock()  # of all brokers: a scan takes memory, so there is one at a time


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """The answer as of a time (epoch ms), or why there is none."""

    answer: T | None
    error: StoreError | None
    as_of_ms: int
    seconds: float


class ScanCache(Generic[T]):
    """Scans a log in the background, and keeps the last answer. Threads may share it."""

    def __init__(self, read: Callable[[int, threading.Event], T]) -> None:
        """Use ``read``, which takes the time (epoch ms) and an event that ends it early."""
        self._read = read
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._found: Found[T] | None = None
        self._found_at = 0.0
        self._release = threading.Timer(0, self._forget)  # of the last result; not started yet
        self.is_running = False

    def get(self, wait: float = _WAIT_SECONDS) -> Found[T] | None:
        """Return the last result; without one, wait for it up to some seconds."""
        with self._changed:
            if not self.is_running and not self._closed.is_set() and self._is_old():
                threading.Thread(target=self._run, name="reput-scan", daemon=True).start()
                self.is_running = True  # not if no thread could be started
            if self._found is None:
                self._changed.wait_for(lambda: self._found is not None, wait)
            return self._found

    def close(self) -> None:
        """End the scan; start no further one."""
        self._closed.set()
        self._release.cancel()

    def _is_old(self) -> bool:
        if self._found is None:
            return True
        return time.monotonic() - self._found_at > _age_max(self._found)

    def _run(self) -> None:
        with _SCANNING:
            found = self._scan()
        self._release.cancel()
        self._release = threading.Timer(max(_KEPT_SECONDS, 2 * _age_max(found)), self._forget)
        self._release.daemon = True
        self._release.start()

    def _scan(self) -> Found[T]:
        began, now = time.monotonic(), int(time.time() * 1000)
        found: Found[T] = Found(None, StoreError("the scan failed"), now, 0.0)
        try:
            answer = self._read(now, self._closed)
            found = Found(answer, None, now, time.monotonic() - began)
        except StoreError as e:
            found = Found(None, e, now, time.monotonic() - began)
        finally:
            with self._changed:
                self._found, self._found_at = found, time.monotonic()
                self.is_running = False
                self._changed.notify_all()
        return found

    def _forget(self) -> None:
        """Release the result: no page has wanted it since it was old, else it had been replaced."""
        with self._changed:
            self._found = None


def _age_max(found: Found[Any]) -> float:
    return max(_AGE_MIN, _DURATIONS * found.seconds)
