"""The writer of IndexFiles, a hash index of the log by key (format notes §8).

A file holds ``maxIndexNum - 1`` entries; the next file is created when a record finds it full. The
slot table of the active file is kept in memory; its dirty pages are written on a flush and when the
file is full. If OUTPUT has no readers yet, the table is rebuilt from the entries when loaded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.file_parts import (
    entries_of,
    index_file_size,
    map_index_file,
    read_header,
    read_slots,
)
from store.index.index_end import INDEX_HEADER_FIELDS, IndexEnd
from store.io.disk import Disk
from store.io.mapped_file import intact
from store.kernels.index import (
    BEGIN_PHY,
    BEGIN_TIMESTAMP,
    END_PHY,
    END_TIMESTAMP,
    ENTRY_WORDS,
    INDEX_COUNT,
    SLOTS_PER_PAGE,
    PutInput,
    PutState,
    fill_slots,
    put_keys,
)

_NAME_FORMAT = "%Y%m%d%H%M%S%f"


@dataclass(slots=True)
class _ActiveFile:
    """The newest index file: its header, and its slot table in native byte order."""

    path: Path
    header: NDArray[np.int64]
    slots: NDArray[np.int32]
    dirty_pages: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.dirty_pages = np.zeros(-(-len(self.slots) // SLOTS_PER_PAGE), np.uint8)


@dataclass(frozen=True, slots=True)
class IndexState:
    """The index files by name, and the number of entries of the newest."""

    first: str = ""
    last: str = ""
    files: int = 0
    count: int = 0
    full_timestamp: int = 0  # end time of the last file that was full when superseded, in ms


class IndexService:
    """Appends to the index of one OUTPUT; ``is_unread``: it has no readers before ``flush``."""

    def __init__(
        self, output: Path, config: StoreConfig, disk: Disk, *, is_unread: bool = False
    ) -> None:
        self.directory = output / layout.INDEX_DIR
        self.last_full_timestamp = 0  # end time of the last file that was full when superseded
        self._config = config
        self._disk = disk
        self._is_unread = is_unread
        self._file: _ActiveFile | None = None
        self._names = [path.name for path in list_index_files(output)]
        if self._names:
            self._file = self._load(self.directory / self._names[-1])

    def end(self) -> IndexEnd:
        """Return the current end of the index."""
        if self._file is None:
            return IndexEnd()
        return IndexEnd(self._file.path.name, tuple(self._file.header.tolist()))

    def state(self) -> IndexState:
        """Return the current state of the index files."""
        if self._file is None:
            return IndexState()
        count = int(self._file.header[INDEX_COUNT]) - 1
        names = self._names
        return IndexState(names[0], names[-1], len(names), count, self.last_full_timestamp)

    def forget_before(self, first: str) -> None:
        """Forget the expired files: those older than ``first``."""
        self._names = [name for name in self._names if name >= first]

    def build_index(self, requests: DispatchRequests, *, flush: bool = True) -> None:
        """Put the keys of these requests, in log order (``IndexService.buildIndex``).

        Without ``flush`` the slots of the active file stay in memory.
        """
        if not len(requests):
            return
        records = PutInput(
            requests.commit_log_offset,
            requests.store_timestamp,
            requests.transaction,
            requests.key_end,
            requests.key_hash,
        )
        row, key = 0, 0
        while True:
            file = self._get_and_create_last()
            row, key = self._put(file, records, (row, key))
            if row >= len(requests):
                break
        if flush:
            self.flush()

    def flush(self) -> None:
        """Write the dirty pages of the active file's slot table."""
        if self._file is not None:
            self._write_slots(self._file)

    def _put(self, file: _ActiveFile, records: PutInput, start: tuple[int, int]) -> tuple[int, int]:
        config = self._config
        count = int(file.header[INDEX_COUNT])
        room = min(config.max_index_num - count, len(records.key_hash) - start[1])
        entries = np.empty(max(room, 0) * ENTRY_WORDS, np.uint32)
        state = PutState(file.header, file.slots, file.dirty_pages, entries)
        limits = (config.max_index_num, config.counts_every_entry_as_slot)
        end: tuple[int, int] = put_keys(state, records, start, limits)
        put = int(file.header[INDEX_COUNT]) - count
        if put:
            at = layout.index_entry_at(count, config.max_hash_slot_num)
            self._disk.write(file.path, at, entries[: put * ENTRY_WORDS].data)
            self._write_header(file)
        return end

    def _get_and_create_last(self) -> _ActiveFile:
        """Return the newest file if it has room, else create the next one."""
        last = self._file
        if last is not None and last.header[INDEX_COUNT] < self._config.max_index_num:
            return last
        header = np.zeros(INDEX_HEADER_FIELDS, np.int64)
        header[INDEX_COUNT] = 1
        if last is not None:
            # Java parity: the constructor sets begin and end to the end of the last file.
            if last.header[END_PHY] > 0:
                header[BEGIN_PHY] = header[END_PHY] = last.header[END_PHY]
            if last.header[END_TIMESTAMP] > 0:
                header[BEGIN_TIMESTAMP] = header[END_TIMESTAMP] = last.header[END_TIMESTAMP]
                self.last_full_timestamp = int(last.header[END_TIMESTAMP])
            self._write_slots(last)
            self._write_header(last)
        path = self.directory / next_name(last.path.name if last is not None else None)
        self._disk.create(path, index_file_size(self._config))
        self._names.append(path.name)
        slots = np.zeros(self._config.max_hash_slot_num, np.int32)
        self._file = _ActiveFile(path, header, slots)
        self._write_header(self._file)
        return self._file

    def _write_header(self, file: _ActiveFile) -> None:
        self._disk.write(file.path, 0, encode_header(file.header, self._config))

    def _write_slots(self, file: _ActiveFile) -> None:
        """Write the dirty pages of the slot table, adjacent ones in one write."""
        dirty = np.flatnonzero(file.dirty_pages)
        if not len(dirty):
            return
        for pages in np.split(dirty, np.flatnonzero(np.diff(dirty) != 1) + 1):
            begin, end = int(pages[0]) * SLOTS_PER_PAGE, (int(pages[-1]) + 1) * SLOTS_PER_PAGE
            data = file.slots[begin:end].astype(layout.INDEX_SLOT)
            self._disk.write(file.path, layout.index_slot_at(begin), data.data)
        file.dirty_pages[dirty] = 0

    @intact()
    def _load(self, path: Path) -> _ActiveFile:
        view = map_index_file(path, self._config)
        header = read_header(view)
        if not self._is_unread:
            return _ActiveFile(path, header, read_slots(path, self._config, np.dtype(np.int32)))
        file = _ActiveFile(path, header, np.zeros(self._config.max_hash_slot_num, np.int32))
        fill_slots(entries_of(view, self._config).view(np.uint8), file.slots)
        file.dirty_pages[np.flatnonzero(file.slots) // SLOTS_PER_PAGE] = 1
        return file


def encode_header(header: NDArray[np.int64], config: StoreConfig) -> bytes:
    """Encode an index file's header as a broker of the configured version writes it."""
    data = np.zeros(1, layout.INDEX_HEADER)
    for name, value in zip(layout.INDEX_HEADER.names or (), header, strict=True):
        data[name] = value
    if header[INDEX_COUNT] <= 1 and not config.writes_count_of_empty_index:
        data["index_count"] = 0  # a 4.x broker writes no count before the first entry
    return data.tobytes()


def next_name(last: str | None) -> str:
    """Return the name of a new index file: local wall-clock time, and later than ``last``."""
    # Java parity: the name is local wall-clock time, so these times have no zone.
    now = datetime.fromtimestamp(time.time()).strftime(_NAME_FORMAT)[:-3]  # noqa: DTZ006 - see above
    return now if last is None else max(now, name_after(last))


def name_after(name: str) -> str:
    """Return the name of an index file a millisecond later.

    Raises DamageError for a name that is not a timestamp.
    """
    try:
        before = datetime.strptime(name + "000", _NAME_FORMAT)  # noqa: DTZ007 - a local time
        after = before + timedelta(milliseconds=1)
    except (ValueError, OverflowError) as e:
        raise DamageError(name, 0, "an index file must be named by a timestamp") from e
    return after.strftime(_NAME_FORMAT)[:-3]
