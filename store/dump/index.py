"""An index file and a checkpoint as rows (format notes §8, §9).

An index file is its header, the slots in use, and the entries. Only with the number of slots is
it known where entries begin, so a file of another size than the settings say is refused, unless
it is shorter and the settings were given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.dump.rows import NOTE, Meanings, Row, Sections, Source
from store.index.file import IndexEntry, entry_fault

INDEX_MEANINGS: Meanings = {
    "header": {
        "begin_timestamp": "store time of the first entry's message",
        "end_timestamp": "store time of the last entry's message",
        "begin_phy_offset": "where in the log the first entry's message begins",
        "end_phy_offset": "where in the log the last entry's message begins",
        "hash_slot_count": "slots in use (up to 4.7.0: entries)",
        "index_count": "number of the next entry: one more than there are (0 means 1)",
    },
    "slot": {
        "slot": "number of the slot: hash of a key, modulo the number of slots",
        "index": "number of the newest entry whose key falls into the slot",
    },
    "entry": {
        "index": "number of the entry, from 1 on",
        "slot": "the slot its key falls into",
        "key_hash": "hash of topic#key, without sign",
        "phy_offset": "where in the log the message begins",
        "time_diff_seconds": "from the header's begin to the message's store time",
        "about_timestamp": "that as a time: about when the message was stored",
        "prev_index": "number of the entry before it in the same slot, 0 without",
        "note": NOTE,
    },
}
CHECKPOINT_MEANINGS: Meanings = {
    "field": {
        "field": "its name",
        "value": "what it holds; 0 if it was never set",
        "meaning": "what that says",
    },
}
_FIELD_MEANINGS = {
    "physic_msg_timestamp": "store time up to which the log was flushed; may lag",
    "logics_msg_timestamp": "store time of the last message put in a queue",
    "index_msg_timestamp": "end time of the last full index file",
    "master_flushed_offset": "up to where a slave's master had flushed its log (since 5.0)",
    "confirm_phy_offset": "where the last record that a recovery saw begins (since 5.1.1)",
    "logics_physical_offset": "where the last record put in a queue begins (since 5.5.0)",
}
assert tuple(_FIELD_MEANINGS) == layout.CHECKPOINT.names
_CHUNK = 4096
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True)
class _Index:
    """The parts of an index file that are wholly there, and what its header counts."""

    begin_timestamp: int
    counted: int  # entries by the header, made to fit the file
    slots: NDArray[Any]
    entries: NDArray[Any]


def dump_index(source: Source) -> Sections:
    """Return header, slots in use and entries of an index file, and what cannot be right."""
    view = source.view
    if len(view) < layout.INDEX_HEADER_SIZE:
        return (iter([source.damage(0, f"{len(view)} bytes are no index header", None)]),)
    header = view[: layout.INDEX_HEADER_SIZE].view(layout.INDEX_HEADER)[0]
    fields = dict(zip(layout.INDEX_HEADER.names or (), header.tolist(), strict=True))
    index = _parts(source, fields["begin_timestamp"], fields["index_count"])
    return _header(source, fields), _slots(source, index), _entries(source, index)


def dump_checkpoint(source: Source) -> Sections:
    """Return the fields of a checkpoint that are wholly there, and what is wrong with it."""
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
        yield source.damage(end + int(others[0]), "something lies behind the fields", None)
    elif len(view) != layout.CHECKPOINT_SIZE:
        reason = f"a checkpoint has {layout.CHECKPOINT_SIZE} bytes, this {len(view)}"
        yield source.damage(len(view), reason, None)
    else:
        yield source.end(end, "zeros: there are no more fields")


def _header(source: Source, fields: Mapping[str, int]) -> Iterator[Row]:
    size, config = len(source.view), source.config
    full = layout.index_file_size(config.max_hash_slot_num, config.max_index_num)
    if size != full:
        yield source.damage(0, f"the index file has {size} bytes, not {full}", 0)
    if source.start == 0:
        yield Row("header", 0, fields)
    if not 0 <= fields["index_count"] <= config.max_index_num:
        reason = f"its header counts {fields['index_count']} entries of {config.max_index_num}"
        yield source.damage(0, reason, layout.INDEX_HEADER_SIZE)


def _parts(source: Source, begin_timestamp: int, index_count: int) -> _Index:
    slot_num, view = source.config.max_hash_slot_num, source.view
    slots_at, entries_at = layout.index_slot_at(0), layout.index_entry_at(0, slot_num)
    slots = view[slots_at:entries_at]
    slots = slots[: len(slots) // layout.INDEX_SLOT_SIZE * layout.INDEX_SLOT_SIZE]
    entries = view[entries_at:]
    entries = entries[: len(entries) // layout.INDEX_ENTRY_SIZE * layout.INDEX_ENTRY_SIZE]
    parsed = entries.view(layout.INDEX_ENTRY)
    if not 0 <= index_count <= source.config.max_index_num:
        # What the header cannot tell: up to the last entry that is not all zero.
        used = np.flatnonzero(entries)
        index_count = int(used[-1]) // layout.INDEX_ENTRY_SIZE + 1 if len(used) else 1
    counted = min(max(index_count, 1), max(len(parsed), 1))
    return _Index(begin_timestamp, counted, slots.view(layout.INDEX_SLOT), parsed)


def _slots(source: Source, index: _Index) -> Iterator[Row]:
    first = max(source.start - layout.INDEX_HEADER_SIZE, 0)
    used = np.flatnonzero(index.slots)
    for slot in used[np.searchsorted(used, -(-first // layout.INDEX_SLOT_SIZE)) :].tolist():
        at, newest = layout.index_slot_at(slot), int(index.slots[slot])
        if 0 < newest < index.counted:
            yield Row("slot", at, {"slot": slot, "index": newest})
        else:
            reason = f"slot {slot} names entry {newest}, the file has {index.counted - 1}"
            yield source.damage(at, reason, at + layout.INDEX_SLOT_SIZE)


def _entries(source: Source, index: _Index) -> Iterator[Row]:
    slot_num = source.config.max_hash_slot_num
    begin = layout.index_entry_at(0, slot_num)
    first = max(-(-(source.start - begin) // layout.INDEX_ENTRY_SIZE), 1)
    previous = -1
    for start in range(first, index.counted, _CHUNK):
        chunk = index.entries[start : min(start + _CHUNK, index.counted)].tolist()
        for number, values in enumerate(chunk, start):
            at, entry = layout.index_entry_at(number, slot_num), IndexEntry(*values)
            fault = entry_fault(number, entry)
            if fault:
                has_next = number + 1 < index.counted
                next_at = at + layout.INDEX_ENTRY_SIZE if has_next else None
                yield source.damage(at, fault, next_at)
            else:
                yield _entry_row(source, index, (number, entry), previous)
                previous = entry.phy_offset
    at = layout.index_entry_at(max(index.counted, first), slot_num)
    if at >= len(source.view):
        return
    stale = bool(source.view[at:].any())
    said = "something lies behind the entries that the header counts" if stale else "zeros"
    yield source.end(at, f"{said}: there are no more entries")


def _entry_row(
    source: Source, index: _Index, numbered: tuple[int, IndexEntry], previous: int
) -> Row:
    number, entry = numbered
    slot_num = source.config.max_hash_slot_num
    note, slot = None, entry.key_hash % slot_num
    if entry.prev_index and int(index.entries["key_hash"][entry.prev_index]) % slot_num != slot:
        note = "the entry before it in its chain is of another slot"
    elif entry.phy_offset < previous:
        note = "its message lies before that of the entry before"
    begin = index.begin_timestamp
    # The first entry's own time is the file's begin: its difference counts from the file before.
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
