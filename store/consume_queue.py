"""One ConsumeQueue, read: the units of a topic's queue by queue offset (format notes §5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.layout import CQ_UNIT, CQ_UNIT_SIZE, PRE_BLANK_SIZE
from store.mapped_file import MappedFile, MappedFileQueue, written_prefix


@dataclass(frozen=True, slots=True)
class QueueTail:
    """The end of a queue's units and of its files, in bytes; the log offset it has seen."""

    end: int
    allocated: int
    max_physic_offset: int  # end offset of the last unit's message, -1 after pre-fill only


class ConsumeQueue:
    """The files of one queue. Offsets count units; ``refresh`` sees what was appended since."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self._queue = MappedFileQueue([directory], file_size)

    def refresh(self) -> None:
        """See files added or deleted since."""
        self._queue.refresh()

    @property
    def files(self) -> list[MappedFile]:
        """The files in order, as of the last refresh."""
        return self._queue.files

    def tail(self) -> QueueTail | None:
        """Return the queue's end, None if it holds no unit."""
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
        """Return the queue offset the next unit would have, 0 for an empty queue."""
        tail = self.tail()
        return tail.end // CQ_UNIT_SIZE if tail is not None else 0

    def min_offset(self, min_phy_offset: int) -> int:
        """Return the first queue offset whose message lies at or above ``min_phy_offset``.

        Pre-fill units do not count. With nothing left, the end of the queue
        (``ConsumeQueue.correctMinOffset`` of 5.x).
        """
        end = self.max_offset()
        low, high = (self.files[0].base // CQ_UNIT_SIZE if self.files else 0), end
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            stale = int(unit["size"]) == PRE_BLANK_SIZE
            if stale or int(unit["commit_log_offset"]) < min_phy_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def unit(self, offset: int) -> np.void:
        """Return the unit at a queue offset that is known to lie in the queue's files."""
        file = self._queue.find(offset * CQ_UNIT_SIZE)
        if file is None:
            raise IndexError(f"queue offset {offset} lies in no file of {self.directory}")
        value: np.void = units_in(file)[(offset * CQ_UNIT_SIZE - file.base) // CQ_UNIT_SIZE]
        return value

    def get_index_buffer(self, offset: int) -> NDArray[np.void] | None:
        """Return the units from ``offset`` to the end of that file, None if it is in no file."""
        at = offset * CQ_UNIT_SIZE
        file = self._queue.find(at)
        if file is None or offset < 0:
            return None
        units = written_units(file)[(at - file.base) // CQ_UNIT_SIZE :]
        return units if len(units) else None

    def roll_next_file(self, offset: int) -> int:
        """Return the first queue offset of the next file."""
        per_file = self.file_size // CQ_UNIT_SIZE
        return offset + per_file - offset % per_file


def queue_end(directory: Path, file_size: int) -> QueueTail | None:
    """Return the end of the queue in ``directory``, None if it has no unit."""
    if not directory.is_dir():
        return None
    return ConsumeQueue(directory, file_size).tail()


def units_in(file: MappedFile) -> NDArray[np.void]:
    """Return a file's bytes as units (whole ones)."""
    view = file.view()
    return view[: len(view) // CQ_UNIT_SIZE * CQ_UNIT_SIZE].view(CQ_UNIT)


def written_units(file: MappedFile) -> NDArray[np.void]:
    """Return the units written in a file."""
    units = units_in(file)[: file.data_end() // CQ_UNIT_SIZE]
    with file.reading_here_and_there():
        return units[: count_units(units)]


def count_units(units: NDArray[np.void]) -> int:
    """Count the units written in a file."""
    return written_prefix(units["size"])
