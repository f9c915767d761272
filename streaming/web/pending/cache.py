"""Pending messages: read in the background when a page wants them, then cached.

Reading them scans the log, so a page shows the last result, and the next scan is begun when a page
wants it and the last one is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from store.config import StoreConfig
    from store.pending.pending import Pending

_AGE_MIN, _DURATIONS = 5.0, 20.0  # a result is old after these seconds, and 20 x its own duration
_WAIT_SECONDS = 1.0  # for the first result


@dataclass(frozen=True, slots=True)
class Found:
    """The pending messages as of a time (epoch ms), finished ones too, or why there are none."""

    pending: Pending | None
    error: StoreError | None
    as_of_ms: int
    seconds: float


class PendingCache:
    """Reads the pending messages of a store in the background. Threads may share it."""

    def __init__(self, read: Callable[[int, threading.Event], Pending]) -> None:
        """Use ``read``, which takes the time (epoch ms) and an event that ends it early."""
        self._read = read
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._found: Found | None = None
        self._found_at = 0.0
        self.is_running = False

    def get(self, wait: float = _WAIT_SECONDS) -> Found | None:
        """Return the last result; without one, wait for it up to some seconds."""
        with self._changed:
            if not self.is_running and not self._closed.is_set() and self._is_old():
                self.is_running = True
                threading.Thread(target=self._run, name="reput-pending", daemon=True).start()
            if self._found is None:
                self._changed.wait_for(lambda: self._found is not None, wait)
            return self._found

    def close(self) -> None:
        """End the scan; start no further one."""
        self._closed.set()

    def _is_old(self) -> bool:
        if self._found is None:
            return True
        age = time.monotonic() - self._found_at
        return age > max(_AGE_MIN, _DURATIONS * self._found.seconds)

    def _run(self) -> None:
        began, now = time.monotonic(), int(time.time() * 1000)
        found = Found(None, StoreError("the scan failed"), now, 0.0)
        try:
            pending = self._read(now, self._closed)
            found = Found(pending, None, now, time.monotonic() - began)
        except StoreError as e:
            found = Found(None, e, now, time.monotonic() - began)
        finally:
            with self._changed:
                self._found, self._found_at = found, time.monotonic()
                self.is_running = False
                self._changed.notify_all()


def pending_reader(
    store_root: Path, config: StoreConfig, broker_conf: Path | None
) -> Callable[[int, threading.Event], Pending]:
    """Return what reads the pending messages of a store, finished ones too, for a cache."""

    def read(now: int, stop: threading.Event) -> Pending:
        from store.pending.pending import PendingFilter, find_pending  # noqa: PLC0415 - pyarrow
        from store.pending.settings import load_hold_settings  # noqa: PLC0415

        settings = load_hold_settings(store_root, broker_conf)
        wanted = PendingFilter(with_finished=True)
        return find_pending(store_root, config, wanted, now=now, settings=settings, stop=stop)

    return read
