"""The log in parts that can be scanned each by itself, in any order.

A part is cut by bytes, not by records, so that planning reads next to nothing of the log. Its first
record is the first position at or behind ``begin`` where a record passes the whole acceptance rule,
its physical offset included; its last record is the last one that begins before ``end``. That the
parts meet, which a message that holds a copy of a record could prevent, is seen when all are
scanned (``find_break``). The live end is the planner's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.commit_log import CommitLog
from store.config import StoreConfig
from store.dispatch_request import DispatchRequests
from store.kernels import record as rk
from store.kernels.log_walk import find_record
from store.log_plan import LogPlanner
from store.mapped_file import MappedFile, data_pieces, map_file
from store.scan import Damage, Scanner, inner_batch_error, scan_rules
from store.state_codec import Count, Offset, PathText

PART_BYTES = 64 * 1024 * 1024
_TAIL_BYTES = 8 * 1024 * 1024  # of the last file, planned record by record
_SETTLE_SECONDS = 0.05  # a failed record is read once more after this
_ZEROS_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of the log; ``is_boundary``: a record begins at ``begin``, known beforehand."""

    number: Count
    path: PathText
    base: Offset
    begin: Offset
    end: Offset
    is_boundary: bool


@dataclass(frozen=True, slots=True)
class LogParts:
    """The parts that tile ``[begin, end)`` of the log, and the damage at ``end``, if any.

    ``by_records``: they were cut along the chain of records, so that they must meet.
    """

    begin: Offset
    end: Offset
    parts: tuple[LogPart, ...]
    damage: Damage | None = None
    by_records: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one part holds, between two record boundaries; ``fault``: it ends early."""

    begin: int
    end: int
    requests: list[DispatchRequests]
    fault: Damage | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """Where the parts of a log do not meet, and the damage that explains it, if that does."""

    at: int
    damage: Damage | None


def cut(
    log: CommitLog, planner: LogPlanner, begin: int, *, part_bytes: int = PART_BYTES
) -> LogParts:
    """Cut the log from ``begin``, a record boundary, to its end now."""
    log.refresh()
    at, parts = begin, list[LogPart]()
    last = log.last_file()
    while last is not None and at < last.base:
        file = log.find(at)
        if file is None or file.length != log.file_size:
            return _planned(planner, begin, at, parts)
        parts += _cut_file(file, at, log.file_size, part_bytes, len(parts))
        at = file.base + log.file_size
    if last is not None and at < last.base + last.length and last.length == log.file_size:
        tail = max(_find_tail(log, last, min(_TAIL_BYTES, part_bytes)), at)
        parts += _cut_file(last, at, tail - last.base, part_bytes, len(parts))
        at = tail
    return _planned(planner, begin, at, parts)


def cut_by_records(
    log: CommitLog, planner: LogPlanner, begin: int, *, until: int, part_bytes: int = PART_BYTES
) -> LogParts:
    """Cut ``[begin, until)`` at the records that the chain leads to: slower, and always right."""
    parts, at = list[LogPart](), begin
    while at < until:
        found = _planned(planner, at, at, [], until=min(at + part_bytes, until))
        parts += [replace(part, number=len(parts) + n) for n, part in enumerate(found.parts)]
        if found.damage is not None:
            return LogParts(begin, found.end, tuple(parts), found.damage, True)
        if found.end == at:
            break
        at = found.end
    log.refresh()
    return LogParts(begin, at, tuple(parts), None, True)


def find_break(scanned: Sequence[tuple[LogPart, Scanned]], end: int) -> Break | None:
    """Return the first place where parts, given in order, do not meet; ``end`` is the last's."""
    for n, (_, found) in enumerate(scanned):
        after = scanned[n + 1][1].begin if n + 1 < len(scanned) else end
        if found.fault is not None:
            return Break(found.end, found.fault)
        if found.end != after:
            return Break(min(found.end, after), None)
    return None


class PartScanner:
    """Scans parts of one log; holds the scanner's buffers, so use one a thread."""

    def __init__(self, config: StoreConfig) -> None:
        self._scanner = Scanner(config)
        self._file_size = config.mapped_file_size_commit_log

    def scan(self, part: LogPart) -> Scanned:
        """Scan a part. A record that fails, also when read once more, ends it with a fault.

        Raises UnsupportedFormatError for an inner batch, StoreIOError.
        """
        view = map_file(Path(part.path))
        at, end = part.begin - part.base, min(part.end - part.base, len(view))
        if not part.is_boundary and at < end:
            found = int(find_record(view, (part.base, at, len(view)), self._scanner.rules))
            at = found if found >= 0 else len(view)
        begin, requests, retried = part.base + at, list[DispatchRequests](), -1
        while at < end:
            reason = rk.OK
            for chunk, why in self._scanner.chunks(view, part.base, at, end):
                reason = why
                at = chunk.end - part.base
                if len(chunk):
                    requests.append(chunk)
            if reason == rk.BLANK:
                at = self._file_size
            if reason in (rk.OK, rk.BLANK):
                break
            if retried == at:
                return Scanned(begin, part.base + at, requests, self._fault(part, at, reason))
            retried = at
            time.sleep(_SETTLE_SECONDS)
        return Scanned(begin, part.base + at, requests)

    def _fault(self, part: LogPart, at: int, reason: int) -> Damage:
        if reason == rk.INNER_BATCH:
            raise inner_batch_error(part.path, part.base + at)
        end = part.base + self._file_size
        return Damage(part.base + at, end, part.path, rk.REASONS[reason])


def _cut_file(
    file: MappedFile, begin: int, end: int, part_bytes: int, first: int
) -> Iterator[LogPart]:
    """Yield the parts of a file from the offset ``begin`` to the position ``end``."""
    bounds = [*range(begin - file.base, end, part_bytes), end]
    path = str(file.path)
    for n, (a, b) in enumerate(pairwise(bounds)):
        if a < b:
            yield LogPart(first + n, path, file.base, file.base + a, file.base + b, n == 0)


def _planned(
    planner: LogPlanner, begin: int, at: int, parts: list[LogPart], *, until: int = 1 << 62
) -> LogParts:
    """Add what the planner finds from ``at`` on."""
    plan, damage = planner.plan(at, until=until), None
    for part in plan.ranges:
        if part.gap:
            damage = Damage(part.begin, part.end, part.path, part.gap, part.is_lost)
            break
        parts.append(LogPart(len(parts), part.path, part.base, part.begin, part.end, True))
    return LogParts(begin, parts[-1].end if parts else begin, tuple(parts), damage)


def _find_tail(log: CommitLog, file: MappedFile, size: int) -> int:
    """Return where a record begins about ``size`` bytes before the last file's data end."""
    view = file.view()
    end = _data_end(file, view)
    at = max(end - size, 0)
    found = int(find_record(view, (file.base, at, end), scan_rules(log.config))) if at else 0
    return file.base + max(found, 0)


def _data_end(file: MappedFile, view: NDArray[np.uint8]) -> int:
    """Return a position behind which a file is all zeros; holes are not read."""
    end = 0
    for _, stop in data_pieces(file.path, 0, file.length):
        end = stop
    while end and not view[max(end - _ZEROS_STEP, 0) : end].any():
        end = max(end - _ZEROS_STEP, 0)
    return end
