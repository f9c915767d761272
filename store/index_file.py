"""One IndexFile, read: a hash index of keys over the log (format notes §8.1, §8.6).

The slot of a key's hash names the newest entry of a chain; each entry names the one before it in
the same slot, so numbers along a chain only fall. A chain that does otherwise is damage.

Header, slots and entries lie as ``store.layout`` says. An entry has only the hash of its key:
whoever asks confirms each answer against the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import java, layout
from store.config import StoreConfig
from store.errors import DamageError, StoreIOError
from store.mapped_file import map_file

_SECOND_MS = 1000
_SECONDS_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Fields in on-disk order; store times in ms, physical offsets; a count of 0 is read as 1."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int


class IndexEntry(NamedTuple):
    """One entry, fields in on-disk order."""

    key_hash: int
    phy_offset: int
    time_diff_seconds: int
    prev_index: int


@dataclass(frozen=True, slots=True)
class IndexBound:
    """What of a file counts while a dispatch may be at work on it: its first ``count`` entries.

    They are the ones below ``phy_offset``; what lies beyond may be half-written.
    """

    phy_offset: int
    count: int


class IndexFile:
    """One index file, mapped when first looked at. Raises DamageError, StoreIOError."""

    def __init__(self, path: Path, config: StoreConfig, bound: IndexBound | None = None) -> None:
        self.path = path
        self.bound = bound
        self._slot_num = config.max_hash_slot_num
        self._index_num = config.max_index_num
        self._bytes: NDArray[np.uint8] | None = None

    def header(self) -> IndexHeader:
        """Return the header as it is now."""
        raw = self._view()[: layout.INDEX_HEADER_SIZE].view(layout.INDEX_HEADER)[0]
        header = IndexHeader(*(int(value) for value in raw.tolist()))
        if not 0 <= header.index_count <= self._index_num:
            reason = f"its header counts {header.index_count} entries of {self._index_num}"
            raise DamageError(self.path, 0, reason)
        # Java parity: IndexHeader.load reads a count that was never written as 1.
        return header if header.index_count else _with_count_1(header)

    def entry(self, number: int) -> IndexEntry:
        """Return an entry by its number, which is 1 to ``maxIndexNum - 1``."""
        at = layout.index_entry_at(number, self._slot_num)
        raw = self._view()[at : at + layout.INDEX_ENTRY_SIZE].view(layout.INDEX_ENTRY)[0]
        return IndexEntry(*raw.tolist())

    def select_phy_offset(self, key_hash: int, *, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash, newest first, repeats included.

        Left out are entries whose message was surely not stored in ``[begin_ms, end_ms]``: an
        entry knows its time to the second. Unlike a broker's selectPhyOffset this does not stop
        at the first entry that is too old, and takes both ends of that second, so that no message
        in range is missed where the clock stepped back or a file begins.
        """
        header = self.header()
        number = self._slot(key_hash % self._slot_num, header)
        while number:
            entry = self.entry(number)
            self._check(number, entry)
            is_there = self.bound is None or entry.phy_offset < self.bound.phy_offset
            if is_there and entry.key_hash == key_hash:
                earliest, latest = _stored_between(number, entry, header)
                if earliest <= end_ms and latest >= begin_ms:
                    yield entry.phy_offset
            number = entry.prev_index

    def _slot(self, slot: int, header: IndexHeader) -> int:
        """Return the number of a slot's newest entry, 0 if it has none."""
        at = layout.index_slot_at(slot)
        raw = self._view()[at : at + layout.INDEX_SLOT_SIZE].view(layout.INDEX_SLOT)
        number = int(raw[0])
        # While a dispatch is at work on the file the slots run ahead of its header.
        count = self._index_num - 1 if self.bound is not None else header.index_count
        if 0 <= number <= min(count, self._index_num - 1):
            return number
        if 0 <= number <= min(self.header().index_count, self._index_num - 1):
            return number  # a broker at work: the count has followed meanwhile
        reason = f"slot {slot} names entry {number}, the file has {header.index_count - 1}"
        raise DamageError(self.path, at, reason)

    def _check(self, number: int, entry: IndexEntry) -> None:
        """Raise DamageError if an entry cannot be one that was put here."""
        reason = entry_fault(number, entry)
        if (
            not reason
            and self.bound is not None
            and (number > self.bound.count) != (entry.phy_offset >= self.bound.phy_offset)
        ):
            reason = (
                f"entry {number} (offset {entry.phy_offset}) does not fit the progress of its "
                f"root, which counts {self.bound.count} entries up to {self.bound.phy_offset}"
            )
        if reason:
            at = layout.index_entry_at(number, self._slot_num)
            raise DamageError(self.path, at, reason, "the index can be rebuilt from the log")

    def _view(self) -> NDArray[np.uint8]:
        if self._bytes is None:
            view = map_file(self.path)
            size = layout.index_file_size(self._slot_num, self._index_num)
            if len(view) != size:
                raise DamageError(
                    self.path,
                    0,
                    f"the index file has {len(view)} bytes, not {size}",
                    "pass the broker.conf that this root was made with (--broker-conf)",
                )
            self._bytes = view
        return self._bytes


def entry_fault(number: int, entry: IndexEntry) -> str:
    """Return why an entry cannot be one that was put in a file, "" if it can."""
    if not 0 <= entry.prev_index < number:
        return f"the chain goes from entry {number} to entry {entry.prev_index}"
    if entry.time_diff_seconds < 0 or entry.phy_offset < 0:
        return f"entry {number} has a negative offset or time"
    return ""


def index_key_hash(topic: str, key: str, *, is_tag: bool = False) -> int:
    """Return the hash under which ``topic#key`` is indexed, a tag as ``topic#T#tag`` (§8.3).

    Java parity: ``IndexFile.indexKeyHashMethod``, where ``abs`` of the minimum stays negative.
    """
    value = abs(java.hash_code(f"{topic}#T#{key}" if is_tag else f"{topic}#{key}"))
    return 0 if value == 2**31 else value


def list_index_files(directory: Path) -> list[Path]:
    """List the index files, oldest first: their names are creation times. Raises StoreIOError."""
    try:
        return sorted(p for p in directory.iterdir() if p.name.isdigit() and p.is_file())
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreIOError("list", directory, e) from e


def _with_count_1(header: IndexHeader) -> IndexHeader:
    return IndexHeader(
        header.begin_timestamp,
        header.end_timestamp,
        header.begin_phy_offset,
        header.end_phy_offset,
        header.hash_slot_count,
        1,
    )


def _stored_between(number: int, entry: IndexEntry, header: IndexHeader) -> tuple[int, int]:
    """Return the earliest and latest time in ms at which an entry's message can be stored (§8.4).

    The first entry's own time is the file's begin, whatever its difference says: that one counts
    from the file before. A difference of 0 may hide a clock that stepped back, the largest one
    more than fits.
    """
    begin, seconds = header.begin_timestamp, entry.time_diff_seconds
    if begin <= 0:
        return -(2**63), 2**63
    if number == 1:
        return begin, begin
    earliest = begin + seconds * _SECOND_MS
    latest = earliest + _SECOND_MS - 1
    if seconds == 0:
        return -(2**63), latest
    return earliest, 2**63 if seconds == _SECONDS_MAX else latest
