"""The reader of one IndexFile, a hash index of the log by key (format notes §8.1, §8.6).

The slot of a key's hash holds the number of the newest entry of a chain. Each entry names the
previous one of the same slot, so numbers descend along a chain. A chain that does not descend is
damage, and so is an entry that belongs to another slot.

``store.index.file_parts`` reads header, slots and entries. An entry holds only the hash of its key:
the caller verifies each result against the message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from store import java, layout
from store.config import StoreConfig
from store.errors import DamageError, StoreIOError
from store.index.file_parts import (
    ENTRY,
    SLOT,
    IndexEntry,
    IndexHeader,
    as_read,
    check_size,
    decode_header,
    entry_fault,
    header_fault,
    slot_fault,
)
from store.io.listing import list_names
from store.io.mapped_file import MappedFile

_COUNT_READS, _COUNT_SECONDS = 5, 0.002
_REBUILD_HINT = "the index can be rebuilt from the log"


@dataclass(frozen=True, slots=True)
class IndexBound:
    """The valid part of a file that a dispatch may be writing: its first ``count`` entries.

    They are the entries below ``phy_offset``; later ones may be half-written.
    """

    phy_offset: int
    count: int


class IndexFile:
    """One index file, mapped on first access. Raises DamageError, StoreIOError.

    ``bound`` is its valid part, None for all.
    """

    def __init__(self, path: Path, config: StoreConfig, bound: IndexBound | None = None) -> None:
        self.path = path
        self.bound = bound
        length, inode = _identify(path)
        self._file = MappedFile(path, 0, length, inode)
        self._first_hole: int | None = None  # as of the first lookup: holes only become fewer
        self._config = config
        self._slot_num = config.max_hash_slot_num

    def is_unchanged(self) -> bool:
        """Return whether the path still refers to this file."""
        return _identify(self.path) == (self._file.length, self._file.inode)

    def is_empty(self) -> bool:
        """Return whether the file had no bytes when it was opened: its creator sizes it next."""
        return self._file.length == 0

    def header(self) -> IndexHeader:
        """Return the current header."""
        header = decode_header(self._checked_map())
        fault = header_fault(header, self._config)
        if fault:
            raise DamageError(self.path, 0, fault)
        return as_read(header)

    def entry(self, number: int) -> IndexEntry:
        """Return an entry by its number, from 1 to ``maxIndexNum - 1``."""
        at = layout.index_entry_at(number, self._slot_num)
        return IndexEntry(*ENTRY.unpack_from(self._file.map(), at))

    def select_phy_offset(self, key_hash: int) -> Iterator[int]:
        """Yield the physical offsets of entries with this hash, newest first, duplicates included.

        Unlike a broker's selectPhyOffset, this leaves filtering by time to the caller: the times in
        the index are in seconds, wrong where the clock stepped back, and not checksummed.
        """
        for _, entry in self.select_entries(key_hash):
            yield entry.phy_offset

    def select_entries(self, key_hash: int) -> Iterator[tuple[int, IndexEntry]]:
        """Yield the entries with this hash and their numbers, as ``select_phy_offset`` does."""
        data, slot = self._checked_map(), key_hash % self._slot_num
        number, bound = self._slot(data, slot), self.bound
        while number:
            at = layout.index_entry_at(number, self._slot_num)
            entry = IndexEntry(*ENTRY.unpack_from(data, at))
            self._check(number, entry, slot)
            if entry.key_hash == key_hash and (bound is None or number <= bound.count):
                yield number, entry
            number = entry.prev_index

    def _slot(self, data: mmap, slot: int) -> int:
        """Return the number of a slot's newest entry, 0 for an empty slot."""
        at = layout.index_slot_at(slot)
        if self._first_hole is None:
            self._first_hole = self._file.first_hole()
        if at + SLOT.size <= self._first_hole:
            (number,) = SLOT.unpack_from(data, at)
        else:  # possibly a hole, which a map cannot always show
            (number,) = SLOT.unpack(self._file.read_at(at, SLOT.size))
        # While a dispatch writes the file, its slots run ahead of the progress record.
        count = self._await_count(number) if self.bound is None else self._config.max_index_num
        fault = slot_fault(slot, number, count)
        if fault:
            raise DamageError(self.path, at, fault, _REBUILD_HINT)
        return int(number)

    def _await_count(self, number: int) -> int:
        """Return the header's count, which a running broker writes a moment after the slots."""
        count = self.header().index_count
        for _ in range(_COUNT_READS):
            if number < count or number == 0:
                break
            time.sleep(_COUNT_SECONDS)
            count = self.header().index_count
        return count

    def _check(self, number: int, entry: IndexEntry, slot: int) -> None:
        """Raise DamageError if an entry cannot be valid at its place."""
        reason = entry_fault(number, entry)
        if not reason and self.bound is not None:
            reason = self._order_fault(number, entry.phy_offset, self.bound)
        if not reason and (entry.key_hash < 0 or entry.key_hash % self._slot_num != slot):
            reason = f"entry {number} (hash {entry.key_hash}) is in the chain of slot {slot}"
        if reason:
            at = layout.index_entry_at(number, self._slot_num)
            raise DamageError(self.path, at, reason, _REBUILD_HINT)

    def _order_fault(self, number: int, phy_offset: int, bound: IndexBound) -> str:
        """Return why an entry breaks the log order of a dispatch, "" if it does not.

        A broker's index survives a truncation of its log, so its entries need not be in order.
        """
        if (number > bound.count) != (phy_offset >= bound.phy_offset):
            return (
                f"entry {number} (offset {phy_offset}) contradicts the progress of OUTPUT, "
                f"which counts {bound.count} entries up to {bound.phy_offset}"
            )
        for other in (number - 1, number + 1):
            if 0 < other <= bound.count and number <= bound.count:
                found = self.entry(other).phy_offset
                if found != phy_offset and (found < phy_offset) != (other < number):
                    return f"entries {number} and {other} are not in log order"
        return ""

    def _checked_map(self) -> mmap:
        check_size(self.path, self._file.length, self._config)
        self._file.check_length()
        return self._file.map()


