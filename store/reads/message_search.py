"""Search in the commit log: messages by any combination of conditions, in either order.

A search reads the log alone, so it needs no queues and no index, and finds every message stored:
also half and rollback messages, and messages that a broker dropped from their queue.
``store.reads.matches`` finds them in the stretches of a scan.

A condition on time narrows the span by a binary search over the files. Store times follow the order
of the log except where the clock stepped back. The span is wider by ``CLOCK_STEP_MS`` on both
sides: a match is found unless the clock stepped back by more.

Damage raises DamageError where the search reaches it, after the matches before it; or the search
lists it and resumes with the next valid record. A file that expires during the search is no damage:
its messages are no longer in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

import pyarrow as pa

from store.arrow.schema import MESSAGE_FIELDS
from store.commitlog.boundary_search import (
    first_stored_after,
    first_stored_at,
    first_timestamp,
    is_boundary,
)
from store.commitlog.commit_log import ReportProgress
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.parallel_scan import scan_in_order, scan_newest_first
from store.commitlog.record import Message
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import StoreError, VanishedError
from store.reads.matches import LogFollower, LogMatches
from store.reads.message_filter import MessageFilter

CLOCK_STEP_MS = 10 * 60 * 1000
_TIME_MIN = -(1 << 63)
_REFILL_SECONDS = 10.0
_log = logging.getLogger(__name__)


class LogSearch:
    """The search for one filter in the log of the store at ``store_root``. Not thread-safe.

    ``span`` is the part of the log to search, ``end`` the end of the log as searched so far.
    Setting ``stop`` ends a search early. ``damages`` holds the damage passed so far with
    ``skip_damage``, and the messages whose bodies exceed ``max_body_bytes`` where a condition needs
    them; without it, damage raises DamageError, and such a body BodyTooLargeError.
    """

    def __init__(  # noqa: PLR0913 - each is independent of the others
        self,
        store_root: Path,
        config: StoreConfig,
        wanted: MessageFilter,
        *,
        max_body_bytes: int = BODY_BYTES_MAX,
        stop: Event | None = None,
        skip_damage: bool = False,
    ) -> None:
        self.damages: list[Damage] = []
        self._passed = self.damages if skip_damage else None
        self._matches = LogMatches(store_root, config, max_body_bytes, self._passed)
        self.log = self._matches.log
        self.span = (0, 0)
        self.end = self._log_end = 0
        self._config = self._matches.config
        self._planner = self._matches.planner
        self._wanted = wanted
        self.stop = stop if stop is not None else Event()

    def messages(
        self, *, newest_first: bool = False, report: ReportProgress | None = None
    ) -> Generator[Message]:
        """Yield the matches in the current log as they are found. Raises StoreError.

        With ``skip_damage``, the newest record of a log that was closed cleanly counts as damage if
        it cannot be read.
        """
        with closing(self.stretches(newest_first=newest_first, report=report)) as stretches:
            for requests in stretches:
                yield from self._messages(requests, newest_first=newest_first)

    def batches(self, columns: Sequence[str] = tuple(MESSAGE_FIELDS)) -> Generator[pa.RecordBatch]:
        """Yield columns of the matches in the current log, in log order. Raises StoreError.

        A batch has some thousand messages at most.
        """
        with closing(self.stretches()) as stretches:
            for requests in stretches:
                yield from self._matches.batches(requests, self._wanted, columns)

    def batches_of(
        self,
        parts: Sequence[tuple[MessageFilter, Sequence[str]]],
        report: ReportProgress | None = None,
    ) -> Generator[tuple[int, pa.RecordBatch]]:
        """Yield columns of the matches of several filters, read in one pass of the search.

        ``parts`` holds filters with their columns, which may be exact ones; each batch comes with
        the position of its part. The search's own filter limits the span only. Raises StoreError.
        """
        with closing(self.stretches(report=report)) as stretches:
            for requests in stretches:
                for at, (wanted, columns) in enumerate(parts):
                    for batch in self._matches.batches(requests, wanted, columns):
                        yield at, batch

    def stretches(
        self, *, newest_first: bool = False, report: ReportProgress | None = None
    ) -> Generator[DispatchRequests]:
        """Yield the stretches of the span, until ``stop`` is set; warn if the log ends before."""
        begin, end = self.span = self._span()
        self.end = begin
        scan = self._newest_first if newest_first else self._oldest_first
        if report is not None:
            report(0, end - begin)
        with closing(scan(begin, end)) as stretches:
            for requests in stretches:
                yield requests
                if self.stop.is_set():
                    return
                if report is not None:
                    done = end - requests.begin if newest_first else requests.end - begin
                    report(done, end - begin)
        self._list_torn_end()
        if self.end < end and not self.damages:
            _log.warning(
                "%s: the log ends at offset %d, with a record that is incomplete or damaged; "
                "the %d bytes after it were not searched",
                self.log.path_of(self.end), self.end, end - self.end,
            )  # fmt: skip

    def follow(self, begin: int, poll_seconds: float) -> Iterator[Message]:
        """Yield the matches from a record boundary on, then new ones, until ``stop`` is set.

        A file that was truncated in place may be refilled within ``_REFILL_SECONDS``; then this
        resumes, and else it raises the error.
        """
        follower = LogFollower(self._matches, begin)
        failed_at = None
        while not self.stop.is_set():
            new: list[DispatchRequests] | None = None
            try:
                new = follower.poll()
                for requests in new or ():
                    self.end = requests.begin
                    for message in self._messages(requests):
                        yield message
                        self.end = message.commit_log_offset + message.size
                self.end, failed_at = follower.end, None
            except StoreError as e:
                failed_at = self._failed_at(e, failed_at)
                if new is not None:
                    follower.end = self.end
                new = None
            if new is None:
                self.stop.wait(poll_seconds)

    def _failed_at(self, error: StoreError, before: float | None) -> float:
        """Return since when the log has been truncated; raise any other error, or one too old."""
        now = time.monotonic()
        failed_at = now if before is None else before
        is_short = any(file.length < self.log.file_size for file in self.log.files)
        if now - failed_at > _REFILL_SECONDS or not (is_short or isinstance(error, VanishedError)):
            raise error
        if before is None:
            _log.warning("%s; waiting %d s for the file to be refilled", error, _REFILL_SECONDS)
        return failed_at

    def _messages(
        self, requests: DispatchRequests, *, newest_first: bool = False
    ) -> Iterator[Message]:
        rows = self._matches.rows(requests, self._wanted, self.stop.is_set)
        rows = rows[::-1] if newest_first else rows
        for message in self._matches.messages(requests, rows, self._wanted):
            if self.stop.is_set():
                return
            yield message

    def _span(self) -> tuple[int, int]:
        """Return the span to scan: it begins at a record, and contains all matches."""
        log, wanted = self.log, self._wanted
        log.refresh()
        begin, end = max(log.min_offset(), 0), self._planner.end()
        self._log_end = end
        if wanted.from_time is not None:
            begin = max(begin, self._stored_from(max(wanted.from_time - CLOCK_STEP_MS, _TIME_MIN)))
        if wanted.to_time is not None:
            end = min(end, first_stored_after(log, wanted.to_time + CLOCK_STEP_MS))
        if wanted.from_offset is not None and wanted.from_offset > begin:
            at = min(wanted.from_offset, end)
            begin = max(begin, at if is_boundary(log, at) else at - at % log.file_size)
        if wanted.to_offset is not None:
            end = min(end, wanted.to_offset)
        return begin, max(begin, end)

    def _stored_from(self, timestamp_ms: int) -> int:
        """Return an offset before which no record was stored at or after a time.

        Files without such a record are passed over because of damage, too: the last of them is
        included, and those before it up to one that begins with a valid record.
        """
        log = self.log
        at = first_stored_at(log, timestamp_ms)
        file = log.find(at)
        if file is not None and at > file.base and at < log.max_offset():
            return at
        file = log.find(at - 1)
        while file is not None and first_timestamp(file, log) < 0:
            file = log.find(file.base - 1)
        return file.base if file is not None else max(log.min_offset(), 0)

    def _oldest_first(self, begin: int, end: int) -> Generator[DispatchRequests]:
        skip = self._passed is not None
        while begin < end:
            span = begin, end
            scan = scan_in_order(self._planner, self._config, span, skip_damage=skip)
            with closing(scan):
                for _, stretches in scan:
                    yield from self._matches.readable(stretches, self._passed)
                    self.end = stretches[-1].end
            if self.end == begin:
                return
            begin = self.end  # the end, or that of a part that has expired

    def _newest_first(self, begin: int, end: int) -> Generator[DispatchRequests]:
        skip = self._passed is not None
        scan = scan_newest_first(self._planner, self._config, (begin, end), skip_damage=skip)
        with closing(scan):
            for stretches in scan:
                if self.end == begin:
                    self.end = stretches[-1].end
                    self._list_torn_end()
                yield from reversed(list(self._matches.readable(stretches, self._passed)))

    def _list_torn_end(self) -> None:
        """List what follows the last record read, if the log was closed cleanly before it."""
        if self._passed is None or self.span[1] != self._log_end:
            return
        torn = self._matches.torn_end(self.end)
        if torn is not None and torn not in self.damages:
            self.damages.append(torn)
