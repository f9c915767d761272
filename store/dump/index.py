"""An index file and a checkpoint as rows (format notes §8, §9).

An index file is dumped as its header, the slots in use, and the entries. The position of the
entries depends on the number of slots, so a file whose size does not match the settings is refused,
unless it is shorter and the settings were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.dump.rows import NOTE, Meanings, Row, Sections, Source
from store.index.file_parts import (
    IndexEntry,
    IndexHeader,
    decode_header,
    entry_fault,
    header_fault,
    size_fault,
    slot_fault,
    slots_of,
    stored_entries,
)

INDEX_MEANINGS: Meanings = {
    "header": {
        "begin_timestamp": "store time of the first entry's message",
        "end_timestamp": "store time of the last entry's message",
        "begin_phy_offset": "offset in the log of the first entry's message",
        "end_phy_offset": "offset in the log of the last entry's message",
        "hash_slot_count": "slots in use (up to 4.7.0: entries)",
        "index_count": "number of the next entry: the number of entries plus one (0 means 1)",
    },
    "slot": {
        "slot": "number of the slot: hash of a key, modulo the number of slots",
        "index": "number of the newest entry whose key falls into the slot",
    },
    "entry": {
        "index": "number of the entry, from 1",
        "slot": "slot of its key",
        "key_hash": "hash of topic#key, without sign",
        "phy_offset": "offset in the log of the message",
        "time_diff_seconds": "from the header's begin timestamp to the message's store time",
        "about_timestamp": "the same as a time: approximately when the message was stored",
        "prev_index": "number of the previous entry in the same slot, 0 without one",
        "note": NOTE,
    },
}
CHECKPOINT_MEANINGS: Meanings = {
    "field": {
        "field": "name of the field",
        "value": "its value, 0 if it was never set",
        "meaning": "meaning of the value",
    },
}
_FIELD_MEANINGS = {
    "physic_msg_timestamp": "store time up to which the log was flushed; may lag",
    "logics_msg_timestamp": "store time of the last message put in a queue",
    "index_msg_timestamp": "end time of the last full index file",
    "master_flushed_offset": "offset up to which a slave's master had flushed its log (since 5.0)",
    "confirm_phy_offset": "offset of the last record that a recovery found (since 5.1.1)",
    "logics_physical_offset": "offset of the last record put in a queue (since 5.5.0)",
}
assert tuple(_FIELD_MEANINGS) == layout.CHECKPOINT.names
_CHUNK = 4096
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class _Index:
    """The complete slots and entries of an index file, and the entry count of its header."""

    begin_timestamp: int
    index_count: int  # by the header, limited to the file
    slots: NDArray[Any]
    entries: NDArray[Any]


def dump_index(source: Source) -> Sections:
    """Return the header, the slots in use and the entries of an index file, and its damage."""
    view = source.view
    if len(view) < layout.INDEX_HEADER_SIZE:
        reason = f"{len(view)} bytes are too few for an index header"
        return (iter([source.damage(0, reason, None)]),)
    header = decode_header(view)
    index = _parts(source, header)
    return _header(source, header), _slots(source, index), _entries(source, index)


def dump_checkpoint(source: Source) -> Sections:
    """Return the complete fields of a checkpoint, and its damage."""
    return (_checkpoint(source),)


def _checkpoint(source: Source) -> Iterator[Row]:
    view = source.view
    places = layout.CHECKPOINT.fields
    assert places is not None
    for name, meaning in _FIELD_MEANINGS.items():
        kind, at, *_ = places[name]
        if at < source.start:
            continue
        part = view[at : at + kind.itemsize]
        if len(part) < kind.itemsize:
            yield source.damage(at, f"the file ends before the end of {name}", None)
            return
        value = int(part.view(kind)[0])
        if value < 0:
            yield source.damage(at, f"{name} is negative: {value}", at + kind.itemsize)
        else:
            yield Row("field", at, {"field": name, "value": value, "meaning": meaning})
    end = layout.CHECKPOINT.itemsize
    others = np.flatnonzero(view[end:])
    if len(others):
        yield source.damage(end + int(others[0]), "unexpected bytes follow the fields", None)
    elif len(view) != layout.CHECKPOINT_SIZE:
        reason = f"a checkpoint has {layout.CHECKPOINT_SIZE} bytes, this {len(view)}"
        yield source.damage(len(view), reason, None)
    else:
        yield source.end(end, "zeros: there are no more fields")


def _header(source: Source, header: IndexHeader) -> Iterator[Row]:
    fault = size_fault(len(source.view), source.config)
    if fault:
        yield source.damage(0, fault, 0)
    if source.start == 0:
        yield Row("header", 0, header._asdict())
    fault = header_fault(header, source.config)
    if fault:
        yield source.damage(0, fault, layout.INDEX_HEADER_SIZE)


def _parts(source: Source, header: IndexHeader) -> _Index:
    entries, count = stored_entries(source.view, source.config), header.index_count
    if header_fault(header, source.config):
        # The header gives no count: dump up to the last entry that is not all zero.
        used = np.flatnonzero(entries.view(np.uint8))
        count = int(used[-1]) // layout.INDEX_ENTRY_SIZE + 1 if len(used) else 1
    count = min(max(count, 1), max(len(entries), 1))
    return _Index(header.begin_timestamp, count, slots_of(source.view, source.config), entries)


def _slots(source: Source, index: _Index) -> Iterator[Row]:
    first = max(source.start - layout.INDEX_HEADER_SIZE, 0)
    used = np.flatnonzero(index.slots)
    for slot in used[np.searchsorted(used, -(-first // layout.INDEX_SLOT_SIZE)) :].tolist():
        at, newest = layout.index_slot_at(slot), int(index.slots[slot])
        fault = slot_fault(slot, newest, index.index_count)
        if fault:
            yield source.damage(at, fault, at + layout.INDEX_SLOT_SIZE)
        else:
            yield Row("slot", at, {"slot": slot, "index": newest})


def _entries(source: Source, index: _Index) -> Iterator[Row]:
    slot_num = source.config.max_hash_slot_num
    begin = layout.index_entry_at(0, slot_num)
    first = max(-(-(source.start - begin) // layout.INDEX_ENTRY_SIZE), 1)
    previous = -1
    for start in range(first, index.index_count, _CHUNK):
        chunk = index.entries[start : min(start + _CHUNK, index.index_count)].tolist()
        for number, values in enumerate(chunk, start):
            at, entry = layout.index_entry_at(number, slot_num), IndexEntry(*values)
            fault = entry_fault(number, entry)
            if fault:
                has_next = number + 1 < index.index_count
                next_at = at + layout.INDEX_ENTRY_SIZE if has_next else None
                yield source.damage(at, fault, next_at)
            else:
                yield _entry_row(source, index, (number, entry), previous)
                previous = entry.phy_offset
    at = layout.index_entry_at(max(index.index_count, first), slot_num)
    if at >= len(source.view):
        return
    stale = bool(source.view[at:].any())
    rest = "unexpected bytes follow the entries that the header counts" if stale else "zeros"
    yield source.end(at, f"{rest}: there are no more entries")


def _entry_row(
    source: Source, index: _Index, numbered: tuple[int, IndexEntry], previous: int
) -> Row:
    number, entry = numbered
    slot_num = source.config.max_hash_slot_num
    note, slot = None, entry.key_hash % slot_num
    if entry.prev_index and int(index.entries["key_hash"][entry.prev_index]) % slot_num != slot:
        note = "the previous entry in its chain belongs to another slot"
    elif entry.phy_offset < previous:
        note = "its message precedes the message of the previous entry"
    begin = index.begin_timestamp
    # The first entry's own time is the file's begin: its difference counts from the previous file.
    about = begin if number == 1 else begin + entry.time_diff_seconds * _SECOND_MS
    fields = {
        "index": number,
        "slot": slot,
        "key_hash": entry.key_hash,
        "phy_offset": entry.phy_offset,
        "time_diff_seconds": entry.time_diff_seconds,
        "about_timestamp": about,
        "prev_index": entry.prev_index,
        "note": note,
    }
    return Row("entry", layout.index_entry_at(number, slot_num), fields)
