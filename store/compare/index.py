"""The comparison of the index: takes the writes of an ``IndexService`` and compares the files.

Entries are compared as they are written; the slot table and the header once their file is
complete, because they change until then. Nothing is written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.compare.findings import (
    NOTHING,
    ComparisonPolicy,
    Difference,
    MapCache,
    describe_entry,
    describe_file,
    first_data,
    first_difference,
)
from store.config import StoreConfig
from store.index.file import is_index_file_name
from store.index.file_parts import IndexHeader, decode_header, index_file_size, read_slots
from store.io.disk import Bytes, Disk
from store.io.listing import list_entries


class IndexComparison(Disk):
    """Compares the writes of an IndexService, file by file in order, with existing index files."""

    def __init__(
        self, compared: Path, config: StoreConfig, policy: ComparisonPolicy, views: MapCache
    ) -> None:
        super().__init__()
        self._directory = compared / layout.INDEX_DIR
        # Not list_index_files: a link or directory with such a name is a difference, not an error.
        self.files = [p for p in list_entries(self._directory) if is_index_file_name(p.name)]
        self._config = config
        self._policy = policy
        self._views, self._findings = views, views.findings
        self._size = index_file_size(config)
        self._entries_at = layout.index_entry_at(0, config.max_hash_slot_num)
        self._number = -1  # of the current file
        self._header = np.zeros(layout.INDEX_HEADER_SIZE, np.uint8)
        self._slots = np.zeros(self._entries_at - layout.INDEX_HEADER_SIZE, np.uint8)
        self._end = 0  # where the entries of the current file end, in bytes

    def create(self, path: Path, size: int) -> None:
        """Start the next file."""
        self._finish_file()
        self._number += 1
        self._slots = np.zeros(len(self._slots), np.uint8)  # zeros_like would touch every page
        self._end = layout.index_entry_at(1, self._config.max_hash_slot_num)
        if self._number >= len(self.files):
            where = self._directory / f"(file {self._number + 1} of the index)"
            self._findings.add_file(where, f"a file of {size} bytes", "no file")

    def write(self, path: Path, offset: int, data: Bytes) -> None:
        """Compare entries; keep slots and header until the file is complete."""
        piece = np.frombuffer(data, np.uint8)
        if offset == 0:
            self._header = piece.copy()
        elif offset < self._entries_at:
            at = offset - layout.INDEX_HEADER_SIZE
            self._slots[at : at + len(piece)] = piece
        else:
            self._end = offset + len(piece)
            self._findings.counts.entries += len(piece) // layout.INDEX_ENTRY_SIZE
            self._compare_entries(offset, piece)

    @property
    def number(self) -> int:
        """The number of the current file in ``files``, -1 before the first."""
        return self._number

    def finish(self) -> None:
        """Compare the rest: the current file, and files that should not exist."""
        if self._number < 0 and self._policy.is_aged and self.files:
            self.create(self.files[0], self._size)  # created for a message that has expired
            header = np.zeros(1, layout.INDEX_HEADER)
            header["index_count"] = self._config.writes_count_of_empty_index
            self.write(self.files[0], 0, header.tobytes())
        self._finish_file()
        for path in self.files[self._number + 1 :]:
            self._findings.add_file(path, "no such file", describe_file(path))
        for path in sorted(set(list_entries(self._directory)) - set(self.files)):
            self._findings.add_file(path, "no such file", "a file that is not an index file")

    def _view(self) -> NDArray[np.uint8] | None:
        """Return the actual current file, None if it does not exist or has the wrong size."""
        if not 0 <= self._number < len(self.files):
            return None
        return self._views.get(self.files[self._number], self._size)

    def _compare_entries(self, offset: int, expected: NDArray[np.uint8]) -> None:
        view = self._view()
        if view is None:
            return
        actual = view[offset : offset + len(expected)]
        if self._policy.is_aged and self._number == 0:
            first = layout.index_entry_at(1, self._config.max_hash_slot_num)
            if offset == first:
                # The time difference of the first entry is relative to a file that has expired.
                expected = expected.copy()
                as_entries = [e.view(layout.INDEX_ENTRY) for e in (expected, actual)]
                as_entries[0]["time_diff_seconds"][0] = as_entries[1]["time_diff_seconds"][0]
        at = first_difference(expected, actual)
        if at >= 0:
            at -= at % layout.INDEX_ENTRY_SIZE
            end = at + layout.INDEX_ENTRY_SIZE
            texts = [describe_entry(entries[at:end]) for entries in (expected, actual)]
            self._add_difference("entry", self._entry_number(offset + at), texts[0], texts[1])

    def _finish_file(self) -> None:
        """Compare the current file's header and slots; only zeros may follow its entries."""
        view = self._view()
        if view is None:
            return
        self._compare_header(view[: layout.INDEX_HEADER_SIZE])
        actual = read_slots(self.files[self._number], self._config).view(np.uint8)
        at = first_difference(self._slots, actual)
        if at >= 0:
            slot = at // layout.INDEX_SLOT_SIZE
            heads = (int(s.view(layout.INDEX_SLOT)[slot]) for s in (self._slots, actual))
            texts = [f"entry {head}" if head else "no entry" for head in heads]
            self._add_difference("slot", slot, texts[0], texts[1])
        unused = view[self._entries_at : layout.index_entry_at(1, self._config.max_hash_slot_num)]
        if unused.any():
            self._add_difference("entry", 0, NOTHING, describe_entry(unused))
        at = first_data(self.files[self._number], view, self._end)
        if at >= 0:
            number = self._entry_number(at)
            begin = layout.index_entry_at(number, self._config.max_hash_slot_num)
            raw = view[begin : begin + layout.INDEX_ENTRY_SIZE]
            self._add_difference("entry", number, NOTHING, describe_entry(raw))

    def _compare_header(self, actual: NDArray[np.uint8]) -> None:
        expected = self._header
        if np.array_equal(expected, actual):
            return
        fields = zip(*map(decode_header, (expected, actual)), strict=True)
        pairs = [
            [f"{name} {value}" for value in values]
            for name, values in zip(IndexHeader._fields, fields, strict=True)
            if values[0] != values[1]
            and not (self._is_unwritten_count(name, values) or self._is_from_expired(name))
        ]
        if pairs:
            self._add_difference(
                "header", None, *(", ".join(side) for side in zip(*pairs, strict=True))
            )

    def _is_unwritten_count(self, name: str, values: tuple[int, ...]) -> bool:
        """Return whether a broker has yet to write the count of a file without entries (§8.2)."""
        return self._policy.by_broker and name == "index_count" and set(values) == {0, 1}

    def _is_from_expired(self, name: str) -> bool:
        """Return whether a field comes from the end of an expired file: the first file is empty."""
        is_empty = self._end == layout.index_entry_at(1, self._config.max_hash_slot_num)
        is_first = self._policy.is_aged and self._number == 0
        return is_first and is_empty and not name.endswith("_count")

    def _entry_number(self, at: int) -> int:
        return (at - self._entries_at) // layout.INDEX_ENTRY_SIZE

    def _add_difference(self, part: str, index: int | None, expected: str, actual: str) -> None:
        path = self.files[self._number]
        self._findings.add(Difference(path, part, index, None, expected, actual))
