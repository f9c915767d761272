"""ConsumeQueueExt, compared: ext units at their places, or by what consume queue units refer to.

A root dispatched from its beginning by one dispatch has every ext unit at its place, and is
compared byte for byte. A restarted broker leaves orphans, which move all later ones; on an aged
root older ones come first. There an ext unit is compared through the address in its consume queue
unit, addresses must ascend, and every other ext unit must at least be well-formed.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.config import StoreConfig
from store.differences import (
    NOTHING,
    Difference,
    Findings,
    Terms,
    Views,
    ext_unit_words,
    first_data,
)
from store.layout import (
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_END_BLANK_SIZE,
    EXT_END_MARK,
    EXT_UNIT,
    EXT_UNIT_SIZE,
)
from store.mapped_file import file_name, written_prefix

_MARK = np.array(-1, EXT_END_MARK).tobytes()


class ExtComparison:
    """Compares the ext units of a root's queues. Directories are those of the root."""

    def __init__(self, config: StoreConfig, terms: Terms, findings: Findings) -> None:
        self.by_address = terms.is_aged or terms.by_broker
        self.file_size = config.mapped_file_size_consume_queue_ext
        self._per_file = (self.file_size - EXT_END_BLANK_SIZE) // EXT_UNIT_SIZE
        self._terms = terms
        self._findings = findings
        self._views = Views(findings)
        self._ends: dict[Path, int] = {}  # derived bytes by file
        self._referred: dict[Path, int] = defaultdict(int)  # compared by address, by directory
        self._last_address: dict[Path, int] = {}
        self._pending: dict[Path, dict[int, bytes]] = {}  # derived units by address

    def create(self, path: Path) -> None:
        """Know that the derivation has this file."""
        self._ends[path] = 0

    def write(self, path: Path, offset: int, data: bytes) -> None:
        """Compare derived ext units (or an end mark) with what lies at their place.

        By address they are only kept, until the consume queue units come that refer to them.
        """
        self._ends[path] = offset + len(data)
        if self.by_address:
            if data != _MARK:
                address = int(path.name) + offset + EXT_ADDRESS_BASE
                units = self._pending.setdefault(path.parent, {})
                for at in range(0, len(data), EXT_UNIT_SIZE):
                    units[address + at] = data[at : at + EXT_UNIT_SIZE]
            return
        view = self._views.get(path, self.file_size)
        if view is not None and view[offset : offset + len(data)].tobytes() != data:
            expected = np.frombuffer(data, np.uint8)
            at = int(np.flatnonzero(expected != view[offset : offset + len(data)])[0])
            at -= at % EXT_UNIT_SIZE
            self._tell(path, offset + at, _words(expected[at : at + EXT_UNIT_SIZE]), view)

    def judge(
        self, directory: Path, expected: NDArray[np.int64], actual: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Compare the ext units that derived and actual tags codes refer to; by address only.

        Tells which actual tags codes are an address that fits. What is wrong with an ext unit at
        such an address is told as a difference of its own.
        """
        units = self._pending.get(directory, {})
        fits: NDArray[np.bool_] = expected == actual
        for i in np.flatnonzero(expected <= EXT_ADDRESS_MAX):
            address, last = int(actual[i]), self._last_address.get(directory, EXT_ADDRESS_BASE - 1)
            fits[i] = last < address <= EXT_ADDRESS_MAX
            if fits[i]:
                self._last_address[directory] = address
                self._referred[directory] += 1
                self._compare_at(directory, address - EXT_ADDRESS_BASE, units[int(expected[i])])
        return fits

    def forget(self) -> None:
        """Forget the derived units kept for a batch."""
        self._pending.clear()

    def finish_file(self, path: Path) -> None:
        """Compare what no derived unit covers in an actual file; tell a file too many."""
        view = self._views.get(path, self.file_size)
        if view is None:
            return
        is_open = self.by_address or self._terms.may_be_ahead
        begin = 0 if self.by_address else self._ends.get(path, 0)
        count = self._count_well_formed(path, view, begin) if is_open else 0
        if not count and path not in self._ends:
            self._findings.tell_file(path, "no such file", f"{len(view)} bytes")
            return
        self._findings.counts.orphan_ext_units += count
        end = begin + count * EXT_UNIT_SIZE
        is_full = is_open and end == self._per_file * EXT_UNIT_SIZE
        if is_full and view[end : end + len(_MARK)].tobytes() == _MARK:
            end += len(_MARK)  # the next file has begun
        at = first_data(path, view, end)
        if at >= 0:
            self._tell(path, at - at % EXT_UNIT_SIZE, NOTHING, view)

    def finish(self) -> None:
        """Tell derived files that are not there; settle the count of orphans."""
        if self.by_address:
            self._findings.counts.orphan_ext_units -= sum(self._referred.values())
            return
        for path in self._ends:
            if not path.exists():
                self._findings.tell_file(path, f"a file of {self.file_size} bytes", "no file")

    def _compare_at(self, directory: Path, at: int, expected: bytes) -> None:
        """Compare the ext unit at byte ``at`` of a queue's ext files."""
        base = at - at % self.file_size
        path = directory / file_name(base)
        view = self._views.get(path, self.file_size)
        if view is None:
            return
        actual = view[at - base : at - base + EXT_UNIT_SIZE]
        if actual.tobytes() != expected:
            self._tell(path, at - base, _words(np.frombuffer(expected, np.uint8)), view)

    def _count_well_formed(self, path: Path, view: NDArray[np.uint8], begin: int) -> int:
        """Count the units written from ``begin`` on; tell the first that none of these can be."""
        units = view[begin : self._per_file * EXT_UNIT_SIZE].view(EXT_UNIT)
        count = written_prefix(units["size"])
        is_odd = (units["size"][:count] != EXT_UNIT_SIZE) | (units["bitmap_length"][:count] != 0)
        for i in np.flatnonzero(is_odd)[:1]:
            self._tell(path, begin + int(i) * EXT_UNIT_SIZE, "an ext unit without bitmap", view)
        return count

    def _tell(self, path: Path, at: int, expected: str, view: NDArray[np.uint8]) -> None:
        number = at // EXT_UNIT_SIZE
        raw = view[at : at + EXT_UNIT_SIZE]
        self._findings.tell(Difference(path, "ext unit", number, None, expected, _words(raw)))


def _words(raw: NDArray[np.uint8]) -> str:
    if len(raw) == EXT_UNIT_SIZE:
        return ext_unit_words(raw)
    return f"the bytes {raw.tobytes().hex()}" if raw.any() else NOTHING
