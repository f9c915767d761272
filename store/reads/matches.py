"""The matches of filters in stretches of the log, and the log as it grows.

The columns of a scan exclude most records; only candidates are decoded, and checked in full.

Damage raises DamageError after the matches before it, or is listed and passed. A file that expires
is no damage: its messages are no longer in the log.

While a log is followed, a broker may truncate it, when it starts after a crash: it deletes files
and writes other records at the same offsets. The last records read, and some before the begin, are
therefore compared before each poll; if one has changed or is gone, reading resumes after the last
one that has not, and records after it may be read twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.arrow.batches import BodyLimits, message_batches
from store.commitlog.boundary_search import is_boundary
from store.commitlog.commit_log import CommitLog, decode_in_file, was_closed_cleanly
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.record import Message, limit_bodies
from store.commitlog.scanner import Damage, LargeBody, Scanner, Stretch, scan_rules
from store.config import StoreConfig
from store.errors import BodyTooLargeError, StoreIOError, VanishedError
from store.io.mapped_file import MappedFile, intact
from store.kernels import record as rk
from store.kernels.log_walk import NO_CUTS, walk
from store.kernels.record import read_i32
from store.reads.message_filter import MessageFilter

_RANGE_BYTES = 16 * 1024 * 1024
_POLL_BYTES = 16 * 1024 * 1024
_KNOWN_MAX = 256  # last records of polls that are remembered
_COMPARED = 16  # of these at each poll: the end of a truncated log may still hold old records
_PIECE_BYTES = 256 * 1024
_SMALL_BODY, _SMALL_BATCH = 4 << 20, 8 << 20  # decompressed, by any number of threads
_LARGE_BODIES = threading.Lock()
_TICK_SECONDS = 0.05
_HEAD_BYTES = 88  # of a record: its fields before the body, store time and queue offset included


def _never() -> bool:
    return False


class LogMatches:
    """The log of the store at ``store_root``, for any number of filters. Not thread-safe.

    ``config`` and ``planner`` are those of the scans: with them, a scan hashes keys.

    A body of more than ``max_body_bytes`` that a condition needs raises BodyTooLargeError, as does
    one that a column needs if it is compressed. With ``left_out``, the message is appended to that
    list instead, and its body is null, which matches no condition; and a file that is no readable
    regular file counts as damage. Only one thread of the process at a time matches large bodies.
    """

    def __init__(
        self,
        store_root: Path,
        config: StoreConfig,
        max_body_bytes: int = BODY_BYTES_MAX,
        left_out: list[Damage] | None = None,
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self.config = replace(config, message_index_enable=True)
        self.planner = LogPlanner(
            self.log,
            lambda: was_closed_cleanly(store_root),
            range_bytes=_RANGE_BYTES,
            passes_unreadable=left_out is not None,
        )
        self._limits = BodyLimits(max_body_bytes, leaves_out=left_out is not None)
        self._left_out = [] if left_out is None else left_out

    def readable(
        self, stretches: Iterable[Stretch], passed: list[Damage] | None = None
    ) -> Iterator[DispatchRequests]:
        """Yield the requests of adjacent stretches; nothing of a part that has expired.

        Damage raises DamageError. With ``passed``, it is appended to that list instead.
        """
        for stretch in stretches:
            if isinstance(stretch, DispatchRequests):
                yield stretch
            elif passed is None:
                self.check_expired(stretch)
            elif not self._has_expired(stretch):
                passed.append(stretch)

    @intact()
    def torn_end(self, end: int) -> Damage | None:
        """Return the damage at the end of a log that was closed cleanly, None if it has none.

        Such a log ends before zeros or a blank, or with its file.
        """
        file = self.log.find(end)
        if file is None or not self.planner.is_clean():
            return None
        at = end - file.base
        span = (file.base, at, at + 1)
        reason = walk(file.view(), span, scan_rules(self.config), False, NO_CUTS).reason
        if reason in (rk.OK, rk.BLANK, rk.EMPTY):
            return None
        return Damage(end, self.log.likely_end(), str(file.path), rk.REASONS[reason])

    def rows(
        self,
        requests: DispatchRequests,
        wanted: MessageFilter,
        is_stopped: Callable[[], bool] = _never,
    ) -> NDArray[np.int64]:
        """Return the rows of a stretch that only ``messages`` can still exclude, in log order.

        A regular expression may take long, so ``is_stopped`` is asked every 256 KB of records, and
        every second of the work on them; once it is true, no further row is returned. Raises
        SlowExpressionError.
        """
        rows = wanted.candidates(requests)
        if not len(rows) or not wanted.columns:
            return rows
        file = self._file_of(requests)
        if file is None:
            return rows[:0]
        found = [rows[:0]]
        pieces = np.cumsum(requests.size[rows].astype(np.int64)) // _PIECE_BYTES
        for piece in np.split(rows, np.flatnonzero(np.diff(pieces)) + 1):
            if is_stopped():
                break
            found.append(piece[self._column_mask(requests, piece, file, wanted, is_stopped)])
        return np.concatenate(found)

    def messages(
        self, requests: DispatchRequests, rows: NDArray[np.int64], wanted: MessageFilter
    ) -> Iterator[Message]:
        """Yield the messages of rows that match, in the order of the rows."""
        file = self._file_of(requests) if len(rows) else None
        if file is None:
            return
        for offset in requests.commit_log_offset[rows].tolist():
            with intact():
                message = decode_in_file(file, offset, self.config)
            if wanted.confirms(message):
                limit_bodies((message,), self._limits.body_bytes)
                yield message

    def batches(
        self, requests: DispatchRequests, wanted: MessageFilter, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the messages of a stretch that match, in log order."""
        rows = self.rows(requests, wanted)
        file = self._file_of(requests) if len(rows) else None
        if file is None:
            return
        if not wanted.columns_suffice:
            offsets = requests.commit_log_offset[rows].tolist()
            is_wanted = (wanted.confirms(decode_in_file(file, o, self.config)) for o in offsets)
            with intact():
                rows = rows[np.fromiter(is_wanted, np.bool_, len(rows))]
        yield from self._decoded(requests, rows, file, columns, self._limits)

    def check_expired(self, damage: Damage) -> None:
        """Raise DamageError unless the damage is a part of the log that has expired."""
        if not self._has_expired(damage):
            raise damage.error()

    def _has_expired(self, damage: Damage) -> bool:
        self.log.refresh()
        return damage.is_lost and damage.end <= self.log.min_offset()

    def _column_mask(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64],
        file: MappedFile,
        wanted: MessageFilter,
        is_stopped: Callable[[], bool],
    ) -> NDArray[np.bool_]:
        """Return which rows match; one thread at a time has bodies beyond ``_SMALL_BODY``."""
        limits = replace(self._limits, limits_stored=True)
        small = BodyLimits(_SMALL_BODY, _SMALL_BATCH, limits_stored=True)

        def mask(limits: BodyLimits) -> NDArray[np.bool_]:
            batches = self._decoded(requests, rows, file, wanted.columns, limits)
            return np.concatenate([wanted.column_mask(batch, is_stopped) for batch in batches])

        if limits.body_bytes <= _SMALL_BODY:
            return mask(replace(limits, batch_bytes=_SMALL_BATCH))
        with suppress(BodyTooLargeError):
            return mask(small)
        while not _LARGE_BODIES.acquire(timeout=_TICK_SECONDS):
            if is_stopped():
                return np.zeros(len(rows), np.bool_)
        try:
            return mask(limits)
        finally:
            _LARGE_BODIES.release()

    def _decoded(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64],
        file: MappedFile,
        columns: Sequence[str],
        limits: BodyLimits,
    ) -> Iterator[pa.RecordBatch]:
        at = 0
        for batch in message_batches(
            requests,
            file.view(),
            file.base,
            columns,
            rows=rows,
            config=self.config,
            path=file.path,
            limits=limits,
        ):
            if limits.leaves_out and "body" in columns:
                is_large = batch["body"].is_null().to_numpy(zero_copy_only=False)
                large = rows[at + np.flatnonzero(is_large)]
                self._left_out += self._large_bodies(requests, large, file)
            at += batch.num_rows
            yield batch

    def _large_bodies(
        self, requests: DispatchRequests, rows: NDArray[np.int64], file: MappedFile
    ) -> Iterator[LargeBody]:
        why = f"the body has more than {self._limits.body_bytes} bytes"
        for offset, size in zip(
            requests.commit_log_offset[rows].tolist(), requests.size[rows].tolist(), strict=True
        ):
            yield LargeBody(offset, offset + size, str(file.path), why)

    def _file_of(self, requests: DispatchRequests) -> MappedFile | None:
        """Return the file of a stretch, None if it has expired since the scan.

        It may expire later: its map is kept.
        """
        file = self.log.find_pinned(requests.begin)
        if file is not None:
            return file
        path, why = str(self.log.path_of(requests.begin)), "the file has been deleted"
        self.check_expired(Damage(requests.begin, requests.end, path, why, is_lost=True))
        return None


