"""Messages as Arrow columns: a stretch of the log, decoded in bulk for people.

Only what is wanted is read: a column costs nothing unless it is asked for, and those that the
scan has already (topic, queue, offsets, size, store time, tags code) never touch the log again.
Values are gathered by kernels; Python walks over none of them but compressed bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store import layout
from store.commitlog.compression import BODY_BYTES_MAX, readable_body
from store.commitlog.dispatch_request import DispatchRequests
from store.config import StoreConfig
from store.errors import BodyTooLargeError, DamageError, StoreError
from store.io.mapped_file import file_name
from store.kernels import message as mk
from store.kernels.message import Entries, Spans
from store.reads.arrow_schema import MESSAGE_FIELDS, message_schema

_DATA_SIZE_MAX = 2**31 - 1  # Arrow's offsets are i32
_MS_MAX = (2**63 - 1) // 1000
_ASCII_END = 0x80
_log = logging.getLogger(__name__)
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "S2")

# Columns beside those of MESSAGE_FIELDS: what JSON shows, and Arrow's types cannot hold or lack.
EXACT_FIELDS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "store_timestamp_ms": pa.int64(),
        "born_timestamp_ms": pa.int64(),
        "msg_id": pa.string(),  # offset_msg_id
    }
)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large decompressed bodies may be, in bytes: one of them, and those of a batch in all.

    A larger one raises BodyTooLargeError, or is null where ``leaves_out`` is set. A batch has at
    least one message.
    """

    body_bytes: int = BODY_BYTES_MAX
    batch_bytes: int = BODY_BYTES_MAX
    leaves_out: bool = False


_LIMITS = BodyLimits()


