"""The scanner: reads a commit log file into dispatch requests, chunk by chunk."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.record import inner_batch_error
from store.config import StoreConfig
from store.errors import (
    RAISE_LIMIT,
    RESTORE,
    DamageError,
    LostDataError,
    StoreIOError,
    VanishedError,
)
from store.io.mapped_file import intact, map_file
from store.java import decode
from store.kernels import record as rk
from store.kernels import scan as sk
from store.kernels import topic as tk
from store.kernels.log_walk import NO_CUTS, find_record, walk
from store.kernels.properties import NAME_ENDS
from store.kernels.record import Rules
from store.kernels.scan import Columns, QueueTable, ScanEnd
from store.layout import RECORD_MIN_SIZE

CHUNK_BYTES = 4 * 1024 * 1024
_RETRY_SECONDS = 0.05  # before a failed record is read again
_WAITS_SECONDS = 1.0  # between two such waits for one file: it may have many damaged records
_FILES_MAX = 1000


@dataclass(frozen=True, slots=True)
class LogRange:
    """``[begin, end)`` of the log, in one file; ``gap`` is the reason if it cannot be read.

    ``is_lost``: the log has no bytes for the gap. Otherwise they are damaged. A range that does
    not begin ``at_record`` stands for the records that begin in it.
    """

    begin: int
    end: int
    path: str
    base: int
    gap: str = ""
    is_lost: bool = False
    at_record: bool = True


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable range ``[begin, end)`` of the log, with its file and the reason.

    ``is_lost``: the log has no bytes for it. Otherwise they are damaged.
    """

    begin: int
    end: int
    path: str
    reason: str
    is_lost: bool = False

    def passed(self) -> DamageError:
        """Return the error of a read that resumed after the damage."""
        if self.is_lost:
            return LostDataError(self.path, self.begin, self.end, reason=self.reason)
        hint = f"the offsets up to {self.end} could not be read; {RESTORE}"
        return DamageError(self.path, self.begin, self.reason, hint)

    def error(self) -> DamageError:
        """Return the error that names file, offset, reason and remedy."""
        if self.is_lost:
            hint = (
                f"everything before it has been kept; {RESTORE}, or skip the range "
                "with --fail-on-data-loss false (reput dispatch, mirror, export) or "
                "failOnDataLoss=false"
            )
            return LostDataError(self.path, self.begin, self.end, reason=self.reason, hint=hint)
        return DamageError(
            self.path,
            self.begin,
            self.reason,
            f"everything before it has been kept; {RESTORE}, or continue past it with "
            "--fail-on-data-loss false (reput dispatch, mirror, export) or failOnDataLoss=false; "
            f"that loses some or all of the offsets {self.begin} to {self.end}",
        )


class LargeBody(Damage):
    """A message whose body exceeds the limit of the read: its body was not read."""

    def passed(self) -> DamageError:
        """Return the error of a read that resumed after the message."""
        return DamageError(self.path, self.begin, self.reason, RAISE_LIMIT)


Stretch = DispatchRequests | Damage  # what a scan yields: records, or an unreadable range


@dataclass(frozen=True, slots=True)
class SplitScan:
    """The scan of a split: adjacent requests, from the first record that begins in the split.

    ``is_whole``: a valid record or a blank follows the last one, or the log continues in the next
    file.
    """

    requests: list[DispatchRequests]
    is_whole: bool = False

    @property
    def begin(self) -> int:
        """The offset of the first record, -1 without one."""
        return self.requests[0].begin if self.requests else -1


def scan_rules(config: StoreConfig) -> Rules:
    """Return the rules for a scan of a store with these settings."""
    return Rules(
        accepts_v2=config.accepts_v2,
        check_crc=True,
        check_property_crc=config.enabled_append_prop_crc,
        splits_properties=config.splits_properties,
        checks_inner_batch=config.checks_inner_batch,
        indexes_keys=config.message_index_enable,
        indexes_tags=config.indexes_tags,
        multi_dispatch=_multi_dispatch(config),
        multi_skips_slash=config.multi_dispatch_skips_slash,
        lmq=config.enable_lmq,
    )


def _multi_dispatch(config: StoreConfig) -> int:
    if not config.dispatches_multi:
        return tk.MULTI_OFF
    excluded = config.multi_dispatch_excludes
    if not excluded:
        return tk.MULTI_ALL
    if "SCHEDULE_TOPIC_XXXX" not in excluded:
        return tk.MULTI_WITHOUT_RETRY
    return tk.MULTI_WITHOUT_SYSTEM if "rmq_sys_*" in excluded else tk.MULTI_WITHOUT_TIMER


