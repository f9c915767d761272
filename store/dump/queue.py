"""A consume queue file and a consume queue ext file as rows, unit by unit (format notes §5, §6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from store.dump.rows import NOTE, Meanings, Row, Sections, Source
from store.layout import (
    CQ_UNIT,
    CQ_UNIT_SIZE,
    EXT_ADDRESS_BASE,
    EXT_ADDRESS_MAX,
    EXT_END_MARK,
    EXT_UNIT,
    EXT_UNIT_SIZE,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
)

QUEUE_MEANINGS: Meanings = {
    "unit": {
        "queue_offset": "position in the queue; the message's own queue offset may be another one",
        "commit_log_offset": "offset in the log of the message's record",
        "size": "bytes of that record",
        "tags_code": "hash of the message's tags, 0 without tags; or an ext address; or, in a "
        "queue of the schedule topic, when the message is due",
        "ext_offset": "if the tags code is an ext address: offset of its unit in consumequeue_ext",
        "due_timestamp": "in a queue of the schedule topic: when the message is due",
        "note": NOTE,
    },
    "pre_fill": {
        "queue_offset": "position that has no message: the queue began higher",
    },
}
EXT_MEANINGS: Meanings = {
    "ext_unit": {
        "address": "the tags code with which a consume queue unit refers to it",
        "size": "bytes of the unit, its bitmap included",
        "tags_code": "hash of the message's tags",
        "store_timestamp": "when the message was stored",
        "bitmap_length": "bytes of the bitmap, 0 without one",
        "bitmap": "which consumer filters match, as hex",
    },
    "end_mark": {
        "size": "-1: the rest of the file is unused",
    },
}
_CHUNK = 4096
_CHAIN = 4  # this many consecutive units are no coincidence
_END_MARK = np.array(-1, EXT_END_MARK)


def dump_consume_queue(source: Source) -> Sections:
    """Return the units of a file, and its damage."""
    return (_units(source),)


def _units(source: Source) -> Iterator[Row]:
    view, count = source.view, len(source.view) // CQ_UNIT_SIZE
    whole = view[: count * CQ_UNIT_SIZE]
    units = whole.view(CQ_UNIT)
    used = np.flatnonzero(whole.reshape(count, CQ_UNIT_SIZE).any(axis=1))
    end = int(used[-1]) + 1 if len(used) else 0
    is_good = (units["size"][:end] > 0) & (units["commit_log_offset"][:end] >= 0)
    good, at = np.flatnonzero(is_good), -(-source.start // CQ_UNIT_SIZE)
    previous = -1
    for first in range(at, end, _CHUNK):
        values = units[first : min(first + _CHUNK, end)].tolist()
        for number, unit in enumerate(values, first):
            if is_good[number]:
                yield _unit_row(source, number, unit, previous)
                previous = unit[0] if unit[1] != PRE_BLANK_SIZE else previous
            elif number == at or is_good[number - 1]:
                found = int(np.searchsorted(good, number))
                next_at = int(good[found]) * CQ_UNIT_SIZE if found < len(good) else None
                yield source.damage(number * CQ_UNIT_SIZE, _unit_fault(unit), next_at)
    at = max(end, at) * CQ_UNIT_SIZE
    if at < len(whole):
        yield source.end(at, "zeros: no unit has been written from here on")
    if len(whole) < len(view):
        left = len(view) - len(whole)
        yield source.damage(len(whole), f"the last {left} bytes are not a whole unit", None)


def dump_consume_queue_ext(source: Source) -> Sections:
    """Return the units of a file, its end mark, and its damage."""
    return (_ext_units(source),)


def _ext_units(source: Source) -> Iterator[Row]:
    view, at = source.view, source.start
    used = np.flatnonzero(view)
    end = int(used[-1]) + 1 if len(used) else 0
    while at < len(view):
        if at >= end:
            yield source.end(at, "zeros: no unit has been written from here on")
            return
        if _is_end_mark(source, at):
            yield Row("end_mark", at, {"size": -1})
            return
        size = _ext_size(source, at)
        if size:
            yield _ext_row(source, at, size)
            at += size
            continue
        found = next((n for n in range(at + 1, end) if _is_ext_chain(source, n, end)), None)
        yield source.damage(at, "no unit: its size and its bitmap length do not match", found)
        if found is None:
            return
        at = found


def _unit_row(source: Source, number: int, unit: tuple[int, int, int], previous: int) -> Row:
    commit_log_offset, size, tags_code = unit
    position = source.base // CQ_UNIT_SIZE + number
    at = number * CQ_UNIT_SIZE
    if size == PRE_BLANK_SIZE:
        return Row("pre_fill", at, {"queue_offset": position})
    is_ext = tags_code <= EXT_ADDRESS_MAX
    is_due = not is_ext and SCHEDULE_TOPIC in source.path.parts
    steps_back = commit_log_offset < previous
    fields: dict[str, Any] = {
        "queue_offset": position,
        "commit_log_offset": commit_log_offset,
        "size": size,
        "tags_code": tags_code,
        "ext_offset": tags_code - EXT_ADDRESS_BASE if is_ext else None,
        "due_timestamp": tags_code if is_due else None,
        "note": "its message precedes the message of the previous unit: stale, or damaged"
        if steps_back
        else None,
    }
    return Row("unit", at, fields)


def _unit_fault(unit: tuple[int, int, int]) -> str:
    if not any(unit):
        return "zeroed space where a unit should be"
    if unit[1] <= 0:
        return f"the unit names {unit[1]} bytes"
    return f"the unit names offset {unit[0]} of the log"


def _ext_row(source: Source, at: int, size: int) -> Row:
    unit = source.view[at : at + EXT_UNIT_SIZE].view(EXT_UNIT)[0]
    _, tags_code, store_timestamp, bitmap_length = unit.tolist()
    fields = {
        "address": source.base + at + EXT_ADDRESS_BASE,
        "size": size,
        "tags_code": tags_code,
        "store_timestamp": store_timestamp,
        "bitmap_length": bitmap_length,
        "bitmap": source.view[at + EXT_UNIT_SIZE : at + size].tobytes().hex() or None,
    }
    return Row("ext_unit", at, fields)


def _ext_size(source: Source, at: int) -> int:
    """Return the size of the ext unit at a position, 0 if there is none."""
    if at + EXT_UNIT_SIZE > len(source.view):
        return 0
    size, _, _, bitmap = source.view[at : at + EXT_UNIT_SIZE].view(EXT_UNIT)[0].tolist()
    fits = bitmap >= 0 and size == EXT_UNIT_SIZE + bitmap and at + size <= len(source.view)
    return int(size) if fits else 0


def _is_end_mark(source: Source, at: int) -> bool:
    mark = source.view[at : at + _END_MARK.nbytes]
    return mark.tobytes() == _END_MARK.tobytes()


def _is_ext_chain(source: Source, at: int, end: int) -> bool:
    """Return whether consecutive units begin at a position: several, or all to the end."""
    for _ in range(_CHAIN):
        size = _ext_size(source, at)
        if not size:
            return False
        at += size
        if at >= end or _is_end_mark(source, at):
            return True
    return True
