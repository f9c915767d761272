"""The IndexFiles, written: a hash index of keys over the log (format notes §8).

A file holds ``maxIndexNum - 1`` entries; the next begins when a record finds it full. The slot
table of the file in work is kept in memory and written back by dirty pages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.config import StoreConfig
from store.disk import Disk
from store.dispatch_request import DispatchRequests
from store.errors import DamageError
from store.kernels.index import (
    BEGIN_PHY,
    BEGIN_TIMESTAMP,
    END_PHY,
    END_TIMESTAMP,
    INDEX_COUNT,
    SLOTS_PER_PAGE,
    PutInput,
    PutState,
    put_keys,
)
from store.mapped_file import map_file

_NAME_FORMAT = "%Y%m%d%H%M%S%f"
_HEADER_FIELDS = 6


@dataclass(slots=True)
class _FileInWork:
    """The newest index file: its header, and its slot table in native byte order."""

    path: Path
    header: NDArray[np.int64]
    slots: NDArray[np.int32]
    dirty_pages: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self.dirty_pages = np.zeros(-(-len(self.slots) // SLOTS_PER_PAGE), np.uint8)


class IndexService:
    """The index of one root, for appending."""

    def __init__(self, root: Path, config: StoreConfig, disk: Disk) -> None:
        self.directory = root / layout.INDEX_DIR
        self.last_full_timestamp = 0  # end time of the last file that was full when superseded
        self._config = config
        self._disk = disk
        self._file: _FileInWork | None = None
        files = index_files(self.directory)
        if files:
            self._file = self._load(files[-1])

    @property
    def file_in_work(self) -> tuple[str, int] | None:
        """Name and entry count of the newest file, None without files."""
        if self._file is None:
            return None
        return self._file.path.name, int(self._file.header[INDEX_COUNT]) - 1

    def build_index(self, requests: DispatchRequests) -> None:
        """Put the keys of these requests, in log order (``IndexService.buildIndex``)."""
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
                return

    def _put(self, file: _FileInWork, records: PutInput, start: tuple[int, int]) -> tuple[int, int]:
        config = self._config
        count = int(file.header[INDEX_COUNT])
        room = min(config.max_index_num - count, len(records.key_hash) - start[1])
        entries = np.empty(max(room, 0) * layout.INDEX_ENTRY_SIZE, np.uint8)
        state = PutState(file.header, file.slots, file.dirty_pages, entries)
        limits = (config.max_index_num, config.counts_every_entry_as_slot)
        end: tuple[int, int] = put_keys(state, records, start, limits)
        put = int(file.header[INDEX_COUNT]) - count
        if put:
            at = layout.index_entry_at(count, config.max_hash_slot_num)
            self._disk.write(file.path, at, entries[: put * layout.INDEX_ENTRY_SIZE].data)
            self._write_slots(file)
            self._write_header(file)
        return end

    def _get_and_create_last(self) -> _FileInWork:
        """Return the newest file if it has room, else begin the next one."""
        last = self._file
        if last is not None and last.header[INDEX_COUNT] < self._config.max_index_num:
            return last
        header = np.zeros(_HEADER_FIELDS, np.int64)
        header[INDEX_COUNT] = 1
        if last is not None:
            # Java parity: the constructor sets both ends to where the last file ended.
            if last.header[END_PHY] > 0:
                header[BEGIN_PHY] = header[END_PHY] = last.header[END_PHY]
            if last.header[END_TIMESTAMP] > 0:
                header[BEGIN_TIMESTAMP] = header[END_TIMESTAMP] = last.header[END_TIMESTAMP]
                self.last_full_timestamp = int(last.header[END_TIMESTAMP])
            self._write_header(last)
        path = self.directory / next_name(last.path.name if last is not None else None)
        self._disk.create(path, self._file_size())
        slots = np.zeros(self._config.max_hash_slot_num, np.int32)
        self._file = _FileInWork(path, header, slots)
        self._write_header(self._file)
        return self._file

    def _file_size(self) -> int:
        return layout.index_file_size(self._config.max_hash_slot_num, self._config.max_index_num)

    def _write_header(self, file: _FileInWork) -> None:
        data = np.zeros(1, layout.INDEX_HEADER)
        for name, value in zip(layout.INDEX_HEADER.names or (), file.header, strict=True):
            data[name] = value
        if file.header[INDEX_COUNT] <= 1 and not self._config.writes_count_of_empty_index:
            data["index_count"] = 0  # a 4.x broker writes the count with the first entry only
        self._disk.write(file.path, 0, data.tobytes())

    def _write_slots(self, file: _FileInWork) -> None:
        """Write back the pages of the slot table that changed, neighbours together."""
        dirty = np.flatnonzero(file.dirty_pages)
        for pages in np.split(dirty, np.flatnonzero(np.diff(dirty) != 1) + 1):
            begin, end = int(pages[0]) * SLOTS_PER_PAGE, (int(pages[-1]) + 1) * SLOTS_PER_PAGE
            data = file.slots[begin:end].astype(layout.INDEX_SLOT)
            self._disk.write(file.path, layout.index_slot_at(begin), data.data)
        file.dirty_pages[dirty] = 0

    def _load(self, path: Path) -> _FileInWork:
        view = map_file(path)
        if len(view) != self._file_size():
            raise DamageError(
                path,
                0,
                f"the index file has {len(view)} bytes, not {self._file_size()}",
                "pass the broker.conf this root was made with (--broker-conf)",
            )
        header = read_header(view)
        end = layout.index_slot_at(self._config.max_hash_slot_num)
        slots = view[layout.INDEX_HEADER_SIZE : end].view(layout.INDEX_SLOT).astype(np.int32)
        return _FileInWork(path, header, slots)


def index_files(directory: Path) -> list[Path]:
    """List the index files, oldest first (their names are creation times)."""
    if not directory.is_dir():
        return []
    return sorted(p for p in directory.iterdir() if p.name.isdigit() and p.is_file())


def read_header(view: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return an index file's header; a count of 0 is read as 1, as a broker does."""
    raw = view[: layout.INDEX_HEADER_SIZE].view(layout.INDEX_HEADER)[0]
    header = np.array([int(raw[n]) for n in layout.INDEX_HEADER.names or ()], np.int64)
    header[INDEX_COUNT] = max(header[INDEX_COUNT], 1)
    return header


def next_name(last: str | None) -> str:
    """Return the name of a new index file: local wall-clock time, and later than ``last``."""
    # Java parity: the name is a wall clock's in the local zone, so these times have no zone.
    now = datetime.fromtimestamp(time.time())  # noqa: DTZ006 - see above
    if last is not None:
        before = datetime.strptime(last + "000", _NAME_FORMAT)  # noqa: DTZ007 - see above
        now = max(now, before + timedelta(milliseconds=1))
    return now.strftime(_NAME_FORMAT)[:-3]
