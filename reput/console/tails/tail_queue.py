"""What waits for the client of one tail: bounded, so a slow client costs bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.reads.message_filter import MessageFilter

_PENDING_MAX = 1000  # messages


class TailFeed:
    """What waits for the client of one tail: texts of messages, and how many were dropped.

    ``wake`` is called, in the monitor's thread, when something has been added; ``bytes_max``
    returns how much may wait. ``begin`` is the offset from which on messages are offered.
    """

    def __init__(
        self,
        key: str,
        wanted: MessageFilter,
        wake: Callable[[], None],
        bytes_max: Callable[[], int],
    ) -> None:
        self.key = key  # equal for tails with the same conditions
        self.is_closed = False
        self.wanted = wanted
        self.begin = 0
        self.first = 0  # number of the first stretch that is offered
        self._wake = wake
        self._bytes_max = bytes_max
        self._guard = threading.Lock()
        self._texts: deque[str] = deque()
        self._bytes = 0
        self._skipped: deque[tuple[int, int]] = deque()  # before which text, and how many
        self._first = 0  # number of the first text, counted from the begin
        self._error: str | None = None
        self._end = ""

    def offer(self, texts: Iterable[str], skipped: int) -> None:
        """Add messages that follow skipped ones; if there are too many, drop the oldest."""
        with self._guard:
            if skipped:
                self._skipped.append((self._first + len(self._texts), skipped))
            for text in texts:
                self._texts.append(text)
                self._bytes += len(text)
            dropped = 0
            while len(self._texts) > _PENDING_MAX or self._bytes > self._bytes_max():
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

    def end(self, reason: str) -> None:
        """Offer nothing more, and say why."""
        with self._guard:
            self._end = reason
        self._wake()

    @property
    def ended(self) -> str:
        """Why nothing more is offered, "" if more is."""
        return self._end

    def take(self, size: int) -> tuple[list[str | int], str | None, bool]:
        """Remove and return the oldest messages, about ``size`` bytes of them, and the error.

        Counts of skipped messages are among them. The last value is whether more are waiting.
        """
        with self._guard:
            taken: list[str | int] = []
            while self._texts and size > 0:
                while self._skipped and self._skipped[0][0] <= self._first:
                    taken.append(self._skipped.popleft()[1])
                text = self._texts.popleft()
                taken.append(text)
                self._first += 1
                self._bytes -= len(text)
                size -= len(text)
            if not self._texts:
                taken += [count for _, count in self._skipped]
                self._skipped.clear()
            error, self._error = self._error, None
            return taken, error, bool(self._texts)
