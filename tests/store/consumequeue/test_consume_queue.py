"""The end of a ConsumeQueue is found, without reading all of its files."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from store.consumequeue.files import ConsumeQueue, QueueTail
from store.io.mapped_file import MappedFile
from store.layout import CQ_UNIT, CQ_UNIT_SIZE

FILE_SIZE = 6_000_000
PAGE_SIZE = 4096
PER_FILE = FILE_SIZE // CQ_UNIT_SIZE


def write_queue(directory: Path, count: int) -> ConsumeQueue:
    """Write a queue of one file of the default size."""
    units = np.zeros(count, CQ_UNIT)
    units["size"] = 100
    with (directory / f"{0:020d}").open("wb") as file:
        file.write(units.tobytes())
        file.truncate(FILE_SIZE)
    return ConsumeQueue(directory, FILE_SIZE)


def cached_pages(file: MappedFile) -> int:
    """Count the pages of a file that are in memory."""
    view = file.view()
    pages = (ctypes.c_ubyte * -(-len(view) // PAGE_SIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    at, size = ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view))
    assert libc.mincore(at, size, pages) == 0, ctypes.get_errno()
    return sum(page & 1 for page in pages)


@pytest.mark.parametrize("count", [0, 1, 1000, PER_FILE - 1, PER_FILE])
def test_the_end_of_a_queue(tmp_path: Path, count: int) -> None:
    queue = write_queue(tmp_path, count)
    expected = QueueTail(count * CQ_UNIT_SIZE, FILE_SIZE, 100) if count else None
    assert queue.tail() == expected
    assert queue.max_offset() == count


@pytest.mark.skipif(sys.platform != "linux", reason="mincore")
def test_looking_for_the_end_leaves_holes_out_of_memory(tmp_path: Path) -> None:
    queue = write_queue(tmp_path, 10)
    assert queue.max_offset() == 10
    assert cached_pages(queue.files[0]) <= 30  # of 1465: the pages of a binary search