class _Known(NamedTuple):
    offset: int
    end: int
    head: bytes


class LogFollower:
    """Reads a log from ``begin``, a record boundary, as it grows. Not thread-safe.

    ``end`` is the offset up to which it has been read; ``truncations`` counts the times that the
    log was cut below it, ``expired_bytes`` what expired before it was read.
    """

    def __init__(self, matches: LogMatches, begin: int) -> None:
        self.end = begin
        self.truncations = 0
        self.expired_bytes = 0
        self.matches = matches
        self._log = matches.log
        self._scanner = Scanner(matches.config)
        before = [_Known(-1, begin, b""), *self._records_before(begin)]  # the first: only its end
        self._known = deque(before, 2 * _KNOWN_MAX)

    def poll(self) -> list[DispatchRequests] | None:
        """Return the stretches that were appended, about 16 MB at most; None if there are none.

        Raises DamageError, StoreIOError; the next poll then reads from the same offset.
        """
        try:
            self._check_truncation()
        except VanishedError:
            self._log.refresh()  # the file has another length now, or has been refilled
            self._check_truncation()
        expired = self._log.min_offset() - self.end
        if expired > 0:
            self.expired_bytes += expired
            self.end += expired
        plan = self.matches.planner.plan(self.end, max_bytes=_POLL_BYTES)
        if not plan.ranges:
            return None
        begin = self.end
        requests: list[DispatchRequests] = []
        for stretch in self._scanner.read_all(plan.ranges):
            if isinstance(stretch, DispatchRequests):
                requests.append(stretch)
            elif self.end > begin:
                break  # the next poll begins with the damage, and raises it
            else:
                self.matches.check_expired(stretch)
            self.end = stretch.end
        self._remember(requests)
        return requests

    @intact()
    def _records_before(self, begin: int) -> Iterator[_Known]:
        """Yield records of the last file before an offset: some, spread over it, and the last."""
        file = self._log.find(begin - 1) if begin else None
        if file is None or file is not self._log.last_file():
            return
        cuts, span = np.empty(_KNOWN_MAX, np.int64), (file.base, 0, begin - file.base)
        every = max(span[2] // _KNOWN_MAX, 1)
        rules = scan_rules(self.matches.config)._replace(check_crc=False, check_property_crc=False)
        found = walk(file.view(), span, rules, False, (cuts, every))
        for at in (*cuts[: found.cuts].tolist(), found.last):
            if 0 <= at < span[2]:
                offset, size = file.base + at, int(read_i32(file.view(), at))
                yield _Known(offset, offset + size, self._head(offset))

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
        while changed := [
            count
            for count, record in enumerate(islice(reversed(self._known), _COMPARED), 1)
            if self._has_changed(record)
        ]:
            for _ in range(changed[-1]):
                self._known.pop()
            is_cut = True
        if is_cut:
            self.truncations += 1
            self._log.refresh()
            is_known = self._known and is_boundary(self._log, self._known[-1].end)
            self.end = self._known[-1].end if is_known else self.matches.planner.end()

    def _has_changed(self, record: _Known) -> bool:
        """Return whether a record is another one now, or its file is gone but has not expired."""
        head = self._head(record.offset)
        if head or record.offset < 0:
            return head != record.head
        return self._log.find(record.offset) is None and 0 <= self._log.min_offset() < record.offset

    @intact()
    def _head(self, offset: int) -> bytes:
        """Return the first bytes of a record, none if its file has expired."""
        file = self._log.find(offset)
        try:
            at = offset - (file.base if file is not None else 0)
            return b"" if file is None else file.map()[at : at + _HEAD_BYTES]
        except StoreIOError:
            return b""