def _map(log_range: LogRange) -> NDArray[np.uint8] | None:
    """Map a range's file; None if it has been deleted since the range was planned."""
    try:
        return map_file(Path(log_range.path))
    except StoreIOError as e:
        if e.errno == errno.ENOENT:
            return None
        raise


_waited: dict[str, float] = {}  # when a scanner of this process last waited, by file


def _wait_for(path: str) -> None:
    """Wait for a record that is being written, unless its file has been waited for just now."""
    now = time.monotonic()
    if now - _waited.get(path, float("-inf")) < _WAITS_SECONDS:
        return
    if len(_waited) >= _FILES_MAX:
        _waited.clear()
    _waited[path] = now
    time.sleep(_RETRY_SECONDS)


class Scanner:
    """Scans stretches of commit log files. Owns the buffers, so use one per thread."""

    def __init__(self, config: StoreConfig, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.rules = scan_rules(config)
        self._delays = np.array(config.delay_levels_ms(), np.int64)
        self._chunk_bytes = chunk_bytes
        self._found = np.empty((len(NAME_ENDS), 2), np.int64)
        self._rows = 0
        self._columns: Columns
        self._table: QueueTable

    def read(self, log_range: LogRange, *, skip_damage: bool = False) -> Iterator[Stretch]:
        """Yield the stretches of a range, which tile it.

        A record that fails twice ends the range with a Damage that spans the rest; with
        ``skip_damage`` it spans up to the next valid record, where reading resumes. A Damage also
        spans what the file no longer holds, and what vanished twice while it was read. Raises
        UnsupportedFormatError for an inner batch.
        """
        if log_range.gap:
            yield Damage(
                log_range.begin, log_range.end, log_range.path, log_range.gap, log_range.is_lost
            )
            return
        at, retried = log_range.begin - log_range.base, -1
        view = _map(log_range)
        while view is not None and at < min(log_range.end - log_range.base, len(view)):
            end = min(log_range.end - log_range.base, len(view))
            requests, reason = None, rk.OK
            for requests, reason in self.chunks(view, log_range.base, at, end):
                if reason == rk.BLANK:
                    yield replace(requests, end=log_range.end)
                    return
                yield requests
                at = requests.end - log_range.base
            if reason == rk.OK:
                break
            if retried != at:
                retried = at
                _wait_for(log_range.path)
                view = _map(log_range)  # another file may have the name now, or the same its bytes
                continue
            if reason == rk.INNER_BATCH:
                raise inner_batch_error(log_range.path, log_range.base + at)
            valid = -1
            if skip_damage:
                valid = int(find_record(view, (log_range.base, at + 1, end), self.rules))
            stop = log_range.base + valid if valid >= 0 else log_range.end
            yield Damage(log_range.base + at, stop, log_range.path, rk.REASONS[reason])
            if valid < 0:
                return
            at = valid
        cut = log_range.base + at
        if view is None:
            why = "the file has been deleted (expired?)"
            yield Damage(cut, log_range.end, log_range.path, why, is_lost=True)
        elif cut < log_range.end:
            why = f"the file has been truncated to {len(view)} bytes since the read was planned"
            yield Damage(cut, log_range.end, log_range.path, why)

    def read_all(self, ranges: Iterable[LogRange], *, skip_damage: bool = False) -> list[Stretch]:
        """Return the stretches of adjacent ranges, up to damage unless it is skipped."""
        stretches: list[Stretch] = []
        for log_range in ranges:
            stretches += self.read(log_range, skip_damage=skip_damage)
            if isinstance(stretches[-1], Damage) and not skip_damage:
                break
        return stretches

    def read_split(self, split: LogRange) -> SplitScan:
        """Scan a split from the first record found in it. Its last record may end after it."""
        requests: list[DispatchRequests] = []
        view = _map(split)
        if view is None:
            return SplitScan(requests)
        begin, end = split.begin - split.base, min(split.end - split.base, len(view))
        if not split.at_record:
            begin = int(find_record(view, (split.base, begin, len(view)), self.rules))
        if not 0 <= begin < end:
            return SplitScan(requests)
        for stretch, reason in self.chunks(view, split.base, begin, end):
            requests.append(stretch)
            if reason == rk.BLANK:
                requests[-1] = replace(stretch, end=split.base + len(view))
        if reason == rk.OK and (at := requests[-1].end - split.base) < len(view):
            reason = walk(view, (split.base, at, at + 1), self.rules, False, NO_CUTS).reason
        return SplitScan(requests, is_whole=reason in (rk.OK, rk.BLANK))

    def chunks(
        self, view: NDArray[np.uint8], base: int, begin: int, end: int
    ) -> Iterator[tuple[DispatchRequests, int]]:
        """Scan positions ``begin`` to ``end`` of the file at ``base``; yield (requests, reason).

        The reason is OK except for the last chunk, where it is why the scan stopped: OK at ``end``
        (where a record ends), else BLANK or the failed check of the record at the chunk's end. It
        is VANISHED, with no requests, if bytes of a map vanished meanwhile.
        """
        at = begin
        while True:
            stop = min(at + self._chunk_bytes, end)
            requests, reason, at = self._scan(view, (base, at, stop))
            if reason == rk.FULL:
                reason = rk.OK
            yield requests, reason
            if reason != rk.OK or at >= end:
                return

    def _scan(
        self, view: NDArray[np.uint8], span: tuple[int, int, int]
    ) -> tuple[DispatchRequests, int, int]:
        self._make_room(span[2] - span[1])
        self._table.slots[:] = 0
        self._table.used[0] = 0
        state = (self._table, self._columns, self._found)
        begin = span[0] + span[1]
        try:
            with intact():
                end: ScanEnd = sk.scan(view, span, self.rules, self._delays, state)
                return self._requests(view, begin, span[0] + end.at, end), end.reason, end.at
        except VanishedError:
            self._table.used[0] = 0
            end = ScanEnd(rk.VANISHED, span[1], 0, 0, 0)
            return self._requests(view, begin, begin, end), end.reason, end.at

    def _make_room(self, size: int) -> None:
        rows = size // RECORD_MIN_SIZE + 1
        if rows <= self._rows:
            return
        self._rows = rows
        # The last record may extend beyond the chunk by its own size: its keys are bounded by
        # the 32767 bytes that its properties can have.
        parts = size // 2 + 32768
        multis = parts if self.rules.multi_dispatch != tk.MULTI_OFF else 0
        self._columns = Columns(
            commit_log_offset=np.empty(rows, np.int64),
            size=np.empty(rows, np.int32),
            queue=np.empty(rows, np.int32),
            queue_offset=np.empty(rows, np.int64),
            tags_code=np.empty(rows, np.int64),
            store_timestamp=np.empty(rows, np.int64),
            transaction=np.empty(rows, np.uint8),
            key_end=np.empty(rows, np.int32),
            key_hash=np.empty(parts, np.int32),
            multi_row=np.empty(multis, np.int32),
            multi_queue=np.empty(multis, np.int32),
            multi_offset=np.empty(multis, np.int64),
        )
        queues = rows + multis
        self._table = QueueTable(
            slots=np.zeros(1 << (2 * queues).bit_length(), np.int32),
            rows=np.empty((queues, sk.QUEUE_FIELDS), np.int64),
            used=np.zeros(1, np.int64),
        )

    def _requests(
        self, view: NDArray[np.uint8], begin: int, stop: int, end: ScanEnd
    ) -> DispatchRequests:
        out, table = self._columns, self._table
        n, queues = end.rows, table.rows[: int(table.used[0])]
        names = queues[:, [sk.TOPIC_AT, sk.TOPIC_END]].tolist()
        topics = [decode(view[a:b].tobytes()) for a, b in names]
        return DispatchRequests(
            begin=begin,
            end=stop,
            topics=topics,
            queue_ids=queues[:, sk.QUEUE_ID].astype(np.int32),
            commit_log_offset=out.commit_log_offset[:n].copy(),
            size=out.size[:n].copy(),
            queue=out.queue[:n].copy(),
            queue_offset=out.queue_offset[:n].copy(),
            tags_code=out.tags_code[:n].copy(),
            store_timestamp=out.store_timestamp[:n].copy(),
            transaction=out.transaction[:n].copy(),
            key_end=out.key_end[:n].copy(),
            key_hash=out.key_hash[: end.keys].copy(),
            multi_row=out.multi_row[: end.multis].copy(),
            multi_queue=out.multi_queue[: end.multis].copy(),
            multi_offset=out.multi_offset[: end.multis].copy(),
        )


def load_kernels() -> None:
    """Call the scan kernels on an empty log, since numba loads a kernel on its first call.

    For a process whose children scan. The argument types must be those of a real scan.
    """
    log = np.frombuffer(bytes(RECORD_MIN_SIZE), np.uint8)  # read-only, like a mapped file
    scanner = Scanner(StoreConfig(), len(log))
    for _ in scanner.chunks(log, 0, 0, len(log)):
        pass
    find_record(log, (0, 0, len(log)), scanner.rules)
