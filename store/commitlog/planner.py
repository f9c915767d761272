"""The planner: ranges of the log to read next, which end at record boundaries.

The planner walks the chain of records. In files before the last it trusts the chain, since the
reader of a range checks each record. In the last file that holds data, which contains the live end,
it applies the full acceptance rule, so that a half-written record is never planned.

Ranges tile the log: each begins where the previous one ended, and one that reaches a file's blank
ends at the next file's base.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from store.commitlog.commit_log import CommitLog, wrong_size
from store.commitlog.live_end import LiveEnd
from store.commitlog.scanner import LogRange, scan_rules
from store.errors import StoreIOError, VanishedError
from store.io.mapped_file import MappedFile, intact
from store.kernels import record as rk
from store.kernels.log_walk import WalkEnd, walk

UNLIMITED = 1 << 62
_CUTS_MAX = 4096
_TAIL_BYTES = 8 * 1024 * 1024  # before the likely end; a split of them would be scanned in vain


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges to read from ``begin``; ``end`` is the end of the last one, or ``begin``."""

    begin: int
    ranges: tuple[LogRange, ...]

    @property
    def end(self) -> int:
        """The end of the plan, always a record boundary."""
        return self.ranges[-1].end if self.ranges else self.begin


class LogPlanner:
    """Plans ranges of one commit log.

    ``is_clean`` returns whether the log was closed cleanly (no ``abort`` beside it). If so,
    a record of the last file that fails before valid ones is damage. Otherwise the log ends before
    it, and a broker truncates it there at its next start.

    A file that is no readable regular file raises StoreIOError; with ``passes_unreadable``, its
    range is planned as one that cannot be read.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        is_clean: Callable[[], bool],
        *,
        range_bytes: int = UNLIMITED,
        passes_unreadable: bool = False,
    ) -> None:
        self._log = commit_log
        self._range_bytes = range_bytes
        self._passes_unreadable = passes_unreadable
        self._rules = scan_rules(commit_log.config)
        self._fast_rules = self._rules._replace(check_crc=False, check_property_crc=False)
        self._record_ends = np.empty(_CUTS_MAX, np.int64)
        self._live_end = LiveEnd(commit_log, is_clean)
        self.is_clean = is_clean

    def with_ranges_of(self, range_bytes: int) -> LogPlanner:
        """Return a planner of the same log with other ranges. Both share what they know of its end.

        So neither repeats a warning that the other has logged. One thread calls at a time.
        """
        other = copy(self)
        other._range_bytes = range_bytes
        return other

    def plan(self, begin: int, *, max_bytes: int = UNLIMITED, until: int = UNLIMITED) -> Plan:
        """Plan from ``begin``: about ``max_bytes`` (at most one record more), never past ``until``.

        A blank at the end of the last file is planned only if it ends at ``until``. Damage ends a
        plan: the plan includes the rest of its file, up to ``until``, and its reader finds the
        record. An empty plan means that there is nothing new.
        """
        try:
            return self._plan(begin, min(begin + max_bytes, until), until)
        except VanishedError:
            pass
        except StoreIOError as e:
            if e.errno != errno.ENOENT:
                raise
        return self._plan(begin, min(begin + max_bytes, until), until)  # a file has been replaced

    @intact()
    def _plan(self, begin: int, stop: int, until: int) -> Plan:
        self._log.refresh()
        ranges: list[LogRange] = []
        at = begin
        while at < stop:
            more, continues = self._plan_file(at, stop, until)
            ranges += more
            if not more or not continues:
                break
            at = more[-1].end
        return Plan(begin, tuple(ranges))

    def splits(self, begin: int, until: int, split_bytes: int) -> Iterator[LogRange]:
        """Yield ranges of ``split_bytes`` from ``begin``, without a walk: in order, but not tiling.

        Only the first range of a file begins at a record. A body may hold a copy of a record, and a
        range may hold damage or the live end, so the caller checks that each scan begins where the
        previous one ended and is whole; elsewhere a plan is needed. Files that are missing, cannot
        be read or have the wrong size are left out.
        """
        log = self._log
        log.refresh()
        until = min(until, log.likely_end() - min(split_bytes, _TAIL_BYTES))
        while begin < until:
            file = log.find(begin)
            if file is None:
                begin = log.next_base(begin) or until
                continue
            end = file.base + log.file_size
            if file.problem is None and file.length == log.file_size:
                for at in range(begin, min(end, until), split_bytes):
                    stop = min(at + split_bytes, end, until)
                    yield LogRange(at, stop, str(file.path), file.base, at_record=at == begin)
            begin = end

    def end(self, boundary: int = 0) -> int:
        """Return the current end of the log (``LiveEnd.find``)."""
        self._log.refresh()
        return self._live_end.find(boundary)

    def _plan_file(self, at: int, stop: int, until: int) -> tuple[list[LogRange], bool]:
        """Plan within the file of ``at``; return the ranges, and whether the log may continue.

        No record boundary is known in a part that cannot be read, so only ``until`` limits it.
        """
        log = self._log
        file, last = log.find(at), log.last_file()
        if file is None or last is None:
            base = log.next_base(at)
            if base is None or last is None or base > last.base:
                return [], False
            reason = "no file holds this part of the log"
            if at < log.min_offset():
                reason = "this part of the log has expired"
            end = min(base, until)
            return [LogRange(at, end, str(log.directories[0]), base, reason, is_lost=True)], True
        reason = ""
        if file.problem is not None and self._passes_unreadable:
            reason = str(file.problem)
        elif file.length != log.file_size:
            reason = wrong_size(file, log.file_size)
        if reason:
            end = min(file.base + log.file_size, until)
            return [LogRange(at, end, str(file.path), file.base, reason)], False
        if file.base < last.base:
            return self._plan_closed(file, at, stop, until)
        if file.base == last.base:
            return self._plan_last(file, at, stop, until)
        return [], False

    def _plan_closed(
        self, file: MappedFile, at: int, stop: int, until: int
    ) -> tuple[list[LogRange], bool]:
        end = self._walk(file, at, stop, live=False)
        if end.reason == rk.OK:
            return self._ranges(file, at, file.base + end.at, end), True
        next_base = file.base + self._log.file_size
        if end.reason == rk.BLANK:
            return self._ranges(file, at, next_base, end), True
        return self._ranges(file, at, min(next_base, until), end), False

    def _plan_last(
        self, file: MappedFile, at: int, stop: int, until: int
    ) -> tuple[list[LogRange], bool]:
        """Plan in the file with the live end, checking every record in full."""
        end = self._walk(file, at, stop, live=True)
        next_base = file.base + self._log.file_size
        if end.reason == rk.BLANK and until == next_base:  # a copy of the log may end here
            return self._ranges(file, at, next_base, end), False
        ranges = self._ranges(file, at, file.base + end.at, end)
        if end.reason not in (rk.OK, rk.BLANK):
            valid_after = self._live_end.record_after(file, end)
            if valid_after >= 0:
                beyond = self._walk(file, file.base + valid_after, stop, live=True)
                reached = min(file.base + max(beyond.at, valid_after), until)
                ranges += self._ranges(file, file.base + end.at, reached, beyond)
        return ranges, False

    def _walk(self, file: MappedFile, at: int, stop: int, *, live: bool) -> WalkEnd:
        span = (file.base, at - file.base, min(stop - file.base, file.length))
        rules = self._rules if live else self._fast_rules
        end: WalkEnd = walk(file.view(), span, rules, live, (self._record_ends, self._range_bytes))
        if live:
            file.check_length()  # zeros after the end of a truncated file are no end of the log
        return end

    def _ranges(self, file: MappedFile, begin: int, end: int, walked: WalkEnd) -> list[LogRange]:
        """Divide ``[begin, end)`` at the record ends that the walk noted."""
        record_ends = [file.base + int(at) for at in self._record_ends[: walked.cuts]]
        bounds = [begin, *[at for at in record_ends if begin < at < end], end]
        path = str(file.path)
        return [LogRange(a, b, path, file.base) for a, b in pairwise(bounds) if a < b]