def index_key_hash(topic: str, key: str, *, is_tag: bool = False) -> int:
    """Return the hash by which ``topic#key`` is indexed; a tag is ``topic#T#tag`` (§8.3).

    Java parity: ``IndexFile.indexKeyHashMethod``, where ``abs`` of the minimum stays negative.
    """
    value = abs(java.hash_code(f"{topic}#T#{key}" if is_tag else f"{topic}#{key}"))
    return 0 if value == 2**31 else value


def is_index_file_name(name: str) -> bool:
    """Return whether a name is that of an index file: 17 digits, ``yyyyMMddHHmmssSSS``."""
    return len(name) == layout.INDEX_FILE_NAME_DIGITS and name.isascii() and name.isdigit()


def list_index_files(output: Path) -> list[Path]:
    """List the index files of OUTPUT, oldest first: their names are creation times.

    Raises StoreIOError, also if such a name is not a regular file (a link, for example).
    """
    directory = output / layout.INDEX_DIR
    return [directory / name for name in list_names(directory, is_index_file_name)]


class IndexFiles:
    """The index files of one OUTPUT, oldest first, as of the last ``refresh``; maps are reused.

    Not thread-safe.
    """

    def __init__(self, output: Path, config: StoreConfig) -> None:
        self.directory = output / layout.INDEX_DIR
        self.files: list[IndexFile] = []
        self._output = output
        self._config = config

    def refresh(self) -> None:
        """Pick up added, replaced and deleted files. Raises StoreIOError."""
        known = {file.path: file for file in self.files if file.is_unchanged()}
        paths = list_index_files(self._output)
        self.files = [known.get(path) or IndexFile(path, self._config) for path in paths]


def _identify(path: Path) -> tuple[int, int]:
    """Return length and inode, zeros for a missing file. Raises StoreIOError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    return found.st_size, found.st_ino
