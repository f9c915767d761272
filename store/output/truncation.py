"""Truncation: the files of OUTPUT are cut to recorded ends, byte for byte as before (promise I4).

Units after a queue's end are zeroed, and files created since are deleted. In the newest index
file, entries after the end are zeroed, the slot table is rebuilt from the entries before it, and
the header is written from the recorded end. This removes everything, whole or torn, that a power
loss left after the ends. Truncation is idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.config import StoreConfig
from store.consumequeue.extension import ExtFiles
from store.consumequeue.names import queue_directory
from store.consumequeue.queue_ends import QueueEnd
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.file_parts import read_slots
from store.index.index_end import IndexEnd
from store.index.writer import encode_header
from store.io.disk import Disk
from store.io.listing import list_names
from store.io.mapped_file import data_pieces, file_name, intact, is_mapped_file_name, map_file
from store.kernels.index import INDEX_COUNT, SLOTS_PER_PAGE, fill_slots

_REBUILD_HINT = "rebuild the queues from the log (reput rebuild)"
_NEW_OUTPUT_HINT = "give a new OUTPUT"


@dataclass(slots=True)
class TruncationCounts:
    """Counts of queues visited, non-zero units and entries zeroed, and files deleted."""

    queues: int = 0
    units: int = 0
    ext_units: int = 0
    index_entries: int = 0
    files: int = 0


class Truncation:
    """Truncates the files of one OUTPUT. The result is durable after ``disk.sync``."""

    def __init__(self, output: Path, config: StoreConfig, disk: Disk) -> None:
        self.counts = TruncationCounts()
        self._output = output
        self._config = config
        self._disk = disk

    def truncate_queue(self, end: QueueEnd) -> None:
        """Truncate one queue and its ext files. Raises DamageError if a needed file is missing."""
        queue = queue_directory(Path(), end.topic, end.queue_id)
        counts, file_size = self.counts, self._config.mapped_file_size_consume_queue
        counts.queues += 1
        directory = self._output / layout.CONSUME_QUEUE_DIR / queue
        counts.units += self._truncate(directory, (end.end, end.allocated), file_size)
        if self._config.enable_consume_queue_ext:
            ext = ExtFiles(self._config)
            directory = self._output / layout.CONSUME_QUEUE_EXT_DIR / queue
            span = ext.span(end.ext_count)
            counts.ext_units += self._truncate(directory, span, ext.file_size)

    def _truncate(self, directory: Path, span: tuple[int, int], file_size: int) -> int:
        """Truncate a directory's files to ``span`` = (end, allocated); return the units removed."""
        end, allocated = span
        if end > allocated or (allocated > 0 and allocated % file_size):
            reason = (
                f"an end at {end} of {allocated} allocated bytes does not fit files of "
                f"{file_size} bytes"
            )
            raise DamageError(directory, max(end, 0), reason, _NEW_OUTPUT_HINT)
        removed = 0
        # An interrupted process may have deleted files in these directories without a sync.
        for changed in (directory, directory.parent, directory.parent.parent):
            self._disk.include_in_sync(changed)
        for path in _mapped_files(directory):
            base = int(path.name)
            if base >= allocated:
                removed += count_data(path, 0, layout.CQ_UNIT_SIZE)
                self._remove(path)
            elif base + file_size > end:
                begin = max(end - base, 0)
                _check_size(path, file_size, _REBUILD_HINT)
                removed += count_data(path, begin, layout.CQ_UNIT_SIZE)
                self._disk.zero(path, begin)
        if allocated <= 0:
            self._disk.remove_directory(directory)
            self._disk.remove_directory(directory.parent)
        elif not (directory / file_name(allocated - file_size)).is_file():
            path = directory / file_name(allocated - file_size)
            if end > allocated - file_size:
                raise DamageError(path, 0, "the file is missing", _REBUILD_HINT)
            self._disk.create(path, file_size)
        return removed

    def mark_full_ext_files(self, end: QueueEnd) -> None:
        """Rewrite the end mark and zeros that close each of a queue's ext files but the last.

        No batch writes there once the next file exists, but another program may have written it.
        """
        if not self._config.enable_consume_queue_ext:
            return
        ext = ExtFiles(self._config)
        ext_queues = self._output / layout.CONSUME_QUEUE_EXT_DIR
        directory = queue_directory(ext_queues, end.topic, end.queue_id)
        for path in _mapped_files(directory):
            if int(path.name) + ext.file_size < ext.span(end.ext_count)[1]:
                _check_size(path, ext.file_size, _REBUILD_HINT)
                self._disk.write(path, ext.per_file * layout.EXT_UNIT_SIZE, ext.end_mark())

    def truncate_index(self, end: IndexEnd) -> None:
        """Truncate the index. Raises DamageError if its newest file is missing."""
        self._disk.include_in_sync(self._output / layout.INDEX_DIR)
        for path in list_index_files(self._output):
            if path.name > end.file:
                self.counts.index_entries += self._count_entries(path, 1)
                self._remove(path)
        if not end.file:
            return
        path = self._output / layout.INDEX_DIR / end.file
        slot_num, index_num = self._config.max_hash_slot_num, self._config.max_index_num
        _check_size(path, layout.index_file_size(slot_num, index_num), _NEW_OUTPUT_HINT)
        header = np.array(end.header, np.int64)
        count = int(header[INDEX_COUNT])
        if count > index_num:
            reason = f"the batch record counts {count} entries, at most {index_num} fit"
            raise DamageError(path, 0, reason, _NEW_OUTPUT_HINT)
        self.counts.index_entries += self._count_entries(path, count)
        self._write_slots(path, count)  # first, so that no slot refers to a zeroed entry
        self._disk.write(path, 0, encode_header(header, self._config))
        self._disk.zero(path, layout.index_entry_at(count, slot_num))

    def _write_slots(self, path: Path, count: int) -> None:
        """Rebuild the slot table from the entries below ``count``; write the pages that differ.

        Entry 0, between the table and the entries, is never used and is zeroed.
        """
        view, slot_num = map_file(path), self._config.max_hash_slot_num
        unused = layout.index_entry_at(0, slot_num)
        if view[unused : unused + layout.INDEX_ENTRY_SIZE].any():
            self._disk.write(path, unused, bytes(layout.INDEX_ENTRY_SIZE))
        begin, end = (layout.index_entry_at(n, slot_num) for n in (1, max(count, 1)))
        slots = np.zeros(slot_num, np.int32)
        with intact():
            fill_slots(view[begin:end], slots)
        stored = read_slots(path, self._config, slots.dtype)
        for first in range(0, slot_num, SLOTS_PER_PAGE):
            page = slots[first : first + SLOTS_PER_PAGE]
            if not np.array_equal(page, stored[first : first + SLOTS_PER_PAGE]):
                data = page.astype(layout.INDEX_SLOT)
                self._disk.write(path, layout.index_slot_at(first), data.tobytes())

    def _count_entries(self, path: Path, first: int) -> int:
        at = layout.index_entry_at(first, self._config.max_hash_slot_num)
        return count_data(path, at, layout.INDEX_ENTRY_SIZE)

    def _remove(self, path: Path) -> None:
        self._disk.remove(path)
        self.counts.files += 1


def count_data(path: Path, begin: int, unit_size: int) -> int:
    """Count the units of a file from byte ``begin`` on that are not all zeros; skip holes."""
    view, count = map_file(path), 0
    last = -1
    for start, stop in data_pieces(path, begin, len(view)):
        units = (np.flatnonzero(view[start:stop]) + (start - begin)) // unit_size
        found: NDArray[Any] = np.unique(units)
        count += len(found) - (len(found) > 0 and int(found[0]) == last)
        last = int(found[-1]) if len(found) else last
    return count


def _check_size(path: Path, size: int, hint: str) -> None:
    if not path.is_file():
        raise DamageError(path, 0, "the file is missing", hint)
    length = path.stat().st_size
    if length != size:
        raise DamageError(path, 0, f"the file has {length} bytes, not {size}", hint)


def _mapped_files(directory: Path) -> list[Path]:
    return [directory / name for name in list_names(directory, is_mapped_file_name)]
