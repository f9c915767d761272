"""Gathering the parts of many records, as kernels: integers, spans of bytes, texts, hosts.

Lengths are read from the map once and bounds-checked then. Everything after uses these spans or a
private copy, so that a log overwritten during the read yields wrong values at worst.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.kernels import record as rk
from store.kernels.java import decode_one
from store.kernels.jit import allocating_kernel, kernel
from store.kernels.record import Rules, check_record, find_parts, read_i32, read_i64

_V4_BYTES, _V6_BYTES = layout.HOST_V4_SIZE - 4, layout.HOST_V6_SIZE - 4
_MAPPED_ZEROS, _MAPPED_BYTE = 10, 0xFF  # IPv4 in IPv6: ten zeros, this byte twice, the address
HOST_TEXT_MAX = 8 * 5 + 11  # eight groups, each with a colon, and an i32
_ASCII_END = 0x80
_REPLACEMENT = 0xFFFD
_REPLACEMENT_SIZE, _REPLACEMENT_LEAD = 3, 0xEF  # U+FFFD in UTF-8 is EF BF BD
_TEN = 10
_SEPARATOR, _TERMINATOR = layout.NAME_VALUE_SEPARATOR, layout.PROPERTY_SEPARATOR
_NAME_SLOTS = 1 << 15  # for the at most 10923 properties of a record
_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


class Spans(NamedTuple):
    """The positions in the file of the parts of each record."""

    store_timestamp_at: NDArray[np.int64]
    body_at: NDArray[np.int64]
    body_end: NDArray[np.int64]
    properties_at: NDArray[np.int64]
    end: NDArray[np.int64]


class Entries(NamedTuple):
    """The properties of all records: one element per entry, except in ``offsets``."""

    offsets: NDArray[np.int32]  # of each record's entries; one element more than records
    name_at: NDArray[np.int64]
    name_end: NDArray[np.int64]
    value_at: NDArray[np.int64]
    value_end: NDArray[np.int64]


@kernel
def find_spans(
    buf: NDArray[np.uint8], positions: NDArray[np.int64], sizes: NDArray[np.int32], out: Spans
) -> int:
    """Find the parts of each record; return -1, or the first row that is no longer a record."""
    for r in range(len(positions)):
        parts = find_parts(buf, positions[r], len(buf))
        if parts.reason != rk.OK or parts.size != sizes[r]:
            return r
        out.store_timestamp_at[r] = parts.store_timestamp_at
        out.body_at[r] = parts.body_at
        out.body_end[r] = parts.body_end
        out.properties_at[r] = parts.properties_at
        out.end[r] = parts.end
    return -1


class Heads(NamedTuple):
    """The fields of each record that the scan of a log would deliver."""

    queue_id: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    topic_at: NDArray[np.int64]
    topic_end: NDArray[np.int64]


@kernel
def read_heads(
    buf: NDArray[np.uint8],
    base: int,
    records: tuple[NDArray[np.int64], NDArray[np.int64]],
    rules: Rules,
    out: Heads,
) -> int:
    """Check and read the records at these positions, of these sizes; return how many are valid.

    The first invalid one ends the reading. ``buf`` is the log file that begins at ``base``.
    """
    positions, sizes = records
    for r in range(len(positions)):
        at = positions[r]
        parts = check_record(buf, at, base, rules)
        if parts.reason != rk.OK or parts.size != sizes[r]:
            return r
        out.queue_id[r] = read_i32(buf, at + layout.QUEUE_ID_AT)
        out.queue_offset[r] = read_i64(buf, at + layout.QUEUE_OFFSET_AT)
        out.store_timestamp[r] = read_i64(buf, parts.store_timestamp_at)
        out.topic_at[r] = parts.topic_at
        out.topic_end[r] = parts.topic_end
    return len(positions)


@kernel
def gather_i32(buf: NDArray[np.uint8], at: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Read a big-endian i32 at each position."""
    for r in range(len(at)):
        out[r] = read_i32(buf, at[r])


