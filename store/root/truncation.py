"""Truncation: a root's files cut back to marks, byte for byte as they were (promise I4).

What lies behind a queue's end is made zero, files begun since are removed. Of the newest index
file the entries behind the mark are made zero, the slot table is built again from those before it,
and the header is written as the mark has it. Whatever a power loss left behind the marks, whole or
torn, is gone then; cutting again changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.config import StoreConfig
from store.consumequeue.ends import QueueEnd
from store.consumequeue.extension import ExtFiles
from store.consumequeue.names import queue_directory
from store.errors import DamageError
from store.index.ends import IndexEnd
from store.index.file import list_index_files
from store.index.writer import encode_header, read_slots
from store.io.disk import Disk
from store.io.listing import list_names
from store.io.mapped_file import data_pieces, file_name, is_mapped_file_name, map_file
from store.kernels.index import INDEX_COUNT, SLOTS_PER_PAGE, fill_slots

_REBUILD_HINT = "rebuild that queue from the log (reput rebuild --topic)"
_NEW_OUTPUT_HINT = "give a new OUTPUT"


@dataclass(slots=True)
class TruncationCounts:
    """What was cut: units and entries that held anything, files removed, queues looked at."""

    queues: int = 0
    units: int = 0
    ext_units: int = 0
    index_entries: int = 0
    files: int = 0


class Truncation:
    """Cuts the files of one root. Durable after ``disk.sync``."""

    def __init__(self, root: Path, config: StoreConfig, disk: Disk) -> None:
        self.counts = TruncationCounts()
        self._root = root
        self._config = config
        self._disk = disk

    def truncate_queue(self, end: QueueEnd) -> None:
        """Cut one queue and its ext files. Raises DamageError for a file that must be there."""
        queue = queue_directory(Path(), end.topic, end.queue_id)
        counts, size = self.counts, self._config.mapped_file_size_consume_queue
        counts.queues += 1
        counts.units += self._truncate(
            self._root / layout.CONSUME_QUEUE_DIR / queue, (end.end, end.allocated), size
        )
        if self._config.enable_consume_queue_ext:
            ext, directory = (
                ExtFiles(self._config),
                self._root / layout.CONSUME_QUEUE_EXT_DIR / queue,
            )
            span = ext.span(end.ext_count)
            counts.ext_units += self._truncate(directory, span, ext.file_size)

    def _truncate(self, directory: Path, span: tuple[int, int], file_size: int) -> int:
        """Cut the files of one directory to ``span`` = (end, allocated); return the units cut."""
        end, allocated = span
        if end > allocated or (allocated > 0 and allocated % file_size):
            reason = f"no queue of files of {file_size} bytes ends at {end} of {allocated} bytes"
            raise DamageError(directory, max(end, 0), reason, _NEW_OUTPUT_HINT)
        cut = 0
        for changed in (directory, directory.parent, directory.parent.parent):
            self._disk.include_in_sync(
                changed
            )  # a process killed before may have removed files there
        for path in _mapped_files(directory):
            base = int(path.name)
            if base >= allocated:
                cut += count_data(path, 0, layout.CQ_UNIT_SIZE)
                self._remove(path)
            elif base + file_size > end:
                begin = max(end - base, 0)
                _check_size(path, file_size, _REBUILD_HINT)
                cut += count_data(path, begin, layout.CQ_UNIT_SIZE)
                self._disk.zero(path, begin)
        if allocated <= 0:
            self._disk.remove_directory(directory)
            self._disk.remove_directory(directory.parent)
        elif not (directory / file_name(allocated - file_size)).is_file():
            path = directory / file_name(allocated - file_size)
            if end > allocated - file_size:
                raise DamageError(path, 0, "the file is missing", _REBUILD_HINT)
            self._disk.create(path, file_size)
        return cut

    def mark_full_ext_files(self, end: QueueEnd) -> None:
        """Write again what a queue's ext files before the last end with: a mark and zeros.

        No batch writes there once the next file has begun, but who knows what wrote the root.
        """
        if not self._config.enable_consume_queue_ext:
            return
        ext = ExtFiles(self._config)
        ext_root = self._root / layout.CONSUME_QUEUE_EXT_DIR
        directory = queue_directory(ext_root, end.topic, end.queue_id)
        for path in _mapped_files(directory):
            if int(path.name) + ext.file_size < ext.span(end.ext_count)[1]:
                _check_size(path, ext.file_size, _REBUILD_HINT)
                self._disk.write(path, ext.per_file * layout.EXT_UNIT_SIZE, ext.end_mark())

    def truncate_index(self, end: IndexEnd) -> None:
        """Cut the index. Raises DamageError if its newest file is not there."""
        self._disk.include_in_sync(self._root / layout.INDEX_DIR)
        for path in list_index_files(self._root / layout.INDEX_DIR):
            if path.name > end.file:
                self.counts.index_entries += self._count_entries(path, 1)
                self._remove(path)
        if not end.file:
            return
        path = self._root / layout.INDEX_DIR / end.file
        slot_num, index_num = self._config.max_hash_slot_num, self._config.max_index_num
        _check_size(path, layout.index_file_size(slot_num, index_num), _NEW_OUTPUT_HINT)
        header = np.array(end.header, np.int64)
        count = int(header[INDEX_COUNT])
        if count > index_num:
            reason = f"the batch record counts {count} entries of {index_num}"
            raise DamageError(path, 0, reason, _NEW_OUTPUT_HINT)
        self.counts.index_entries += self._count_entries(path, count)
        self._write_slots(path, count)  # first, so that no slot names an entry that is gone
        self._disk.write(path, 0, encode_header(header, self._config))
        self._disk.zero(path, layout.index_entry_at(count, slot_num))

    def _write_slots(self, path: Path, count: int) -> None:
        """Build the slot table from the entries below ``count``; write the pages that differ.

        Entry 0, which lies between both, is never used.
        """
        view, slot_num = map_file(path), self._config.max_hash_slot_num
        unused = layout.index_entry_at(0, slot_num)
        if view[unused : unused + layout.INDEX_ENTRY_SIZE].any():
            self._disk.write(path, unused, bytes(layout.INDEX_ENTRY_SIZE))
        begin, end = (layout.index_entry_at(n, slot_num) for n in (1, max(count, 1)))
        slots = np.zeros(slot_num, np.int32)
        fill_slots(view[begin:end], slots)
        there = read_slots(path, self._config, slots.dtype)
        for first in range(0, slot_num, SLOTS_PER_PAGE):
            right = slots[first : first + SLOTS_PER_PAGE]
            if not np.array_equal(right, there[first : first + SLOTS_PER_PAGE]):
                data = right.astype(layout.INDEX_SLOT)
                self._disk.write(path, layout.index_slot_at(first), data.tobytes())

    def _count_entries(self, path: Path, first: int) -> int:
        at = layout.index_entry_at(first, self._config.max_hash_slot_num)
        return count_data(path, at, layout.INDEX_ENTRY_SIZE)

    def _remove(self, path: Path) -> None:
        self._disk.remove(path)
        self.counts.files += 1


def count_data(path: Path, begin: int, unit_size: int) -> int:
    """Count the units of a file from byte ``begin`` on that are not all zero; skips holes."""
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
