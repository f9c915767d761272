"""The files of one ConsumeQueue and the units in them, by queue offset (format notes §5.1).

A queue is dispatched in log order, so each unit's record lies behind the one before it. A unit
is taken for what it says only if it lies so between its neighbours: one that names another record
of its queue is found out by that.
"""

from __future__ import annotations

from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.errors import DamageError
from store.layout import CQ_UNIT, CQ_UNIT_SIZE, PRE_BLANK_SIZE, struct_of
from store.mapped_file import MappedFileQueue

_UNIT = struct_of(CQ_UNIT)
_THREE = struct_of(CQ_UNIT, CQ_UNIT, CQ_UNIT)
_CONF_HINT = "pass the broker.conf that these queues were made with (--broker-conf)"
_REBUILD_HINT = "consume queues can be rebuilt from the log"
_NO_UNIT = bytes(CQ_UNIT_SIZE)


class Unit(NamedTuple):
    """A unit, fields in on-disk order; the tags code may be an ext address."""

    commit_log_offset: int
    size: int
    tags_code: int


_ZEROS = Unit(0, 0, 0)


class Units(NamedTuple):
    """Consecutive units by column."""

    commit_log_offset: list[int]
    size: list[int]
    tags_code: NDArray[np.int64]


class QueueFiles:
    """The files, as of the last ``refresh``: units from ``begin`` to ``allocated`` have room."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.begin = self.allocated = 0
        self._stored = 0  # units up to here are stored; a file may have a hole behind them
        self.listing = 0  # counts how often the files were listed
        self._is_sound = False
        self._queue = MappedFileQueue([directory], file_size, are_sparse=True)
        self._check()

    def refresh(self) -> None:
        """See files added or deleted since. Raises DamageError, StoreIOError.

        Damage is a file of another size, and one that is missing between others.
        """
        if self._queue.refresh_if_changed() or not self._is_sound:
            self._check()

    def unit(self, offset: int) -> Unit:
        """Return the unit at a queue offset from ``begin`` to ``allocated``."""
        if not self._is_stored(offset):
            return _ZEROS
        data, at = self._find(offset)
        return Unit(*_UNIT.unpack_from(data, at))

    def raw(self, offset: int) -> bytes:
        """Return a unit's bytes, zeros where the files have no room for it."""
        if not self.begin <= offset < self.allocated or not self._is_stored(offset):
            return _NO_UNIT
        data, at = self._find(offset)
        return data[at : at + CQ_UNIT_SIZE]

    def stored(self) -> int:
        """Return the queue offset up to which units are stored now; behind it all are zeros.

        Raises StoreIOError.
        """
        self._stored = self.begin
        for file in reversed(self._queue.files):
            end = file.data_end()
            if end > 0:
                self._stored = (file.base + end) // CQ_UNIT_SIZE
                break
        return self._stored

    def _is_stored(self, offset: int) -> bool:
        return offset < self._stored or offset < self.stored()

    def ordered_unit(self, offset: int, end: int) -> tuple[int, int]:
        """Return offset and size of a unit that lies in log order between those below ``end``.

        Raises DamageError if it does not, or names no record.
        """
        data, at = self._find(offset)
        if CQ_UNIT_SIZE <= at <= self.file_size - 2 * CQ_UNIT_SIZE and offset + 1 < end:
            three = _THREE.unpack_from(data, at - CQ_UNIT_SIZE)
            before_begin, before_size, _, begin, size, _, after_begin, _, _ = three
            if max(before_begin + before_size, 0) <= begin < begin + size <= after_begin:
                return begin, size
        return self._ordered_unit(offset, end)

    def _ordered_unit(self, offset: int, end: int) -> tuple[int, int]:
        unit = self.unit(offset)
        if unit.size <= 0 or unit.size == PRE_BLANK_SIZE or unit.commit_log_offset < 0:
            raise self.damage(offset, f"the unit names {unit.size} bytes")
        if offset > self.begin:
            before = self.unit(offset - 1)
            is_told = before.size > 0 and before.size != PRE_BLANK_SIZE
            if is_told and before.commit_log_offset + before.size > unit.commit_log_offset:
                raise self._disorder(offset - 1)
        if offset + 1 < end:
            after = self.unit(offset + 1)
            if after.size > 0 and unit.commit_log_offset + unit.size > after.commit_log_offset:
                raise self._disorder(offset)
        return unit.commit_log_offset, unit.size

    def ordered_units(self, offset: int, count: int, end: int) -> Units:
        """Return up to ``count`` such units from ``offset`` on, to the end of that file."""
        data, at = self._find(offset)
        count = min(count, end - offset, (self.file_size - at) // CQ_UNIT_SIZE)
        units = np.frombuffer(data, CQ_UNIT, count, at)
        begins = units["commit_log_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        self.ordered_unit(offset, end)
        if count > 1:
            self.ordered_unit(offset + count - 1, end)
            is_ordered = (begins[:-1] + sizes[:-1] <= begins[1:]) & (sizes[:-1] > 0)
            if not is_ordered.all():
                raise self._disorder(offset + int(is_ordered.argmin()))
        return Units(begins.tolist(), sizes.tolist(), units["tags_code"])

    def damage(self, offset: int, reason: str) -> DamageError:
        """Return the error for damage at a queue offset."""
        at = offset * CQ_UNIT_SIZE
        begins = [f for f in self._queue.files if f.base <= at]
        path = begins[-1].path if begins else self.directory
        return DamageError(path, at, f"queue offset {offset}: {reason}", _REBUILD_HINT)

    def _disorder(self, offset: int) -> DamageError:
        return self.damage(offset, "this unit and the next one are not in the log's order")

    def _find(self, offset: int) -> tuple[mmap, int]:
        """Return the map that holds a unit, and its position there."""
        at = offset * CQ_UNIT_SIZE
        base = at - at % self.file_size
        data = self._queue.map_at(base)
        if data is None:
            raise IndexError(f"queue offset {offset} lies in no file of {self.directory}")
        return data, at - base

    def _check(self) -> None:
        """Raise DamageError unless files have their full size and follow on from one another."""
        self.begin = self.allocated = self._stored = 0
        self._is_sound = False
        self.listing += 1
        files = self._queue.files
        for file in files:
            if file.length != self.file_size:
                reason = f"the file has {file.length} bytes, not {self.file_size}"
                raise DamageError(file.path, file.base, reason, _CONF_HINT)
        for file, follower in pairwise(files):
            if follower.base != file.base + self.file_size:
                reason = f"files from {file.base + self.file_size} on are missing"
                raise DamageError(follower.path, follower.base, reason, _REBUILD_HINT)
        if files:
            self.begin = files[0].base // CQ_UNIT_SIZE
            self.allocated = (files[-1].base + self.file_size) // CQ_UNIT_SIZE
        self._is_sound = True
