"""A writer that appends numbered messages in bulk: large logs for tests and benchmarks.

``append_many`` builds about a megabyte of records at once as rows of one array. The log is, byte
for byte, what ``append`` writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.commitlog.record import (
    NewMessage,
    appends_property_crc,
    decode_message,
    encode_record,
    record_crc,
)
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.layout import BLANK_SIZE

_OFFSET, _CRC = layout.RECORD_HEAD["physical_offset"], layout.RECORD_HEAD["body_crc"]
_BLOCK_BYTES = 1024 * 1024  # that append_many builds and writes at once: fits a core's cache
_NUMBER = re.compile(rb"#{2,18}")  # 18 digits always fit an i64


class BulkWriter(CommitLogWriter):
    """A ``CommitLogWriter`` with ``append_many``."""

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the queue's next message."""
        return self._next[topic, queue_id]

    def append_many(self, templates: Sequence[NewMessage], count: int, *, first: int = 0) -> None:
        """Append messages ``first`` … ``first + count - 1`` in bulk; each as ``append`` would.

        Message n is ``numbered(templates[n % len(templates)], n)``; templates are plain messages.
        """
        cycle = _make_cycle(templates, self.config)
        n, stop = first, first + count
        while n < stop:
            cycles = 0
            if n % len(templates) == 0:
                room = (self._remaining() - BLANK_SIZE) // len(cycle.row)
                block = max(_BLOCK_BYTES // len(cycle.row), 1)
                cycles = min((stop - n) // len(templates), room, block)
            if cycles > 0:
                self._put_cycles(cycle, n, cycles)
                n += cycles * len(templates)
            else:
                self.append(numbered(templates[n % len(templates)], n))
                n += 1

    def _put_cycles(self, cycle: _Cycle, first: int, count: int) -> None:
        """Append ``count`` rounds of all templates, which fit in the active file."""
        block = np.tile(cycle.row, (count, 1))
        rounds = np.arange(count)
        stamps = [self._clock() for _ in range(count * len(cycle.parts))]
        for i, part in enumerate(cycle.parts):
            row = block[:, part.begin : part.end]
            stamp = stamps[i :: len(cycle.parts)]
            begins = self.end + part.begin + len(cycle.row) * rounds
            _set(row, layout.PHYSICAL_OFFSET_AT, _OFFSET, begins)
            _set(row, part.store_timestamp_at, layout.TIMESTAMP, stamp)
            _set(row, layout.BORN_TIMESTAMP_AT, layout.TIMESTAMP, stamp)
            offsets = self._next[part.queue] + part.rank + cycle.counts[part.queue] * rounds
            _set(row, layout.QUEUE_OFFSET_AT, _OFFSET, offsets)
            _set_numbers(row, part, first + i + len(cycle.parts) * rounds)
        self._write(block.data.cast("B"))
        for queue, each in cycle.counts.items():
            self._next[queue] += each * count


def numbered(template: NewMessage, number: int) -> NewMessage:
    """Return the message with each run of ``#`` in body and properties replaced by a number.

    A run of 2 to 18 is replaced by as many of the number's last decimal digits.
    """
    items = template.properties.items()
    properties = {_fill_text(name, number): _fill_text(value, number) for name, value in items}
    return replace(template, body=_fill(template.body, number), properties=properties)


def _fill(data: bytes, number: int) -> bytes:
    return _NUMBER.sub(lambda m: b"%0*d" % (len(m[0]), number % 10 ** len(m[0])), data)


def _fill_text(text: str, number: int) -> str:
    return _fill(text.encode("utf-8", "replace"), number).decode()


@dataclass(frozen=True, slots=True)
class _Part:
    """One template's record in a row; positions but ``begin`` and ``end`` are in the record."""

    begin: int
    end: int
    queue: tuple[str, int]
    rank: int  # among the records of its queue in the row
    store_timestamp_at: int
    numbers: tuple[tuple[int, int], ...]
    body: tuple[int, int] | None  # if it holds a number


@dataclass(frozen=True, slots=True)
class _Cycle:
    """A row with one record of each template, and how many of them each queue gets."""

    row: NDArray[np.uint8]
    parts: tuple[_Part, ...]
    counts: Counter[tuple[str, int]]


def _make_cycle(templates: Sequence[NewMessage], config: StoreConfig) -> _Cycle:
    rows, parts = b"", []
    counts: Counter[tuple[str, int]] = Counter()
    assert not appends_property_crc(config)
    for template in templates:
        assert template.born_timestamp is None
        assert template.sys_flag == 0
        record = encode_record(
            template, config, queue_offset=0, commit_log_offset=0, store_timestamp=0
        )
        message, size = decode_message(record)
        spans, queue = message.spans, (template.topic, template.queue_id)
        in_body = [m.span() for m in _NUMBER.finditer(record, spans.body_at, spans.body_end)]
        in_properties = [m.span() for m in _NUMBER.finditer(record, spans.properties_at)]
        part = _Part(
            begin=len(rows),
            end=len(rows) + size,
            queue=queue,
            rank=counts[queue],
            store_timestamp_at=layout.BORN_HOST_AT + len(message.raw_born_host),
            numbers=(*in_body, *in_properties),
            body=(spans.body_at, spans.body_end) if in_body else None,
        )
        parts.append(part)
        rows += record
        counts[queue] += 1
    row = np.frombuffer(rows, np.uint8)
    return _Cycle(row, tuple(parts), counts)


def _set(row: NDArray[np.uint8], at: int, kind: np.dtype[Any], values: Any) -> None:
    row[:, at : at + kind.itemsize].view(kind)[:, 0] = values


def _set_numbers(row: NDArray[np.uint8], part: _Part, numbers: NDArray[np.int64]) -> None:
    """Write the digits of each row's number into its runs; update the CRC of a body with runs."""
    width = max((end - begin for begin, end in part.numbers), default=0)
    digits = _digits(numbers, width)[:, ::-1]
    for begin, end in part.numbers:
        row[:, begin:end] = digits[:, width - (end - begin) :]
    if part.body is not None:
        bodies = row[:, slice(*part.body)]
        _set(row, layout.BODY_CRC_AT, _CRC, [record_crc(body.data) for body in bodies])


def _digits(numbers: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
    """Return the last decimal digits of each number as ASCII, the least significant one first."""
    digits = np.empty((len(numbers), count), np.uint8)
    for place in range(count):
        numbers, rest = np.divmod(numbers, 10)
        digits[:, place] = rest + ord("0")
    return digits
