"""When a running query begins its next batch, if it chooses by need.

A batch costs Spark about a tenth of a second of CPU, however few messages it has. So the answer
to Spark's question for the end of the next batch is held until a batch is worth its cost: a few
messages are waiting, or the oldest of them has waited long enough. A backlog and the first message
after a pause are answered at once. Without new messages, the question is answered twice a second.
Spark ends a query between two questions, so a stop waits for an answer: INTERVAL_MAX at most. While
messages are waiting, the answer is never that there is nothing new: Spark's processAllAvailable
would return.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

BY_NEED = "auto"  # the trigger interval of a query that paces itself

INTERVAL_MIN, INTERVAL_MAX = 0.38, 1.1  # seconds from the start of a batch to that of the next
WORTHWHILE = 20  # messages for which a batch need not wait for INTERVAL_MAX
BACKLOG_BYTES = 256 * 1024  # of log: the query is behind, and does not wait at all
HOLD_SECONDS = 0.5  # without a message
_POLL_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is in the log after the last batch, of BACKLOG_BYTES at most. A count takes 0.1 ms."""

    messages: int
    size: int  # in bytes
    is_backlog: bool = False  # BACKLOG_BYTES, or as much as a batch takes


def is_due(waiting: Waiting, seconds: float) -> bool:
    """Return whether a batch begins, ``seconds`` after the start of the last one."""
    if not waiting.size:
        return False
    if waiting.is_backlog or seconds >= INTERVAL_MAX:
        return True
    return waiting.messages >= WORTHWHILE and seconds >= INTERVAL_MIN


@dataclass(slots=True)
class BatchPace:
    """The pace of one query. ``clock`` and ``sleep`` are those of ``time``."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _began: float = field(default=float("-inf"), init=False)

    def hold(self, waiting: Callable[[], Waiting]) -> None:
        """Return when a batch is due, or after HOLD_SECONDS without a message."""
        until = self.clock() + HOLD_SECONDS
        while True:
            found, now = waiting(), self.clock()
            if is_due(found, now - self._began):
                self._began = now
                return
            if not found.size and now >= until:
                return
            self.sleep(_POLL_SECONDS)
