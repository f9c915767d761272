"""The result of a comparison: differences, in words, and counts of what was not compared."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.io.mapped_file import data_pieces, map_file
from store.layout import CQ_UNIT, EXT_UNIT, INDEX_ENTRY, PRE_BLANK_SIZE

NOTHING = "nothing (zeros)"

_MAPS_MAX = 256  # a map holds a descriptor
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a file differs from what the log yields.

    ``part`` is ``file``, ``unit``, ``ext unit``, ``header``, ``slot`` or ``entry``; ``index`` is
    the number of that unit, slot or entry in its file. Both values are given in words.
    """

    path: Path
    part: str
    index: int | None
    position: int | None
    expected: str
    actual: str

    def __str__(self) -> str:
        where = "" if self.part == "file" else f" {self.part}"
        if self.index is not None:
            where += f" {self.index}"
        if self.position is not None:
            where += f" (position {self.position})"
        return f"{self.path}:{where} expected {self.expected}, found {self.actual}"


@dataclass(frozen=True, slots=True)
class ComparisonPolicy:
    """What is compared, and what is only counted."""

    begin: int  # the physical offset from which the log is derived
    is_aged: bool = False  # the files begin below `begin`: what is older is only counted
    may_be_ahead: bool = False  # what follows the derived end is only counted
    by_broker: bool = False  # a restart may have doubled index entries and orphaned ext units


@dataclass(slots=True)
class Counts:
    """How much was compared, and how much of each kind was only counted."""

    units: int = 0  # compared
    entries: int = 0  # compared
    older_units: int = 0  # below the log's minimum
    stale_units: int = 0  # after their queue's real end
    dropped_units: int = 0  # older messages occupy their positions: the broker drops them
    displaced_queues: int = 0  # all units are below or above their queue offsets
    orphan_ext_units: int = 0  # no compared unit refers to them
    older_entries: int = 0  # below the log's minimum
    doubled_entries: int = 0  # of the last record before a restart, indexed twice
    stale_entries: int = 0  # of records that the log lost, or at or beyond its end


@dataclass(slots=True)
class Findings:
    """Collects differences: the first one in each part of each file."""

    counts: Counts = field(default_factory=Counts)
    _first: dict[tuple[Path, str], Difference] = field(default_factory=dict)

    def add(self, difference: Difference) -> None:
        """Add a difference, unless an earlier one in the same part of the file is known."""
        key = (difference.path, difference.part)
        known = self._first.get(key)
        if known is None or (known.index or 0) > (difference.index or 0):
            self._first[key] = difference

    def add_file(self, path: Path, expected: str, actual: str) -> None:
        """Add a difference of a file as a whole."""
        self.add(Difference(path, "file", None, None, expected, actual))

    def has_any(self) -> bool:
        """Return whether any difference has been found so far."""
        return bool(self._first)

    def differences(self) -> tuple[Difference, ...]:
        """Return the differences by file, then in the order of the file's parts."""
        parts = ("file", "header", "slot", "entry", "unit", "ext unit")
        found = self._first.values()
        return tuple(sorted(found, key=lambda d: (d.path, parts.index(d.part))))


class MapCache:
    """Read-only maps of the compared files; the most recently used ones stay open.

    ``get`` maps a file that should have a size; it adds a difference to ``findings`` and returns
    None if there is no such file.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.get = lru_cache(_MAPS_MAX)(partial(_map, findings))


def _map(findings: Findings, path: Path, size: int) -> NDArray[np.uint8] | None:
    if path.is_symlink() or not path.is_file():
        findings.add_file(path, f"a file of {size} bytes", describe_file(path))
        return None
    view = map_file(path)
    if len(view) != size:
        findings.add_file(path, f"a file of {size} bytes", f"{len(view)} bytes")
        return None
    return view


def describe_file(path: Path) -> str:
    """Describe a file as a whole; a symbolic link is not followed."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "no file"
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link, which is not followed"
    return f"{status.st_size} bytes" if stat.S_ISREG(status.st_mode) else "not a regular file"


def first_difference(expected: NDArray[np.uint8], actual: NDArray[np.uint8]) -> int:
    """Return the first position where two arrays of equal length differ, -1 if they do not."""
    for at in range(0, len(expected), _CHUNK):
        a, b = expected[at : at + _CHUNK], actual[at : at + _CHUNK]
        if not np.array_equal(a, b):
            return at + int(np.flatnonzero(a != b)[0])
    return -1


def first_data(path: Path, view: NDArray[np.uint8], begin: int) -> int:
    """Return the first position from ``begin`` on that is not zero, -1 if none; skip holes."""
    for start, stop in data_pieces(path, begin, len(view)):
        found = np.flatnonzero(view[start:stop])
        if len(found):
            return start + int(found[0])
    return -1


def describe_unit(raw: NDArray[np.uint8]) -> str:
    """Describe the 20 bytes of a consume queue unit."""
    unit = raw.view(CQ_UNIT)[0]
    offset, size, tags_code = (int(v) for v in unit.tolist())
    if (offset, size, tags_code) == (0, 0, 0):
        return NOTHING
    if (offset, size, tags_code) == (0, PRE_BLANK_SIZE, 0):
        return "a pre-fill unit"
    return f"commit log offset {offset}, size {size}, tags code {tags_code}"


def describe_ext_unit(raw: NDArray[np.uint8]) -> str:
    """Describe the 20 bytes of an ext unit."""
    if not raw.any():
        return NOTHING
    size, tags_code, stamp, bitmap = (int(v) for v in raw.view(EXT_UNIT)[0].tolist())
    text = f"size {size}, tags code {tags_code}, store timestamp {stamp}"
    return f"{text}, bitmap length {bitmap}"


def describe_entry(raw: NDArray[np.uint8]) -> str:
    """Describe the 20 bytes of an index entry."""
    if not raw.any():
        return NOTHING
    key_hash, offset, seconds, previous = (int(v) for v in raw.view(INDEX_ENTRY)[0].tolist())
    return (
        f"key hash {key_hash}, physical offset {offset}, time difference {seconds} s, "
        f"previous entry {previous}"
    )
