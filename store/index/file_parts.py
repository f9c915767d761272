"""The parts of an index file, read: header, slots, entries, and the size of the file (§8.1).

``store.layout`` defines the parts. The entries follow the slots, so where they begin depends on the
settings. Of a file that is cut short, the functions here return what is complete.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.config import StoreConfig
from store.errors import DamageError, StoreIOError
from store.io.file_system import open_regular
from store.io.mapped_file import data_pieces, map_file

_HEADER = layout.struct_of(layout.INDEX_HEADER)
SLOT = layout.struct_of(layout.INDEX_SLOT)
ENTRY = layout.struct_of(layout.INDEX_ENTRY)


class IndexHeader(NamedTuple):
    """Fields in on-disk order: store times in ms, physical offsets."""

    begin_timestamp: int
    end_timestamp: int
    begin_phy_offset: int
    end_phy_offset: int
    hash_slot_count: int
    index_count: int  # the number of the next entry


class IndexEntry(NamedTuple):
    """One entry, fields in on-disk order."""

    key_hash: int
    phy_offset: int
    time_diff_seconds: int
    prev_index: int


def decode_header(data: Any) -> IndexHeader:
    """Return the header that a buffer begins with, as it is stored."""
    return IndexHeader(*_HEADER.unpack_from(data))


def as_read(header: IndexHeader) -> IndexHeader:
    """Return a header as a broker reads it."""
    # Java parity: IndexHeader.load reads a count that was never written as 1.
    return header if header.index_count > 0 else header._replace(index_count=1)


def read_header(view: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the header that a file begins with, as a broker reads it, as the kernels take it."""
    return np.array(as_read(decode_header(view)), np.int64)


def slots_of(view: NDArray[np.uint8], config: StoreConfig) -> NDArray[np.int32]:
    """Return the complete slots of a file, by number."""
    slots = view[layout.index_slot_at(0) : layout.index_slot_at(config.max_hash_slot_num)]
    return _complete(slots, layout.INDEX_SLOT)


def stored_entries(view: NDArray[np.uint8], config: StoreConfig) -> NDArray[np.void]:
    """Return the complete entries of a file, by number: the first one, 0, is never used."""
    return _complete(view[layout.index_entry_at(0, config.max_hash_slot_num) :], layout.INDEX_ENTRY)


def entries_of(view: NDArray[np.uint8], config: StoreConfig) -> NDArray[np.void]:
    """Return the entries that a file's header counts, starting with entry 1."""
    return stored_entries(view, config)[1 : as_read(decode_header(view)).index_count]


def _complete(part: NDArray[np.uint8], kind: np.dtype[Any]) -> NDArray[Any]:
    return part[: len(part) // kind.itemsize * kind.itemsize].view(kind)


def read_slots(
    path: Path, config: StoreConfig, kind: np.dtype[Any] = layout.INDEX_SLOT
) -> NDArray[Any]:
    """Return an index file's slots, as ``kind`` of the same size. Raises StoreIOError.

    Holes are neither mapped nor read: a table of 2 GB with few used slots takes little memory.
    """
    slots, first = np.zeros(config.max_hash_slot_num, kind), layout.INDEX_HEADER_SIZE
    end = layout.index_slot_at(config.max_hash_slot_num)
    try:
        with FileIO(open_regular(path)) as f:
            for begin, stop in data_pieces(path, first, end):
                f.seek(begin)
                data = np.frombuffer(f.read(stop - begin), layout.INDEX_SLOT)
                at = (begin - first) // layout.INDEX_SLOT_SIZE
                slots[at : at + len(data)] = data
    except OSError as e:
        raise StoreIOError("read", path, e) from e
    return slots


def map_index_file(path: Path, config: StoreConfig) -> NDArray[np.uint8]:
    """Map an index file read-only. Raises DamageError for a wrong size, StoreIOError."""
    view = map_file(path)
    check_size(path, len(view), config)
    return view


def index_file_size(config: StoreConfig) -> int:
    """Return the size of a whole index file."""
    return layout.index_file_size(config.max_hash_slot_num, config.max_index_num)


def check_size(path: Path, length: int, config: StoreConfig) -> None:
    """Raise DamageError unless a file of this length is a whole index file."""
    fault = size_fault(length, config)
    if fault:
        hint = "pass the broker.conf that this index was written with (--broker-conf)"
        raise DamageError(path, 0, fault, hint)


# --- what cannot be valid in any file -------------------------------------------------------------


def size_fault(length: int, config: StoreConfig) -> str:
    """Return why a file of this length is not a whole index file, "" if it is."""
    size = index_file_size(config)
    return "" if length == size else f"the index file has {length} bytes, not {size}"


def header_fault(header: IndexHeader, config: StoreConfig) -> str:
    """Return why a header cannot be valid, "" if it can be."""
    if 0 <= header.index_count <= config.max_index_num:
        return ""
    return f"its header counts {header.index_count} entries of {config.max_index_num}"


def slot_fault(slot: int, number: int, index_count: int) -> str:
    """Return why a slot cannot name an entry of a file with ``index_count``, "" if it can."""
    if 0 <= number < max(index_count, 1):
        return ""
    return f"slot {slot} names entry {number}, the file has {index_count - 1}"


def entry_fault(number: int, entry: IndexEntry) -> str:
    """Return why an entry cannot be valid, "" if it can be."""
    if not 0 <= entry.prev_index < number:
        return f"the chain goes from entry {number} to entry {entry.prev_index}"
    if entry.time_diff_seconds < 0 or entry.phy_offset < 0:
        return f"entry {number} has a negative offset or time"
    return ""
