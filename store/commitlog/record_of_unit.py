"""The fast path from a queue's unit to its record, for a record that matches the unit exactly.

It checks which queue owns the record, besides what ``store.commitlog.record`` checks. A mismatch is
inconclusive: the record may still be valid (a multi-dispatch queue, a queue with gaps), so
``store.commitlog.record`` then decodes it.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, NamedTuple

from store import layout
from store.commitlog.message import Message, Origin, make_message
from store.commitlog.record import (
    BODY_CRC,
    PHYSICAL_OFFSET,
    QUEUE_ID,
    QUEUE_OFFSET,
    STORE_TIMESTAMP,
    SYS_FLAG,
    find_parts,
    record_crc,
)


class Owner(NamedTuple):
    """The queue that must own a record: its topic, encoded, and its id."""

    topic: bytes
    queue_id: int

    @classmethod
    def of(cls, topic: str, queue_id: int) -> Owner:
        """Return the owner of a queue's records."""
        return cls(topic.encode("utf-8", "surrogatepass"), queue_id)


class RecordRef(NamedTuple):
    """The record that a queue's unit refers to."""

    offset: int
    size: int
    position: int  # of the unit; also the queue offset of the record, except after a gap


def decode_owned(record: bytes, ref: RecordRef, owner: Owner, origin: Origin) -> Message | None:
    """Decode the record of a unit if it matches the unit exactly.

    None means inconclusive: ``decode_message`` decides, and names the damage if there is any.
    """
    found = _find_owned(record, 0, ref, owner) if len(record) == ref.size else None
    if found is None:
        return None
    values, spans = found
    begin, end = spans[0], spans[1]
    if end > begin and record_crc(record[begin:end]) != values[BODY_CRC]:
        return None
    return make_message(values, record, spans, origin)


def owned_store_timestamp(data: mmap, at: int, ref: RecordRef, owner: Owner) -> int | None:
    """Return the store time of the record at ``data[at]`` if it matches the unit exactly.

    As ``decode_owned``, but without reading the body.
    """
    found = _find_owned(data, at, ref, owner) if at + ref.size <= len(data) else None
    return None if found is None else int(found[0][STORE_TIMESTAMP])


def _find_owned(
    data: bytes | mmap, at: int, ref: RecordRef, owner: Owner
) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """Return what ``find_parts`` does for a unit's record."""
    offset, size, position = ref
    found = find_parts(data, at, size)
    if isinstance(found, str):
        return None
    values, spans = found
    topic, queue_id = owner
    if values[0] != size or values[PHYSICAL_OFFSET] != offset:
        return None
    if values[QUEUE_ID] != queue_id or values[QUEUE_OFFSET] != position:
        return None
    if values[SYS_FLAG] & layout.SYS_INNER_BATCH:
        return None
    return found if data[at + spans[2] : at + spans[3]] == topic else None
