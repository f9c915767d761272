"""The fast path from a queue's unit to its record, for a record that matches the unit exactly.

It makes the checks of ``store.commitlog.record``, and checks which queue owns the record. A
mismatch is inconclusive: the record may still be valid (a multi-dispatch queue, a queue with gaps),
so ``store.commitlog.record`` then decodes it.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any, NamedTuple

from store import layout
from store.commitlog.message import Message, Origin, undecoded_message
from store.commitlog.record import (
    BEFORE_BODY,
    HOSTS_V6,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH,
    record_crc,
)

_STORE_TIMESTAMP = 10  # among the values before the body


class Owner(NamedTuple):
    """The queue that must own a record: its id, and its length-prefixed topic by magic."""

    topics: dict[int, bytes]
    queue_id: int

    @classmethod
    def of(cls, topic: str, queue_id: int) -> Owner:
        """Return the owner of a queue's records."""
        name = topic.encode("utf-8", "surrogatepass")
        lengths = {m: s.pack(len(name)) for m, s in TOPIC_LENGTH.items() if _fits(len(name), s)}
        return cls({m: length + name for m, length in lengths.items()}, queue_id)


class RecordRef(NamedTuple):
    """The record that a queue's unit refers to."""

    offset: int
    size: int
    position: int  # of the unit; also the queue offset of the record, except after a gap


def decode_owned(record: bytes, ref: RecordRef, owner: Owner, origin: Origin) -> Message | None:
    """Decode the record of a unit if it matches the unit exactly.

    None means inconclusive: ``decode_message`` decides, and names the damage if there is any. This
    is its fast path; it makes the same checks, and checks the owner.
    """
    found = _find_owned(record, 0, ref, owner) if len(record) == ref.size else None
    if found is None:
        return None
    values, spans = found
    if spans[1] > spans[0] and record_crc(record[spans[0] : spans[1]]) != values[2]:
        return None
    return undecoded_message(values, record, spans, origin)


def owned_store_timestamp(data: mmap, at: int, ref: RecordRef, owner: Owner) -> int | None:
    """Return the store time of the record at ``data[at]`` if it matches the unit exactly.

    As ``decode_owned``, but without reading the body.
    """
    found = _find_owned(data, at, ref, owner) if at + ref.size <= len(data) else None
    return None if found is None else int(found[0][_STORE_TIMESTAMP])


def _find_owned(
    data: bytes | mmap, at: int, ref: RecordRef, owner: Owner
) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """Return the values before the body and the spans (as in Spans) of a unit's record."""
    offset, size, expected = ref
    if size < layout.RECORD_MIN_SIZE:
        return None
    fixed = BEFORE_BODY[0]
    values = fixed.unpack_from(data, at)
    total, magic, _, queue_id, _, queue_offset, physical_offset, sys_flag = values[:8]
    if sys_flag & (HOSTS_V6 | layout.SYS_INNER_BATCH):
        fixed = BEFORE_BODY[sys_flag & HOSTS_V6]
        if fixed.size > size or sys_flag & layout.SYS_INNER_BATCH:
            return None
        values = fixed.unpack_from(data, at)
    topic, length = owner.topics.get(magic), values[-1]
    if topic is None or length < 0:
        return None
    if physical_offset != offset or total != size:
        return None
    if queue_id != owner.queue_id or queue_offset != expected:
        return None
    body_end = fixed.size + length
    topic_end = body_end + len(topic)
    properties_at = topic_end + PROPERTIES_LENGTH.size
    if properties_at > size or data[at + body_end : at + topic_end] != topic:
        return None
    (properties_size,) = PROPERTIES_LENGTH.unpack_from(data, at + topic_end)
    if properties_at + max(properties_size, 0) != size:
        return None
    topic_at = body_end + TOPIC_LENGTH[magic].size
    return values, (fixed.size, body_end, topic_at, topic_end, properties_at)


def _fits(length: int, kind: struct.Struct) -> bool:
    return length < 1 << (8 * kind.size - 1)
