"""One ConsumeQueue: its files, and their units by position (format notes §5).

A dispatch appends units in log order: each record begins at or after the end of the previous one.
Reads accept a unit only if it is in order with its neighbours, which detects a unit that refers to
another record of its queue.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.errors import DamageError
from store.io.mapped_file import MappedFile, MappedFileQueue, file_name, intact
from store.layout import CQ_UNIT, CQ_UNIT_SIZE, PRE_BLANK_SIZE, struct_of

_UNIT = struct_of(CQ_UNIT)
_THREE = struct_of(CQ_UNIT, CQ_UNIT, CQ_UNIT)
_REBUILD_HINT = (
    "reput rebuild STORE --output OUTPUT, with the options of this store, rebuilds it from the log"
)
_CONF_HINT = "pass the broker.conf that these queues were written with (--broker-conf)"
_NO_UNIT = bytes(CQ_UNIT_SIZE)


class Unit(NamedTuple):
    """A unit, fields in on-disk order; the tags code may be an ext address."""

    commit_log_offset: int
    size: int
    tags_code: int


_ZEROS = Unit(0, 0, 0)


class UnitColumns(NamedTuple):
    """Consecutive units by column."""

    commit_log_offset: list[int]
    size: list[int]
    tags_code: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QueueTail:
    """The end of a queue's units and of its files, in bytes, and of its last record in the log."""

    end: int
    allocated: int
    max_physic_offset: int  # -1 if the last unit is pre-fill


