"""The comparison of consume queues: takes the writes of ``ConsumeQueueStore``, compares the files.

Units are compared as they are derived. Everything that no derived unit covers (older units, stale
units, space that must be zero, extra files) is compared at the end. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.compare.extension import ExtComparison
from store.compare.findings import (
    NOTHING,
    ComparisonPolicy,
    Difference,
    MapCache,
    describe_file,
    describe_unit,
    first_data,
)
from store.config import StoreConfig
from store.io.disk import Bytes, Disk
from store.io.listing import list_entries
from store.io.mapped_file import file_name, is_mapped_file_name
from store.layout import (
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    CQ_UNIT,
    CQ_UNIT_SIZE,
    PRE_BLANK_SIZE,
    RECORD_MIN_SIZE,
)
from store.rocksdb import rocksdb_files

_STEP = 8  # units examined first: a hole may follow them, which is slow to map
_QUEUE_DEPTH = 2  # consumequeue/<topic>/<queue>


@dataclass(slots=True)
class _Queue:
    """The derived extent of one queue, in bytes; ``shift`` is actual minus derived position."""

    first_base: int
    allocated: int
    start: int = -1  # of its first unit, not counting pre-fill
    end: int = -1
    end_offset: int = 0  # physical offset where the record of its last unit ends
    shift: int = 0


class QueueComparison(Disk):
    """Compares what a ConsumeQueueStore on ``derived`` writes with the files of ``compared``.

    ``derived`` must not exist: nothing is read from it and nothing is created in it.
    """

    def __init__(
        self,
        compared: Path,
        derived: Path,
        config: StoreConfig,
        policy: ComparisonPolicy,
        views: MapCache,
    ) -> None:
        super().__init__()
        self._compared = compared
        self._derived = derived
        self._file_size = config.mapped_file_size_consume_queue
        self._size_max = config.mapped_file_size_commit_log
        self._has_ext = config.enable_consume_queue_ext
        self._policy = policy
        self._views, self._findings = views, views.findings
        self._ext = ExtComparison(config, policy, views)
        self._queues: dict[Path, _Queue] = {}

    def create(self, path: Path, size: int) -> None:
        """Record that the derivation has this file."""
        actual = self._actual(path)
        if self._is_ext(path):
            self._ext.create(actual)
            return
        base = int(path.name)
        queue = self._queues.setdefault(actual.parent, _Queue(base, base))
        queue.allocated = base + size

    def write(self, path: Path, offset: int, data: Bytes) -> None:
        """Compare derived units with the bytes at their position."""
        actual = self._actual(path)
        if self._is_ext(path):
            self._ext.write(actual, offset, bytes(data))
            return
        queue, at = self._queues[actual.parent], int(path.name) + offset
        units = np.frombuffer(data, CQ_UNIT)
        if units["size"][0] == PRE_BLANK_SIZE:
            # In an aged store, older units may take the place of pre-fill: finish compares them.
            if not self._policy.is_aged:
                self._compare(actual.parent, queue, at, units)
            return
        if queue.start < 0:
            dropped = self._count_dropped(actual.parent, at, units)
            self._findings.counts.dropped_units += dropped
            units, at = units[dropped:], at + dropped * CQ_UNIT_SIZE
            if not len(units):
                return
            if dropped:
                queue.first_base = at - at % self._file_size
            queue.start = at
            queue.shift = self._find_shift(actual.parent, at, units[0])
        queue.end = at + units.nbytes
        queue.end_offset = int(units["commit_log_offset"][-1]) + int(units["size"][-1])
        self._findings.counts.units += len(units)
        self._compare(actual.parent, queue, at, units)

    def end_batch(self) -> None:
        """Discard what was kept for the current batch."""
        self._ext.forget()

    def finish(self, end: int) -> None:
        """Compare the rest of the files; the log was derived up to ``end``."""
        for _, files in self._queue_directories(CONSUME_QUEUE_EXT_DIR):
            for path in files:
                if self._has_ext:
                    self._ext.finish_file(path)
                else:
                    self._add_extra_file(path)
        self._ext.finish()
        for directory, files in self._queue_directories(CONSUME_QUEUE_DIR):
            self._finish_queue(files, self._queues.get(directory), end)
        for directory, queue in self._queues.items():
            if queue.shift or queue.start < 0:
                continue  # its files have other names than derived; those with units are compared
            for base in range(queue.first_base, queue.allocated, self._file_size):
                path = directory / file_name(base)
                if not path.is_file():
                    self._findings.add_file(path, f"a file of {self._file_size} bytes", "no file")

    def end_of_older(self, directory: Path) -> tuple[int, int]:
        """Return the end of a queue's units below the log's minimum, and of their files, in bytes.

        Both are -1 if there are none.
        """
        span = (-1, -1)
        for path in list_entries(directory):
            if not is_mapped_file_name(path.name):
                continue
            view = self._views.get(path, self._file_size)
            count = self._count_older(view.view(CQ_UNIT)) if view is not None else 0
            if not count:
                break
            span = (int(path.name) + count * CQ_UNIT_SIZE, int(path.name) + self._file_size)
            if span[0] < span[1]:
                break
        return span

    def shift_of(self, directory: Path) -> int | None:
        """Return a queue's displacement from its derived position, None without derived units."""
        queue = self._queues.get(directory)
        return None if queue is None or queue.start < 0 else queue.shift

    # --- Units ------------------------------------------------------------------------------------

    def _compare(self, directory: Path, queue: _Queue, at: int, units: NDArray[np.void]) -> None:
        """Compare consecutive units, the first at byte ``at`` of the derived queue."""
        at += queue.shift
        if at < 0:
            return
        while len(units):
            in_file = at % self._file_size
            part = units[: (self._file_size - in_file) // CQ_UNIT_SIZE]
            path = directory / file_name(at - in_file)
            view = self._views.get(path, self._file_size)
            if view is not None:
                actual = view[in_file : in_file + part.nbytes].view(CQ_UNIT)
                differs = self._first_difference(directory, part, actual)
                if differs >= 0:
                    number = in_file // CQ_UNIT_SIZE + differs
                    raw = np.frombuffer(part[differs].tobytes(), np.uint8)
                    self._add_difference(path, number, describe_unit(raw), view)
            units, at = units[len(part) :], at + part.nbytes

    def _first_difference(
        self, directory: Path, expected: NDArray[np.void], actual: NDArray[np.void]
    ) -> int:
        if not (self._has_ext and self._ext.by_address):
            differs = expected != actual
        else:
            tags = [units["tags_code"].astype(np.int64) for units in (expected, actual)]
            ext_directory = (
                self._compared
                / CONSUME_QUEUE_EXT_DIR
                / directory.relative_to(self._compared / CONSUME_QUEUE_DIR)
            )
            differs = ~self._ext.compare_units(ext_directory, *tags)
            for name in ("commit_log_offset", "size"):
                differs |= expected[name] != actual[name]
        return int(np.argmax(differs)) if differs.any() else -1

    def _count_dropped(self, directory: Path, at: int, units: NDArray[np.void]) -> int:
        """Count the leading units of messages that the broker's rules drop.

        A message is dropped if the queue already extends beyond its queue offset (format notes
        §5.3). In an aged store, an older unit at its position shows this.
        """
        if not self._policy.is_aged:
            return 0
        count, units = 0, units[: self._count_absent(directory, units)]
        while count < len(units):
            in_file = (at + count * CQ_UNIT_SIZE) % self._file_size
            path = directory / file_name(at + count * CQ_UNIT_SIZE - in_file)
            view = self._views.get(path, self._file_size)
            if view is None:
                break
            actual = view[in_file:].view(CQ_UNIT)[: len(units) - count]
            older = _count_leading(
                actual, lambda chunk: self._is_old(chunk) & ~self._is_pre_fill(chunk)
            )
            count += older
            if older < len(actual):
                break
        return count

    def _count_absent(self, directory: Path, units: NDArray[np.void]) -> int:
        """Count the leading units of messages that have no unit anywhere in a queue."""
        absent = np.ones(len(units), np.bool_)
        for _, present in self._units_in(directory):
            absent &= ~np.isin(units["commit_log_offset"], present["commit_log_offset"])
        return int(np.argmin(absent)) if not absent.all() else len(units)

    def _find_shift(self, directory: Path, at: int, first: np.void) -> int:
        """Return the displacement of an aged queue's first unit from its queue offset.

        Gaps below the log's minimum moved all later units; they can no longer be derived.
        """
        if not self._policy.is_aged:
            return 0
        positions = []
        for base, units in self._units_in(directory):
            is_same = units["commit_log_offset"] == first["commit_log_offset"]
            numbers = np.flatnonzero(is_same & (units["size"] == first["size"]))
            positions += [base + int(i) * CQ_UNIT_SIZE for i in numbers[:1]]
        if not positions or at in positions:
            return 0
        self._findings.counts.displaced_queues += 1
        return positions[0] - at

    def _units_in(self, directory: Path) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yield the first byte and the units of each file of a queue that has the right size."""
        for path in filter(lambda p: is_mapped_file_name(p.name), list_entries(directory)):
            view = self._views.get(path, self._file_size)
            if view is not None:
                yield int(path.name), view.view(CQ_UNIT)

    # --- Everything that no derived unit covers ---------------------------------------------------

    def _finish_queue(self, files: list[Path], queue: _Queue | None, end: int) -> None:
        """Compare a queue's files outside its derived units; ``queue`` is None without any."""
        is_contiguous = True  # units fill the queue up to the current file
        for path in files:
            view = self._views.get(path, self._file_size)
            if view is None:
                continue
            units, base = view.view(CQ_UNIT), int(path.name)
            if queue is None or queue.start < 0:
                head = covered = self._count_older(units)
                # A file is created even for a message that the broker's rules then drop.
                may_be_empty = self._policy.is_aged and is_contiguous and path != files[0]
                is_known, limit = head > 0 or may_be_empty, end
            else:
                start, stop = (max(at + queue.shift - base, 0) for at in (queue.start, queue.end))
                head = min(start // CQ_UNIT_SIZE, len(units))
                covered = max(min(stop // CQ_UNIT_SIZE, len(units)), head)
                is_known = self._is_derived(queue, base)
                limit = queue.end_offset if self._policy.by_broker else end
            if self._policy.is_aged:
                is_known |= head > 0
                self._finish_head(path, view, head)
            stale = self._count_stale(units[covered:], limit) if is_contiguous else 0
            if not is_known and not stale:
                self._add_extra_file(path)
                continue
            is_contiguous = covered + stale == len(units)
            self._finish_tail(path, view, covered + stale)

    def _is_derived(self, queue: _Queue, base: int) -> bool:
        """Return whether the derived queue has a file at ``base``, or units if it is displaced."""
        first, last = queue.first_base, queue.allocated
        if queue.shift:
            first, last = queue.start + queue.shift - self._file_size + 1, queue.end + queue.shift
        return first <= base < last

    def _is_old(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        """Return which units can be of messages below the log's minimum, or pre-fill."""
        offset, size = units["commit_log_offset"], units["size"]
        is_unit = (offset >= 0) & (offset < self._policy.begin) & self._is_record_size(size)
        is_old: NDArray[np.bool_] = self._is_pre_fill(units) | is_unit
        return is_old

    def _is_pre_fill(self, units: NDArray[np.void]) -> NDArray[np.bool_]:
        pre_fill = np.zeros(1, CQ_UNIT)
        pre_fill["size"] = PRE_BLANK_SIZE
        is_pre_fill: NDArray[np.bool_] = units == pre_fill[0]
        return is_pre_fill

    def _is_record_size(self, size: NDArray[np.int32]) -> NDArray[np.bool_]:
        is_valid: NDArray[np.bool_] = (size >= RECORD_MIN_SIZE) & (size <= self._size_max)
        return is_valid

    def _count_older(self, units: NDArray[np.void]) -> int:
        """Count the leading units of messages below the log's minimum, pre-fill included."""
        return _count_leading(units, self._is_old) if self._policy.is_aged else 0

    def _count_stale(self, units: NDArray[np.void], limit: int) -> int:
        """Count the units after the queue's real end (format notes §5.6)."""
        if not self._policy.may_be_ahead:
            return 0

        def is_stale(chunk: NDArray[np.void]) -> NDArray[np.bool_]:
            is_beyond: NDArray[np.bool_] = chunk["commit_log_offset"] >= limit
            return is_beyond & self._is_record_size(chunk["size"])

        count = _count_leading(units, is_stale)
        self._findings.counts.stale_units += count
        return count

    def _finish_head(self, path: Path, view: NDArray[np.uint8], head: int) -> None:
        """Compare the units before the first derived unit of an aged queue."""
        units = view.view(CQ_UNIT)[:head]
        is_old = self._is_old(units)
        self._findings.counts.older_units += int((is_old & ~self._is_pre_fill(units)).sum())
        for i in np.flatnonzero(~is_old)[:1]:
            expected = f"a unit below the log's minimum {self._policy.begin}, or pre-fill"
            self._add_difference(path, int(i), expected, view)

    def _finish_tail(self, path: Path, view: NDArray[np.uint8], tail: int) -> None:
        """Check that only zeros follow a queue's end."""
        at = first_data(path, view, tail * CQ_UNIT_SIZE)
        if at >= 0:
            self._add_difference(path, at // CQ_UNIT_SIZE, NOTHING, view)

    def _queue_directories(self, kind: str) -> Iterator[tuple[Path, list[Path]]]:
        """Yield each queue's directory with its mapped files; report all other files.

        A queue's directory is two levels down, or deeper: old names may contain slashes. A link to
        a directory is reported, not followed. A RocksDB's files beside them are left out.
        """
        others = rocksdb_files(self._compared / kind)
        pending = [(self._compared / kind, 0)]
        while pending:
            directory, depth = pending.pop()
            entries = [p for p in list_entries(directory) if depth or p.name not in others]
            directories = [p for p in entries if p.is_dir()]
            files = [p for p in entries if not p.is_dir()]
            links = [p for p in directories if p.is_symlink()]
            pending += [(p, depth + 1) for p in reversed(directories) if p not in links]
            is_queue = depth >= _QUEUE_DEPTH
            for path in links + files:
                if path in links or not is_queue or not is_mapped_file_name(path.name):
                    self._add_extra_file(path)
            if is_queue:
                yield directory, [p for p in files if is_mapped_file_name(p.name)]

    def _actual(self, path: Path) -> Path:
        return self._compared / path.relative_to(self._derived)

    def _is_ext(self, path: Path) -> bool:
        return path.relative_to(self._derived).parts[0] == CONSUME_QUEUE_EXT_DIR

    def _add_extra_file(self, path: Path) -> None:
        self._findings.add_file(path, "no such file", describe_file(path))

    def _add_difference(
        self, path: Path, number: int, expected: str, view: NDArray[np.uint8]
    ) -> None:
        """Report that unit ``number`` of a file is not the expected one."""
        raw = view[number * CQ_UNIT_SIZE : (number + 1) * CQ_UNIT_SIZE]
        position = int(path.name) // CQ_UNIT_SIZE + number
        self._findings.add(Difference(path, "unit", number, position, expected, describe_unit(raw)))


def _count_leading(
    units: NDArray[np.void], holds: Callable[[NDArray[np.void]], NDArray[np.bool_]]
) -> int:
    """Count the leading units that satisfy ``holds``; a large hole may follow them."""
    at, step = 0, _STEP
    while at < len(units):
        flags = holds(units[at : at + step])
        if not flags.all():
            return at + int(np.argmin(flags))
        at, step = at + step, 4 * step
    return len(units)