def message_batches(  # noqa: PLR0913 - where the records lie, which of them, and what of them
    requests: DispatchRequests,
    view: NDArray[np.uint8],
    base: int,
    wanted: Sequence[str],
    *,
    rows: NDArray[np.int64] | None = None,
    config: StoreConfig,
    path: Path | str | None = None,
    limits: BodyLimits = _LIMITS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted columns of the records of ``requests``, or of its ``rows`` only, in order.

    Columns are those of MESSAGE_FIELDS and EXACT_FIELDS.
    ``view`` is the commit log file that begins at ``base`` and holds them all; ``path`` names it
    in errors (else its name by ``base`` does). It is one batch, or as many as keep decompressed
    bodies within ``limits``. A body that does not decompress comes as it is stored. Raises
    DamageError for a record that changed since it was scanned, BodyTooLargeError, ConfigError for
    an unknown column, StoreError for more bytes than a batch can hold.
    """
    schema = _schema(wanted)
    stretch = _Stretch(requests, rows, (view, base, path or file_name(base)), config)
    for part in _parts(stretch, limits) if "body" in wanted else (stretch,):
        yield pa.RecordBatch.from_arrays([_COLUMNS[name](part) for name in wanted], schema=schema)


def _schema(wanted: Sequence[str]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, EXACT_FIELDS[name])
            if name in EXACT_FIELDS
            else message_schema([name]).field(0)
            for name in wanted
        ]
    )


class _Stretch:
    """The records of one batch; what several columns need is found once, when first needed."""

    def __init__(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64] | None,
        file: tuple[NDArray[np.uint8], int, Path | str],
        config: StoreConfig,
    ) -> None:
        self.requests = requests
        self.rows = rows
        self.view, self.base, self.path = self.file = file
        self.config = config
        self.bodies: dict[int, bytes | None] = {}  # by row: compressed ones, decompressed

    def part(self, begin: int, end: int) -> _Stretch:
        """Return the records of these rows of it alone."""
        rows = np.arange(len(self.requests)) if self.rows is None else self.rows
        return _Stretch(self.requests, rows[begin:end], self.file, self.config)

    def pick(self, column: NDArray[Any]) -> NDArray[Any]:
        """Take the chosen rows of a column of the requests."""
        return column if self.rows is None else column[self.rows]

    @cached_property
    def commit_log_offset(self) -> NDArray[np.int64]:
        return self.pick(self.requests.commit_log_offset)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where the records begin in the file: each with its fixed fields inside of it."""
        positions = self.commit_log_offset - self.base
        if len(positions):
            assert positions.min() >= 0, "a record before its file"
            assert positions.max() <= len(self.view) - layout.RECORD_MIN_SIZE, "one behind it"
        return positions

    @cached_property
    def spans(self) -> Spans:
        """Where the parts of the records lie. Raises DamageError if one is none any more."""
        spans = Spans(*(np.empty(len(self.positions), np.int64) for _ in Spans._fields))
        sizes = self.pick(self.requests.size)
        changed = mk.find_spans(self.view, self.positions, sizes, spans)
        if changed >= 0:
            offset = int(self.commit_log_offset[changed])
            raise DamageError(self.path, offset, "the record changed while it was read")
        return spans

    @cached_property
    def sys_flags(self) -> NDArray[np.int32]:
        return self.i32(self.positions + layout.SYS_FLAG_AT)

    @cached_property
    def properties(self) -> tuple[NDArray[np.uint8], Entries]:
        """The properties of all records as Java decodes them: their bytes and entries."""
        spans = self.spans
        offsets, data = _gathered(self.view, spans.properties_at, spans.end)
        offsets, data = _mended(offsets, data)
        room = np.count_nonzero(data == layout.NAME_VALUE_SEPARATOR)
        ends = (np.empty(room, np.int64) for _ in range(4))
        entries = Entries(np.empty(len(offsets), np.int32), *ends)
        mk.split_properties(data, offsets, self.config.splits_properties, entries)
        count = mk.merge_repeated(data, entries)
        return data, Entries(entries.offsets, *(part[:count] for part in entries[1:]))

    def i32(self, at: NDArray[np.int64]) -> NDArray[np.int32]:
        out = np.empty(len(at), np.int32)
        mk.gather_i32(self.view, at, out)
        return out

    def i64(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        out = np.empty(len(at), np.int64)
        mk.gather_i64(self.view, at, out)
        return out


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return Arrow's offsets of values of these sizes. Raises StoreError if they do not fit."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] > _DATA_SIZE_MAX:
        raise StoreError(
            f"one column of {len(sizes)} messages has {ends[-1]} bytes, more than the "
            f"{_DATA_SIZE_MAX} of a batch; read fewer of them at once"
        )
    return ends.astype(np.int32)


def _gathered(
    buf: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Copy spans of bytes one after another; return their offsets there and the bytes."""
    offsets = _offsets(ends - begins)
    data = np.empty(offsets[-1], np.uint8)
    mk.gather_bytes(buf, (begins, ends), offsets, data)
    return offsets, data


def _mended(
    offsets: NDArray[np.int32], data: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return texts with U+FFFD where their UTF-8 is malformed; the same if nowhere."""
    if not len(data) or data.max() < _ASCII_END:
        return offsets, data
    sizes = np.empty(len(offsets) - 1, np.int64)
    if not mk.sanitized_sizes(data, offsets, sizes):
        return offsets, data
    new_offsets = _offsets(sizes)
    out = np.empty(new_offsets[-1], np.uint8)
    mk.sanitize_utf8(data, offsets, out)
    return new_offsets, out


def _fixed(
    kind: pa.DataType, values: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Wrap values of one width, null where not valid."""
    buffers = [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _variable(
    kind: pa.DataType,
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    valid: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Wrap texts or bytes, null where not valid."""
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _topic(s: _Stretch) -> pa.Array:
    topics = pa.array(s.requests.topics, pa.string())
    return topics.take(_fixed(pa.int32(), s.pick(s.requests.queue)))


def _timestamp(ms: NDArray[np.int64]) -> pa.Array:
    fits = (ms >= -_MS_MAX) & (ms <= _MS_MAX)
    return _fixed(MESSAGE_FIELDS["born_timestamp"], np.where(fits, ms, 0) * 1000, fits)


def _named(name: str) -> Callable[[_Stretch], pa.Array]:
    """Return a column of the value of one property, null where it is absent."""
    wanted = np.frombuffer(name.encode(), np.uint8)

    def column(s: _Stretch) -> pa.Array:
        data, entries = s.properties
        n = len(entries.offsets) - 1
        begins, ends = np.empty(n, np.int64), np.empty(n, np.int64)
        mk.find_values(data, entries, wanted, (begins, ends))
        return _variable(pa.string(), *_gathered(data, begins, ends), begins >= 0)

    return column


def _properties(s: _Stretch) -> pa.Array:
    data, entries = s.properties
    kind = MESSAGE_FIELDS["properties"]
    names = _variable(pa.string(), *_gathered(data, entries.name_at, entries.name_end))
    values = _variable(pa.string(), *_gathered(data, entries.value_at, entries.value_end))
    pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    buffers = [None, pa.py_buffer(entries.offsets)]
    return pa.Array.from_buffers(kind, len(entries.offsets) - 1, buffers, children=[pairs])


def _parts(s: _Stretch, limits: BodyLimits) -> Iterator[_Stretch]:
    """Yield the stretch, with its bodies, in as many parts as keep them within the limits."""
    count, begin, size = len(s.positions), 0, 0
    bodies: dict[int, bytes | None] = {}
    for row, body in _decompressed(s, limits):
        if bodies and size + len(body or b"") > limits.batch_bytes:
            part = s.part(begin, row)
            part.bodies = bodies
            yield part
            begin, size, bodies = row, 0, {}
        bodies[row - begin] = body
        size += len(body or b"")
    part = s.part(begin, count) if begin else s
    part.bodies = bodies
    yield part


def _decompressed(s: _Stretch, limits: BodyLimits) -> Iterator[tuple[int, bytes | None]]:
    """Yield the bodies that are compressed, with their rows. Raises BodyTooLargeError."""
    begins, ends = s.spans.body_at, s.spans.body_end
    compressed = np.flatnonzero((s.sys_flags & layout.SYS_COMPRESSED != 0) & (ends > begins))
    for row in compressed.tolist():
        raw, offset = s.view[begins[row] : ends[row]].tobytes(), int(s.commit_log_offset[row])
        flag, limit = int(s.sys_flags[row]), limits.body_bytes
        try:
            yield row, readable_body(raw, flag, offset=offset, limit=limit)
        except BodyTooLargeError as e:
            if not limits.leaves_out:
                raise
            _log.warning("%s; its body is null", e)
            yield row, None


def _body(s: _Stretch) -> pa.Array:
    begins, ends = s.spans.body_at, s.spans.body_end
    if not s.bodies:
        return _variable(pa.binary(), *_gathered(s.view, begins, ends))
    compressed = np.fromiter(s.bodies, np.int64, len(s.bodies))
    sizes = ends - begins
    sizes[compressed] = [len(body or b"") for body in s.bodies.values()]
    offsets = _offsets(sizes)
    data = np.empty(offsets[-1], np.uint8)
    as_they_are = ends.copy()
    as_they_are[compressed] = begins[compressed]  # nothing of these is copied
    mk.gather_bytes(s.view, (begins, as_they_are), offsets, data)
    valid = np.ones(len(sizes), np.bool_)
    for row, body in s.bodies.items():
        data[offsets[row] : offsets[row + 1]] = np.frombuffer(body or b"", np.uint8)
        valid[row] = body is not None
    return _variable(pa.binary(), offsets, data, valid)


def _host(s: _Stretch, at: NDArray[np.int64], v6_flag: int) -> pa.Array:
    """Return a column of hosts whose addresses begin at these positions."""
    n = len(at)
    offsets, data = np.empty(n + 1, np.int32), np.empty(n * mk.HOST_TEXT_MAX, np.uint8)
    mk.format_hosts(s.view, at, s.sys_flags & v6_flag != 0, offsets, data)
    return _variable(pa.string(), offsets, data[: offsets[-1]].copy())


def _born_host(s: _Stretch) -> pa.Array:
    return _host(s, s.positions + layout.BORN_HOST_AT, layout.SYS_BORN_HOST_V6)


def _store_host(s: _Stretch) -> pa.Array:
    at = s.spans.store_timestamp_at + layout.TIMESTAMP_SIZE
    return _host(s, at, layout.SYS_STORE_HOST_V6)


def _msg_id(s: _Stretch) -> pa.Array:
    """Return the ids as ``store.commitlog.record.offset_msg_id`` does: store host, offset, in hex."""
    begins = s.spans.store_timestamp_at + layout.TIMESTAMP_SIZE
    is_v6 = s.sys_flags & layout.SYS_STORE_HOST_V6 != 0
    host_sizes = np.where(is_v6, layout.HOST_V6_SIZE, layout.HOST_V4_SIZE)
    raw_offsets = s.commit_log_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = _offsets(2 * (host_sizes + 8))
    data = np.empty(offsets[-1] // 2, "S2")
    for size in (layout.HOST_V4_SIZE, layout.HOST_V6_SIZE):
        rows = np.flatnonzero(host_sizes == size)
        hosts = s.view[begins[rows, None] + np.arange(size)]
        raw = np.concatenate([hosts, raw_offsets[rows]], axis=1)
        data[offsets[rows, None] // 2 + np.arange(size + 8)] = _HEX[raw]
    return _variable(pa.string(), offsets, data.view(np.uint8))


def _head_i32(field: str) -> Callable[[_Stretch], pa.Array]:
    """Return a column of an i32 at a fixed place of the record."""
    at = _place(layout.RECORD_HEAD, field)
    return lambda s: _fixed(pa.int32(), s.i32(s.positions + at))


def _middle_at(s: _Stretch, field: str) -> NDArray[np.int64]:
    """Return where a field that lies before the body is in each record."""
    back = layout.RECORD_MIDDLE.itemsize - _place(layout.RECORD_MIDDLE, field)
    at: NDArray[np.int64] = s.spans.body_at - back
    return at


def _place(structure: np.dtype[Any], field: str) -> int:
    assert structure.fields is not None
    return structure.fields[field][1]


_COLUMNS: Mapping[str, Callable[[_Stretch], pa.Array]] = {
    "topic": _topic,
    "queue_id": lambda s: _fixed(pa.int32(), s.requests.queue_ids[s.pick(s.requests.queue)]),
    "queue_offset": lambda s: _fixed(pa.int64(), s.pick(s.requests.queue_offset)),
    "commit_log_offset": lambda s: _fixed(pa.int64(), s.commit_log_offset),
    "size": lambda s: _fixed(pa.int32(), s.pick(s.requests.size)),
    "tags": _named(layout.PROPERTY_TAGS),
    "keys": _named(layout.PROPERTY_KEYS),
    "uniq_key": _named(layout.PROPERTY_UNIQ_KEY),
    "body": _body,
    "properties": _properties,
    "store_timestamp": lambda s: _timestamp(s.pick(s.requests.store_timestamp)),
    "born_timestamp": lambda s: _timestamp(s.i64(s.positions + layout.BORN_TIMESTAMP_AT)),
    "born_host": _born_host,
    "store_host": _store_host,
    "reconsume_times": lambda s: _fixed(pa.int32(), s.i32(_middle_at(s, "reconsume_times"))),
    "flag": _head_i32("flag"),
    "sys_flag": lambda s: _fixed(pa.int32(), s.sys_flags),
    "tags_code": lambda s: _fixed(pa.int64(), s.pick(s.requests.tags_code)),
    "prepared_transaction_offset": lambda s: _fixed(
        pa.int64(), s.i64(_middle_at(s, "prepared_transaction_offset"))
    ),
    "body_crc": _head_i32("body_crc"),
    "store_timestamp_ms": lambda s: _fixed(pa.int64(), s.pick(s.requests.store_timestamp)),
    "born_timestamp_ms": lambda s: _fixed(
        pa.int64(), s.i64(s.positions + layout.BORN_TIMESTAMP_AT)
    ),
    "msg_id": _msg_id,
}
assert list(_COLUMNS) == [*MESSAGE_FIELDS, *EXACT_FIELDS]
