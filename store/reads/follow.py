"""Following a log: its new messages, each read once, whoever wants them.

A broker may truncate its log when it starts after a crash, and then write other records at the same
offsets. The last records read are therefore compared before each poll; if one has changed, reading
resumes after the last one that has not, and records after it may be read twice.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Scanner
from store.errors import StoreIOError
from store.reads.matches import LogMatches

_POLL_BYTES = 16 * 1024 * 1024
_KNOWN_MAX = 256  # last records of polls that are remembered
_HEAD_BYTES = 88  # of a record: its fields before the body, store time and queue offset included


class _Known(NamedTuple):
    offset: int
    end: int
    head: bytes


class LogFollower:
    """Reads a log from ``begin``, a record boundary, as it grows. Not thread-safe.

    ``end`` is the offset up to which it has been read; ``truncations`` counts the times that the
    log was cut below it.
    """

    def __init__(self, matches: LogMatches, begin: int) -> None:
        self.end = begin
        self.truncations = 0
        self.matches = matches
        self._log = matches.log
        self._scanner = Scanner(matches.config)
        self._known: deque[_Known] = deque(maxlen=_KNOWN_MAX)

    def poll(self) -> list[DispatchRequests] | None:
        """Return the stretches that were appended, about 16 MB at most; None if there are none.

        Raises DamageError, StoreIOError; the next poll then reads from the same offset.
        """
        self._check_truncation()
        self.end = max(self.end, self._log.min_offset())  # else it expired before it was read
        plan = self.matches.planner.plan(self.end, max_bytes=_POLL_BYTES)
        if not plan.ranges:
            return None
        requests: list[DispatchRequests] = []
        for stretch in self._scanner.read_all(plan.ranges):
            if isinstance(stretch, DispatchRequests):
                requests.append(stretch)
            elif requests:
                break  # the next poll begins with the damage, and raises it
            else:
                self.matches.check_expired(stretch)
            self.end = stretch.end
        self._remember(requests)
        return requests

    def _remember(self, requests: list[DispatchRequests]) -> None:
        for stretch in reversed(requests):
            if len(stretch):
                offset = int(stretch.commit_log_offset[-1])
                head = self._head(offset)
                if head:
                    self._known.append(_Known(offset, offset + int(stretch.size[-1]), head))
                return

    def _check_truncation(self) -> None:
        """Go back to the last record that is unchanged."""
        is_cut = False
        while self._known and self._head(self._known[-1].offset) not in (b"", self._known[-1].head):
            self._known.pop()
            is_cut = True
        if is_cut:
            self.truncations += 1
            self.end = self._known[-1].end if self._known else self.matches.planner.end()

    def _head(self, offset: int) -> bytes:
        """Return the first bytes of a record, none if its file has expired."""
        file = self._log.find(offset)
        try:
            at = offset - (file.base if file is not None else 0)
            return b"" if file is None else file.map()[at : at + _HEAD_BYTES]
        except StoreIOError:
            return b""
