"""ConsumeQueueExt: units beside a queue that hold tags code, store time and a filter bitmap.

With ``enableConsumeQueueExt`` a queue's unit holds an ext address instead of its tags code (format
notes §6). No bitmap can be derived from a log, so every unit written here is 20 bytes long and its
position follows from its number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.config import StoreConfig
from store.consumequeue.files import written_prefix
from store.consumequeue.names import list_queues, queue_directory
from store.errors import StoreIOError, UnsupportedFormatError
from store.io.disk import Disk
from store.io.listing import list_files
from store.io.mapped_file import (
    MappedFile,
    MappedFileQueue,
    file_name,
    intact,
    is_mapped_file_name,
)
from store.kernels.consume_queue import NewUnits
from store.layout import (
    CONSUME_QUEUE_EXT_DIR,
    EXT_ADDRESS_BASE,
    EXT_END_BLANK_SIZE,
    EXT_END_MARK,
    EXT_UNIT,
    EXT_UNIT_SIZE,
)

END_MARK = np.array(-1, EXT_END_MARK).tobytes()  # after the last unit of a full file


class ExtFiles:
    """The layout of a queue's ext files when every unit is 20 bytes long."""

    def __init__(self, config: StoreConfig) -> None:
        self.file_size = config.mapped_file_size_consume_queue_ext
        self.per_file = (self.file_size - EXT_END_BLANK_SIZE) // EXT_UNIT_SIZE

    def span(self, count: int) -> tuple[int, int]:
        """Return the end of ``count`` units and of their files, in bytes; -1 for none."""
        if not count:
            return -1, -1
        last = (count - 1) // self.per_file
        end = last * self.file_size + (count - last * self.per_file) * EXT_UNIT_SIZE
        return end, (last + 1) * self.file_size

    def end_mark(self) -> bytes:
        """Return the bytes after the last unit of a full file that has a successor."""
        return END_MARK.ljust(self.file_size - self.per_file * EXT_UNIT_SIZE, b"\0")

    def count_to(self, address: int) -> int:
        """Count the units up to the one at an ext address, inclusive."""
        at = address - EXT_ADDRESS_BASE
        return at // self.file_size * self.per_file + at % self.file_size // EXT_UNIT_SIZE + 1


class ConsumeQueueExtWriter:
    """The ext files of all queues of OUTPUT, for appending."""

    def __init__(self, output: Path, config: StoreConfig, disk: Disk) -> None:
        self._directory = output / CONSUME_QUEUE_EXT_DIR
        files = ExtFiles(config)
        self._file_size, self._per_file = files.file_size, files.per_file
        self._disk = disk

    @property
    def shape(self) -> tuple[int, int]:
        """File size in bytes, and units per file."""
        return self._file_size, self._per_file

    @intact()
    def load(self, key: tuple[str, int]) -> int:
        """Count the ext units of a queue."""
        directory = self._queue_directory(key)
        files = MappedFileQueue([directory], self._file_size, are_sparse=True).files
        if not files:
            return 0
        last = files[-1]
        stored = min(last.data_end() // EXT_UNIT_SIZE, self._per_file)
        units = last.view()[: stored * EXT_UNIT_SIZE].view(EXT_UNIT)
        count = written_prefix(units["size"])
        return last.base // self._file_size * self._per_file + count

    def put(
        self,
        keys: list[tuple[str, int]],
        units: NewUnits,
        number: NDArray[np.int64],
        store_timestamp: NDArray[np.int64],
    ) -> None:
        """Write the ext units of ``units``; ``number`` is the number of each one, -1 for none."""
        chosen = np.flatnonzero(number >= 0)
        if not len(chosen):  # all units are duplicates
            return
        order = chosen[np.argsort(units.queue[chosen], kind="stable")]
        data = np.zeros(len(order), EXT_UNIT)
        data["size"] = EXT_UNIT_SIZE
        data["tags_code"] = units.tags_code[order]
        data["store_timestamp"] = store_timestamp[order]
        queues, starts = np.unique(units.queue[order], return_index=True)
        ends = [*starts[1:], len(order)]
        for q, start, end in zip(queues, starts, ends, strict=True):
            self._write(self._queue_directory(keys[q]), int(number[order[start]]), data[start:end])

    def _queue_directory(self, key: tuple[str, int]) -> Path:
        return queue_directory(self._directory, *key)

    def _write(self, directory: Path, number: int, data: NDArray[np.void]) -> None:
        """Write consecutive units of one queue, file by file."""
        while len(data):
            in_file = number % self._per_file
            base = number // self._per_file * self._file_size
            path = directory / file_name(base)
            if in_file == 0:
                if base:
                    self._mark_end(directory / file_name(base - self._file_size))
                self._disk.create(path, self._file_size)
            part = data[: self._per_file - in_file]
            self._disk.write(path, in_file * EXT_UNIT_SIZE, part.tobytes())
            data, number = data[len(part) :], number + len(part)

    def _mark_end(self, path: Path) -> None:
        """Write the end mark after a full file's last unit."""
        self._disk.write(path, self._per_file * EXT_UNIT_SIZE, END_MARK)


@intact()
def refuse_filter_bitmaps(output: Path) -> None:
    """Raise UnsupportedFormatError if an ext file that a broker wrote holds a filter bitmap.

    A broker writes them with ``enableCalcFilterBitMap``. They depend on the consumers that it knew,
    so they cannot be derived from the log. Raises StoreIOError.
    """
    for topic, queue_id in list_queues(output, CONSUME_QUEUE_EXT_DIR):
        directory = queue_directory(output / CONSUME_QUEUE_EXT_DIR, topic, queue_id)
        for path, status in list_files(directory, is_mapped_file_name, follows_links=False):
            if isinstance(status, StoreIOError):
                raise status
            at = _find_bitmap(MappedFile(path, int(path.name), status.st_size, status.st_ino))
            if at >= 0:
                raise UnsupportedFormatError(
                    f"{path}: the ext unit at byte {at} holds a bitmap of filters that is not in "
                    "the log (enableCalcFilterBitMap); that is not supported"
                )


def _find_bitmap(file: MappedFile) -> int:
    """Return the position of the first ext unit with a bitmap, else -1.

    The units before it are 20 bytes long, so it is the first that is not. Of a damaged file, only
    the units before the damage are checked.
    """
    end = file.data_end() if file.length else 0
    units = file.view()[: end - end % EXT_UNIT_SIZE].view(EXT_UNIT)
    odd = np.flatnonzero((units["size"] != EXT_UNIT_SIZE) | (units["bitmap_length"] != 0))[:1]
    for i in odd.tolist():
        size, bitmap = int(units["size"][i]), int(units["bitmap_length"][i])
        if bitmap > 0 and size == EXT_UNIT_SIZE + bitmap:
            return int(i) * EXT_UNIT_SIZE
    return -1
