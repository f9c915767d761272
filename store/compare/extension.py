"""The comparison of ConsumeQueueExt, by position or by the addresses in consume queue units.

In an OUTPUT that one dispatch wrote from the start, every ext unit is at its derived position, so
the files are compared byte for byte. A restarted broker leaves orphans, which move all later ext
units, and an aged store begins with older ones. There, an ext unit is compared through the address
in its consume queue unit, addresses must ascend, and every other ext unit must at least be
well-formed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.compare.findings import (
    NOTHING,
    ComparisonPolicy,
    Difference,
    MapCache,
    describe_ext_unit,
    first_data,
)
from store.config import StoreConfig
from store.consumequeue.extension import END_MARK, ExtFiles
from store.consumequeue.files import written_prefix
from store.io.mapped_file import file_name
from store.layout import (
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_UNIT,
    EXT_UNIT_SIZE,
)


class ExtComparison:
    """Compares the ext units of queues. All directories are in the compared one."""

    def __init__(self, config: StoreConfig, policy: ComparisonPolicy, views: MapCache) -> None:
        self.by_address = policy.is_aged or policy.by_broker
        files = ExtFiles(config)
        self.file_size, self._per_file = files.file_size, files.per_file
        self._policy = policy
        self._views, self._findings = views, views.findings
        self._ends: dict[Path, int] = {}  # derived bytes by file
        # Numbers of ext units by directory: derived, compared by address, well-formed in the file.
        self._derived: Counter[Path] = Counter()
        self._referred: Counter[Path] = Counter()
        self._well_formed: Counter[Path] = Counter()
        self._moved: set[Path] = set()  # directories whose ext units are not where derived
        self._in_place: dict[Path, list[Difference]] = defaultdict(list)  # by directory
        self._last_address: dict[Path, int] = {}
        self._pending: dict[Path, dict[int, bytes]] = {}  # derived units by address

    def create(self, path: Path) -> None:
        """Record that the derivation has this file."""
        self._ends[path] = 0

    def write(self, path: Path, offset: int, data: bytes) -> None:
        """Compare derived ext units (or an end mark) with the bytes at their position.

        In a comparison by address, a difference counts only if all of the queue's ext units turn
        out to be in place; derived ext units are kept until the consume queue units that refer to
        them are compared.
        """
        self._ends[path] = offset + len(data)
        if self.by_address and data != END_MARK:
            address = int(path.name) + offset + EXT_ADDRESS_BASE
            units = self._pending.setdefault(path.parent, {})
            self._derived[path.parent] += len(data) // EXT_UNIT_SIZE
            for at in range(0, len(data), EXT_UNIT_SIZE):
                units[address + at] = data[at : at + EXT_UNIT_SIZE]
        if self.by_address and (path.parent in self._moved or not path.is_file()):
            return
        view = self._views.get(path, self.file_size)
        if view is None or view[offset : offset + len(data)].tobytes() == data:
            return
        expected = np.frombuffer(data, np.uint8)
        at = int(np.flatnonzero(expected != view[offset : offset + len(data)])[0])
        at -= at % EXT_UNIT_SIZE
        words = _describe(expected[at : at + EXT_UNIT_SIZE])
        difference = _difference(path, offset + at, words, view)
        if self.by_address:
            self._in_place[path.parent].append(difference)
        else:
            self._findings.add(difference)

    def compare_units(
        self, directory: Path, expected: NDArray[np.int64], actual: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Compare the ext units that derived and actual tags codes refer to; by address only.

        Returns which actual tags codes are correct. If the address is the expected one but the
        ext unit there is not, the difference is that of the ext unit.
        """
        units = self._pending.get(directory, {})
        fits: NDArray[np.bool_] = expected == actual
        for i in np.flatnonzero(expected <= EXT_ADDRESS_MAX):
            if not fits[i]:
                self._moved.add(directory)
            address, last = int(actual[i]), self._last_address.get(directory)
            if address > EXT_ADDRESS_MAX or (last is not None and address <= last):
                fits[i] = False
                continue
            is_natural = fits[i] or (last is not None and address == self._after(last))
            unit = units[int(expected[i])]
            fits[i] = self._compare_at(directory, address, unit, is_natural=bool(is_natural))
            if fits[i]:
                self._last_address[directory] = address
                self._referred[directory] += 1
        return fits

    def forget(self) -> None:
        """Discard the derived ext units kept for a batch."""
        self._pending.clear()

    def finish_file(self, path: Path) -> None:
        """Compare the rest of an actual file, after the derived ext units; report an extra file."""
        view = self._views.get(path, self.file_size)
        if view is None:
            return
        is_open = self.by_address or self._policy.may_be_ahead
        begin = 0 if self.by_address else self._ends.get(path, 0)
        count = self._count_well_formed(path, view, begin) if is_open else 0
        if not count and path not in self._ends:
            self._findings.add_file(path, "no such file", f"{len(view)} bytes")
            return
        self._well_formed[path.parent] += count
        end = begin + count * EXT_UNIT_SIZE
        is_full = is_open and end == self._per_file * EXT_UNIT_SIZE
        if is_full and view[end : end + len(END_MARK)].tobytes() == END_MARK:
            end += len(END_MARK)  # the next file exists
        at = first_data(path, view, end)
        if at >= 0:
            self._findings.add(_difference(path, at - at % EXT_UNIT_SIZE, NOTHING, view))

    def finish(self) -> None:
        """Report missing files; complete the count of orphans."""
        for directory, count in self._well_formed.items():
            compared = self._referred if directory in self._moved else self._derived
            orphans = max(count - compared[directory], 0)
            self._findings.counts.orphan_ext_units += orphans
        for directory, differences in self._in_place.items():
            for difference in differences if directory not in self._moved else ():
                self._findings.add(difference)
        for path in self._ends:
            if path.parent not in self._moved and not path.exists():
                self._findings.add_file(path, f"a file of {self.file_size} bytes", "no file")

    def _after(self, address: int) -> int:
        """Return the address of the ext unit that follows the one at ``address``."""
        at = address - EXT_ADDRESS_BASE + EXT_UNIT_SIZE
        if at % self.file_size >= self._per_file * EXT_UNIT_SIZE:
            at += self.file_size - at % self.file_size
        return at + EXT_ADDRESS_BASE

    def _compare_at(
        self, directory: Path, address: int, expected: bytes, *, is_natural: bool
    ) -> bool:
        """Compare the ext unit at an address; return whether the address can be correct."""
        at = address - EXT_ADDRESS_BASE
        base = at - at % self.file_size
        path = directory / file_name(base)
        view = self._views.get(path, self.file_size) if path.is_file() or is_natural else None
        if view is None:
            return is_natural
        actual = view[at - base : at - base + EXT_UNIT_SIZE]
        if actual.tobytes() == expected:
            return True
        if is_natural:
            words = _describe(np.frombuffer(expected, np.uint8))
            self._findings.add(_difference(path, at - base, words, view))
        return is_natural

    def _count_well_formed(self, path: Path, view: NDArray[np.uint8], begin: int) -> int:
        """Count the ext units written from ``begin`` on; report the first malformed one."""
        units = view[begin : self._per_file * EXT_UNIT_SIZE].view(EXT_UNIT)
        count = written_prefix(units["size"])
        is_odd = (units["size"][:count] != EXT_UNIT_SIZE) | (units["bitmap_length"][:count] != 0)
        for i in np.flatnonzero(is_odd)[:1]:
            at = begin + int(i) * EXT_UNIT_SIZE
            self._findings.add(_difference(path, at, "an ext unit without a bitmap", view))
        return count


def _difference(path: Path, at: int, expected: str, view: NDArray[np.uint8]) -> Difference:
    number, raw = at // EXT_UNIT_SIZE, view[at : at + EXT_UNIT_SIZE]
    return Difference(path, "ext unit", number, None, expected, _describe(raw))


def _describe(raw: NDArray[np.uint8]) -> str:
    if len(raw) == EXT_UNIT_SIZE:
        return describe_ext_unit(raw)
    return f"the bytes {raw.tobytes().hex()}" if raw.any() else NOTHING