class ConsumeQueue:
    """The files of one queue as of the last ``refresh``. Not thread-safe.

    A unit's position is its number in the queue; the queue offset that its message stores may be
    another one (§5.3). The files cover the positions ``begin`` to ``allocated``. Before a single
    unit is read, ``check`` or ``refresh`` must have found the files complete.
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.begin = self.allocated = 0
        self.listing = 0  # incremented each time the files are listed
        self._stored = 0  # units below it are stored; a file may end in a hole
        self._is_checked = False
        self._queue = MappedFileQueue([directory], file_size, are_sparse=True)
        self._reset_listing()

    # --- the files --------------------------------------------------------------------------------

    @property
    def files(self) -> list[MappedFile]:
        """The files in order."""
        return self._queue.files

    def refresh(self) -> None:
        """Reload the list of files and check them, if they may have changed.

        Raises DamageError, StoreIOError.
        """
        if self._queue.refresh_if_changed():
            self._reset_listing()
        if not self._is_checked:
            self.check()

    def check(self) -> None:
        """Raise DamageError if a file has the wrong size or is missing between others."""
        for file in self.files:
            if file.length != self.file_size:
                reason = f"the file has {file.length} bytes, not {self.file_size}"
                raise DamageError(file.path, file.base, reason, f"{_REBUILD_HINT}, or {_CONF_HINT}")
        for file, follower in pairwise(self.files):
            if follower.base != file.base + self.file_size:
                reason = f"files from {file.base + self.file_size} on are missing"
                raise DamageError(follower.path, follower.base, reason, _REBUILD_HINT)
        self._is_checked = True

    def damage(self, position: int, reason: str) -> DamageError:
        """Return the error for damage at a position."""
        at = position * CQ_UNIT_SIZE
        begins = [f for f in self.files if f.base <= at]
        path = begins[-1].path if begins else self.directory
        return DamageError(path, at, f"position {position}: {reason}", _REBUILD_HINT)

    def _reset_listing(self) -> None:
        files = self.files
        self.begin = files[0].base // CQ_UNIT_SIZE if files else 0
        self.allocated = (files[-1].base + self.file_size) // CQ_UNIT_SIZE if files else 0
        self.listing += 1
        self._stored = 0
        self._is_checked = False

    # --- the bounds -------------------------------------------------------------------------------

    def tail(self) -> QueueTail | None:
        """Return the tail of the queue, None if it has no unit."""
        for file in reversed(self.files):
            units = written_units(file)
            if len(units):
                last = units[-1]
                size = int(last["size"])
                known = -1 if size == PRE_BLANK_SIZE else int(last["commit_log_offset"]) + size
                allocated = self.files[-1].base + self.file_size
                return QueueTail(file.base + len(units) * CQ_UNIT_SIZE, allocated, known)
        return None

    def max_offset(self) -> int:
        """Return the position of the next unit, 0 for an empty queue."""
        tail = self.tail()
        return tail.end // CQ_UNIT_SIZE if tail is not None else 0

    def min_offset(self, min_phy_offset: int, end: int) -> int:
        """Return the first position whose record begins at or above ``min_phy_offset``.

        ``end`` if no unit below it does; pre-fill units do not count
        (``ConsumeQueue.correctMinOffset`` of 5.x).
        """

        def is_within(position: int) -> bool:
            unit = self.unit(position)
            return unit.size != PRE_BLANK_SIZE and unit.commit_log_offset >= min_phy_offset

        return self.begin + bisect_left(range(self.begin, end), True, key=is_within)

    def stored(self) -> int:
        """Return the position up to which units are stored; all after it are zeros.

        Raises StoreIOError.
        """
        self._stored = self.begin
        for file in reversed(self.files):
            end = file.data_end()
            if end > 0:
                self._stored = (file.base + end) // CQ_UNIT_SIZE
                break
        return self._stored

    # --- units ------------------------------------------------------------------------------------

    def unit(self, position: int) -> Unit:
        """Return the unit at a position from ``begin`` to ``allocated``."""
        if not self._is_stored(position):
            return _ZEROS
        data, at = self._find(position)
        return Unit(*_UNIT.unpack_from(data, at))

    def byte_in_file(self, position: int) -> tuple[Path, int]:
        """Return the file of a unit, and its first byte there."""
        at = position * CQ_UNIT_SIZE
        base = at - at % self.file_size
        return self.directory / file_name(base), at - base

    def message_bytes(self, begin: int, end: int) -> int:
        """Return the sum of the sizes of the units from ``begin`` to ``end``, without pre-fill."""
        total = 0
        for file in self.files:
            first = max(begin - file.base // CQ_UNIT_SIZE, 0)
            last = min(end, self.stored()) - file.base // CQ_UNIT_SIZE
            if first < last and first < file.length // CQ_UNIT_SIZE:
                sizes = units_in(file)["size"][first:last]
                total += int(sizes[sizes != PRE_BLANK_SIZE].sum(dtype=np.int64))
        return total

    def raw(self, position: int) -> bytes:
        """Return a unit's bytes, zeros where the files do not cover it."""
        if not self.begin <= position < self.allocated or not self._is_stored(position):
            return _NO_UNIT
        data, at = self._find(position)
        return data[at : at + CQ_UNIT_SIZE]

    def ordered_unit(self, position: int, end: int) -> tuple[int, int]:
        """Return offset and size of a unit, checked for log order with neighbours below ``end``.

        Raises DamageError if the unit is out of order or refers to no record.
        """
        data, at = self._find(position)
        if CQ_UNIT_SIZE <= at <= self.file_size - 2 * CQ_UNIT_SIZE and position + 1 < end:
            three = _THREE.unpack_from(data, at - CQ_UNIT_SIZE)
            before_begin, before_size, _, begin, size, _, after_begin, _, _ = three
            if max(before_begin + before_size, 0) <= begin < begin + size <= after_begin:
                return begin, size
        return self._ordered_unit(position, end)

    def ordered_units(self, position: int, count: int, end: int) -> UnitColumns:
        """Return up to ``count`` units from a position to the end of its file, checked likewise."""
        data, at = self._find(position)
        count = min(count, end - position, (self.file_size - at) // CQ_UNIT_SIZE)
        units = np.frombuffer(data, CQ_UNIT, count, at)
        begins = units["commit_log_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        self.ordered_unit(position, end)
        if count > 1:
            self.ordered_unit(position + count - 1, end)
            is_ordered = (begins[:-1] + sizes[:-1] <= begins[1:]) & (sizes[:-1] > 0)
            if not is_ordered.all():
                raise self._disorder(position + int(is_ordered.argmin()))
        return UnitColumns(begins.tolist(), sizes.tolist(), units["tags_code"])

    def _ordered_unit(self, position: int, end: int) -> tuple[int, int]:
        unit = self.unit(position)
        if unit.size <= 0 or unit.size == PRE_BLANK_SIZE or unit.commit_log_offset < 0:
            raise self.damage(position, f"the unit names {unit.size} bytes")
        if position > self.begin:
            before = self.unit(position - 1)
            has_record = before.size > 0 and before.size != PRE_BLANK_SIZE
            if has_record and before.commit_log_offset + before.size > unit.commit_log_offset:
                raise self._disorder(position - 1)
        if position + 1 < end:
            after = self.unit(position + 1)
            if after.size > 0 and unit.commit_log_offset + unit.size > after.commit_log_offset:
                raise self._disorder(position)
        return unit.commit_log_offset, unit.size

    def _disorder(self, position: int) -> DamageError:
        return self.damage(position, "this unit and the next one are not in log order")

    def _is_stored(self, position: int) -> bool:
        return position < self._stored or position < self.stored()

    def _find(self, position: int) -> tuple[mmap, int]:
        """Return the map that holds a unit, and the unit's position in it."""
        at = position * CQ_UNIT_SIZE
        base = at - at % self.file_size
        data = self._queue.map_at(base)
        if data is None:
            raise IndexError(f"position {position} is in no file of {self.directory}")
        return data, at - base


@intact()
def queue_tail(directory: Path, file_size: int) -> QueueTail | None:
    """Return the tail of the queue in ``directory``, None if it has no unit."""
    if not directory.is_dir():
        return None
    return ConsumeQueue(directory, file_size).tail()


def units_in(file: MappedFile) -> NDArray[np.void]:
    """Return the complete units of a file."""
    view = file.view()
    return view[: len(view) // CQ_UNIT_SIZE * CQ_UNIT_SIZE].view(CQ_UNIT)


def written_units(file: MappedFile) -> NDArray[np.void]:
    """Return the units written in a file, with read-ahead enabled. Raises StoreIOError."""
    units = units_in(file)[: file.data_end() // CQ_UNIT_SIZE]
    units = units[: written_prefix(units["size"])]
    file.read_ahead(units.nbytes)
    return units


def written_prefix(sizes: NDArray[Any]) -> int:
    """Count the leading positive sizes of a file's units by bisection; unwritten space is zero."""
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        if sizes[middle] > 0:
            low = middle + 1
        else:
            high = middle
    return low