@kernel
def gather_i64(buf: NDArray[np.uint8], at: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Read a big-endian i64 at each position."""
    for r in range(len(at)):
        out[r] = read_i64(buf, at[r])


@kernel
def gather_bytes(
    buf: NDArray[np.uint8],
    spans: tuple[NDArray[np.int64], NDArray[np.int64]],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Copy each ``buf[begins[r] : ends[r]]`` of ``spans`` = (begins, ends) to ``offsets[r]``."""
    begins, ends = spans
    for r in range(len(begins)):
        # Unsigned: with indexes that cannot be negative, the compiler turns the loop into a memcpy.
        begin, to = np.uint64(begins[r]), np.uint64(offsets[r])
        for i in range(np.uint64(ends[r]) - begin):
            out[to + i] = buf[begin + i]


@kernel
def _malformed(data: NDArray[np.uint8], at: int, point: int, after: int) -> bool:
    """Return whether ``decode_one`` replaced a malformed sequence, not decoded a U+FFFD."""
    if point != _REPLACEMENT:
        return False
    return after - at != _REPLACEMENT_SIZE or int(data[at]) != _REPLACEMENT_LEAD


@kernel
def sanitized_sizes(
    data: NDArray[np.uint8], offsets: NDArray[np.int32], sizes: NDArray[np.int64]
) -> bool:
    """Set each text's size after ``sanitize_utf8``; return whether any text is malformed."""
    found = False
    for r in range(len(sizes)):
        at, end = int(offsets[r]), int(offsets[r + 1])
        sizes[r] = end - at
        while at < end:
            after = at + 1
            if data[at] >= _ASCII_END:
                point, after = decode_one(data, at, end)
                if _malformed(data, at, point, after):
                    found = True
                    sizes[r] += _REPLACEMENT_SIZE - (after - at)
            at = after
    return found


@kernel
def sanitize_utf8(
    data: NDArray[np.uint8], offsets: NDArray[np.int32], out: NDArray[np.uint8]
) -> None:
    """Copy texts, with U+FFFD as by ``new String(bytes, UTF_8)`` (format notes §2.5)."""
    to = 0
    for r in range(len(offsets) - 1):
        at, end = int(offsets[r]), int(offsets[r + 1])
        while at < end:
            after = at + 1
            if data[at] >= _ASCII_END:
                point, after = decode_one(data, at, end)
                if _malformed(data, at, point, after):
                    out[to], out[to + 1], out[to + 2] = 0xEF, 0xBF, 0xBD
                    to += _REPLACEMENT_SIZE
                    at = after
            while at < after:
                out[to] = data[at]
                to += 1
                at += 1


@kernel
def _same(data: NDArray[np.uint8], at: int, other: int, size: int) -> bool:
    for i in range(size):
        if data[at + i] != data[other + i]:
            return False
    return True


@kernel
def split_properties(
    data: NDArray[np.uint8], offsets: NDArray[np.int32], splits: bool, out: Entries
) -> int:
    """Split the properties of each record into entries; return how many there are.

    ``splits`` selects the parser of 4.9.0 and before, which splits and requires exactly two parts
    (format notes §2.4). ``out`` must have room for one entry per name-value separator in ``data``.
    """
    n = 0
    out.offsets[0] = 0
    for r in range(len(offsets) - 1):
        begin = offsets[r]
        text = data[begin : offsets[r + 1]]
        at, first, count = 0, -1, 0  # the segment's begin, first separator, number of separators
        for i in range(len(text) + 1):
            byte = text[i] if i < len(text) else np.uint8(_TERMINATOR)
            if byte > _TERMINATOR:
                continue
            if byte == _SEPARATOR:
                if first < 0:
                    first = i
                count += 1
            elif byte == _TERMINATOR:
                stop = i
                if splits:
                    while stop > at and text[stop - 1] == _SEPARATOR:
                        stop -= 1
                        count -= 1
                    accepted = count == 1
                else:
                    accepted = at < first < stop - 1
                if accepted:
                    out.name_at[n], out.name_end[n] = begin + at, begin + first
                    out.value_at[n], out.value_end[n] = begin + first + 1, begin + stop
                    n += 1
                at, first, count = i + 1, -1, 0
        out.offsets[r + 1] = n
    return n


@allocating_kernel
def merge_repeated(data: NDArray[np.uint8], entries: Entries) -> int:
    """Keep one entry per name in each record, with the last value; return how many remain."""
    # Open addressing by name. A slot used by an earlier record counts as free.
    slots = np.full(_NAME_SLOTS, -1, np.int64)
    n = 0
    end = 0
    for r in range(len(entries.offsets) - 1):
        begin, end = end, entries.offsets[r + 1]
        first = n
        for e in range(begin, end):
            at, size = int(entries.name_at[e]), int(entries.name_end[e] - entries.name_at[e])
            h = _FNV_BASIS
            for i in range(at, at + size):
                h = (h ^ np.uint64(data[i])) * _FNV_PRIME
            slot = int(h >> np.uint64(32)) & (_NAME_SLOTS - 1)
            same = n
            while slots[slot] >= first:
                other = int(slots[slot])
                other_at = int(entries.name_at[other])
                is_as_long = entries.name_end[other] - other_at == size
                if is_as_long and _same(data, at, other_at, size):
                    same = other
                    break
                slot = (slot + 1) & (_NAME_SLOTS - 1)
            if same == n:
                slots[slot] = n
                entries.name_at[n], entries.name_end[n] = at, at + size
                n += 1
            entries.value_at[same] = entries.value_at[e]
            entries.value_end[same] = entries.value_end[e]
        entries.offsets[r + 1] = n
    return n


@kernel
def find_values(
    data: NDArray[np.uint8],
    entries: Entries,
    name: NDArray[np.uint8],
    out: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """Find the value of one property in each record; begin and end are -1 if it is absent."""
    begins, ends = out
    for r in range(len(begins)):
        begins[r] = -1
        ends[r] = -1
        for e in range(entries.offsets[r], entries.offsets[r + 1]):
            at = entries.name_at[e]
            same = entries.name_end[e] - at == len(name)
            if same:
                for i in range(len(name)):
                    if data[at + i] != name[i]:
                        same = False
                        break
            if same:
                begins[r] = entries.value_at[e]
                ends[r] = entries.value_end[e]
                break


@kernel
def _write_decimal(number: int, out: NDArray[np.uint8], to: int) -> int:
    """Write a number in decimal; return the position after it."""
    if number < 0:
        out[to] = ord("-")
        to += 1
        number = -number
    unit = 1
    while number // unit >= _TEN:
        unit *= _TEN
    while unit > 0:
        out[to] = ord("0") + number // unit % _TEN
        to += 1
        unit //= _TEN
    return to


@kernel
def _write_hex_group(group: int, out: NDArray[np.uint8], to: int) -> int:
    """Write a 16-bit group as hex without leading zeros; return the position after it."""
    shift = 12
    while shift > 0 and group >> shift == 0:
        shift -= 4
    while shift >= 0:
        digit = group >> shift & 0xF
        out[to] = ord("0") + digit if digit < _TEN else ord("a") - _TEN + digit
        to += 1
        shift -= 4
    return to


@kernel
def _is_mapped_v4(buf: NDArray[np.uint8], at: int) -> bool:
    for i in range(_MAPPED_ZEROS):
        if buf[at + i] != 0:
            return False
    begin = at + _MAPPED_ZEROS
    return bool(buf[begin] == _MAPPED_BYTE and buf[begin + 1] == _MAPPED_BYTE)


@kernel
def format_hosts(
    buf: NDArray[np.uint8],
    at: NDArray[np.int64],
    is_v6: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Write each host as ``address:port``, the address as ``getHostAddress`` prints it.

    Java parity: ``InetAddress.getByAddress`` turns an IPv4-mapped IPv6 address into IPv4.
    """
    to = 0
    offsets[0] = 0
    for r in range(len(at)):
        begin = int(at[r])
        port_at = begin + (_V6_BYTES if is_v6[r] else _V4_BYTES)
        if is_v6[r] and not _is_mapped_v4(buf, begin):
            for i in range(begin, port_at, 2):
                to = _write_hex_group(int(buf[i]) << 8 | int(buf[i + 1]), out, to)
                out[to] = ord(":")
                to += 1
        else:
            for i in range(port_at - _V4_BYTES, port_at):
                to = _write_decimal(int(buf[i]), out, to)
                out[to] = ord(".") if i < port_at - 1 else ord(":")
                to += 1
        to = _write_decimal(read_i32(buf, port_at), out, to)
        offsets[r + 1] = to
