"""Messages as Arrow columns, decoded in bulk from the records of a scan.

Only the requested columns are decoded, and those that the scan already has (topic, queue, offsets,
size, store time, tags code) do not touch the log again. Kernels gather the values; Python visits
only compressed bodies one by one.
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
from store.arrow.buffers import (
    arrow_offsets,
    fixed_width,
    gather,
    replace_malformed,
    variable_width,
)
from store.arrow.schema import MESSAGE_FIELDS, message_schema
from store.commitlog.compression import BODY_BYTES_MAX, readable_body
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.message import COPIED_MAX, MappedBytes
from store.config import StoreConfig
from store.errors import BodyTooLargeError, DamageError
from store.io.mapped_file import each_intact, file_name
from store.kernels import message_columns as mk
from store.kernels.message_columns import Entries, Spans

_MS_MAX = (2**63 - 1) // 1000  # a timestamp column holds microseconds
_log = logging.getLogger(__name__)
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "S2")

# Further columns, for values that JSON shows but MESSAGE_FIELDS lacks or cannot represent.
EXACT_FIELDS: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "store_timestamp_ms": pa.int64(),
        "born_timestamp_ms": pa.int64(),
        "msg_id": pa.string(),  # offset_msg_id
    }
)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of decompressed bodies, in bytes: of one body, and of all bodies in a batch.

    A body beyond its limit raises BodyTooLargeError, or becomes null if ``leaves_out`` is set. With
    ``limits_stored``, the limit of one body applies to those that are not compressed, too. A batch
    has at least one message.
    """

    body_bytes: int = BODY_BYTES_MAX
    batch_bytes: int = BODY_BYTES_MAX
    leaves_out: bool = False
    limits_stored: bool = False


_LIMITS = BodyLimits()


def message_batches(  # noqa: PLR0913 - the file, its records, and the columns to decode
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

    Columns are those of MESSAGE_FIELDS and EXACT_FIELDS. ``view`` is the commit log file that
    begins at ``base`` and holds all the records; ``path`` names it in errors (default: the file
    name for ``base``). There is one batch, or as many as keep decompressed bodies within
    ``limits``. A body that does not decompress is returned as stored. Raises DamageError for a
    record that changed or vanished since the scan, BodyTooLargeError, ConfigError for an unknown
    column, StoreError for more bytes than a batch can hold.
    """
    schema = batch_schema(wanted)
    records = _Records(requests, rows, (view, base, path or file_name(base)), config)
    parts = _split(records, limits) if "body" in wanted else (records,)
    for columns in each_intact([_COLUMNS[name](part) for name in wanted] for part in parts):
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def batch_schema(wanted: Sequence[str]) -> pa.Schema:
    """Return the schema of batches of these columns. Raises ConfigError for an unknown one."""
    return pa.schema(
        [
            pa.field(name, EXACT_FIELDS[name])
            if name in EXACT_FIELDS
            else message_schema([name]).field(0)
            for name in wanted
        ]
    )


class _Records:
    """The records of one batch; caches what several columns need, on first use."""

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
        self.bodies: dict[int, bytes | None] = {}  # by row: the decompressed bodies

    def part(self, begin: int, end: int) -> _Records:
        """Return rows ``begin`` to ``end`` (exclusive) of these records."""
        rows = np.arange(len(self.requests)) if self.rows is None else self.rows
        return _Records(self.requests, rows[begin:end], self.file, self.config)

    def pick(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return the selected rows of a column of the requests."""
        return column if self.rows is None else column[self.rows]

    @cached_property
    def commit_log_offset(self) -> NDArray[np.int64]:
        return self.pick(self.requests.commit_log_offset)

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Where the records begin in the file; the fixed fields of each are within the file."""
        positions = self.commit_log_offset - self.base
        if len(positions):
            assert positions.min() >= 0, "a record before its file"
            last = int(positions.max())
            if last > len(self.view) - layout.RECORD_MIN_SIZE:
                why = f"the file has been truncated to {len(self.view)} bytes since the scan"
                raise DamageError(self.path, self.base + last, why)
        return positions

    @cached_property
    def spans(self) -> Spans:
        """The positions of the records' parts. Raises DamageError if a record has changed."""
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
        """The properties of all records, decoded as Java does: their bytes and entries."""
        spans = self.spans
        offsets, data = gather(self.view, spans.properties_at, spans.end)
        offsets, data = replace_malformed(offsets, data)
        entries_max = np.count_nonzero(data == layout.NAME_VALUE_SEPARATOR)
        bounds = (np.empty(entries_max, np.int64) for _ in range(4))
        entries = Entries(np.empty(len(offsets), np.int32), *bounds)
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


def _topic(records: _Records) -> pa.Array:
    topics = pa.array(records.requests.topics, pa.string())
    return topics.take(fixed_width(pa.int32(), records.pick(records.requests.queue)))


def _timestamp(ms: NDArray[np.int64]) -> pa.Array:
    fits = (ms >= -_MS_MAX) & (ms <= _MS_MAX)
    return fixed_width(MESSAGE_FIELDS["born_timestamp"], np.where(fits, ms, 0) * 1000, fits)


def _property_column(name: str) -> Callable[[_Records], pa.Array]:
    """Return the column of one property's values, null where it is absent."""
    name_bytes = np.frombuffer(name.encode(), np.uint8)

    def column(records: _Records) -> pa.Array:
        data, entries = records.properties
        n = len(entries.offsets) - 1
        begins, ends = np.empty(n, np.int64), np.empty(n, np.int64)
        mk.find_values(data, entries, name_bytes, (begins, ends))
        return variable_width(pa.string(), *gather(data, begins, ends), begins >= 0)

    return column


def _properties(records: _Records) -> pa.Array:
    data, entries = records.properties
    kind = MESSAGE_FIELDS["properties"]
    names = variable_width(pa.string(), *gather(data, entries.name_at, entries.name_end))
    values = variable_width(pa.string(), *gather(data, entries.value_at, entries.value_end))
    pairs = pa.StructArray.from_arrays([names, values], fields=[kind.key_field, kind.item_field])
    buffers = [None, pa.py_buffer(entries.offsets)]
    return pa.Array.from_buffers(kind, len(entries.offsets) - 1, buffers, children=[pairs])


def _split(records: _Records, limits: BodyLimits) -> Iterator[_Records]:
    """Yield the records, with their bodies, in as many parts as the limits require."""
    count, begin, size = len(records.positions), 0, 0
    bodies: dict[int, bytes | None] = {}
    for row, body in _decompressed(records, limits):
        if bodies and size + len(body or b"") > limits.batch_bytes:
            part = records.part(begin, row)
            part.bodies = bodies
            yield part
            begin, size, bodies = row, 0, {}
        bodies[row - begin] = body
        size += len(body or b"")
    part = records.part(begin, count) if begin else records
    part.bodies = bodies
    yield part


def _decompressed(records: _Records, limits: BodyLimits) -> Iterator[tuple[int, bytes | None]]:
    """Yield the row and decompressed body of each compressed one, and rows without their body.

    Raises BodyTooLargeError.
    """
    begins, ends = records.spans.body_at, records.spans.body_end
    limit = limits.body_bytes
    is_compressed = (records.sys_flags & layout.SYS_COMPRESSED != 0) & (ends > begins)
    is_large = ~is_compressed & (ends - begins > limit) & limits.limits_stored
    for row in np.flatnonzero(is_compressed | is_large).tolist():
        flag, offset = int(records.sys_flags[row]), int(records.commit_log_offset[row])
        try:
            if is_large[row]:
                raise BodyTooLargeError.of_body(offset, limit, is_stored=True)
            stored = records.view[begins[row] : ends[row]].data
            raw = MappedBytes(stored) if len(stored) > COPIED_MAX else bytes(stored)
            yield row, readable_body(raw, flag, offset=offset, limit=limit)
        except BodyTooLargeError as e:
            if not limits.leaves_out:
                raise
            _log.warning("%s; its body is null", e)
            yield row, None


def _body(records: _Records) -> pa.Array:
    begins, ends = records.spans.body_at, records.spans.body_end
    if not records.bodies:
        return variable_width(pa.binary(), *gather(records.view, begins, ends))
    compressed = np.fromiter(records.bodies, np.int64, len(records.bodies))
    sizes = ends - begins
    sizes[compressed] = [len(body or b"") for body in records.bodies.values()]
    offsets = arrow_offsets(sizes)
    data = np.empty(offsets[-1], np.uint8)
    uncompressed_ends = ends.copy()
    uncompressed_ends[compressed] = begins[compressed]  # no byte of a compressed body is copied
    mk.gather_bytes(records.view, (begins, uncompressed_ends), offsets, data)
    valid = np.ones(len(sizes), np.bool_)
    for row, body in records.bodies.items():
        data[offsets[row] : offsets[row + 1]] = np.frombuffer(body or b"", np.uint8)
        valid[row] = body is not None
    return variable_width(pa.binary(), offsets, data, valid)


def _host(records: _Records, at: NDArray[np.int64], v6_flag: int) -> pa.Array:
    """Return the column of the hosts whose addresses begin at these positions."""
    n = len(at)
    offsets, data = np.empty(n + 1, np.int32), np.empty(n * mk.HOST_TEXT_MAX, np.uint8)
    mk.format_hosts(records.view, at, records.sys_flags & v6_flag != 0, offsets, data)
    return variable_width(pa.string(), offsets, data[: offsets[-1]].copy())


def _born_host(records: _Records) -> pa.Array:
    return _host(records, records.positions + layout.BORN_HOST_AT, layout.SYS_BORN_HOST_V6)


def _store_host(records: _Records) -> pa.Array:
    at = records.spans.store_timestamp_at + layout.TIMESTAMP_SIZE
    return _host(records, at, layout.SYS_STORE_HOST_V6)


def _msg_id(records: _Records) -> pa.Array:
    """Return ids as ``store.commitlog.record.offset_msg_id`` does: store host and offset, hex."""
    begins = records.spans.store_timestamp_at + layout.TIMESTAMP_SIZE
    is_v6 = records.sys_flags & layout.SYS_STORE_HOST_V6 != 0
    host_sizes = np.where(is_v6, layout.HOST_V6_SIZE, layout.HOST_V4_SIZE)
    raw_offsets = records.commit_log_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = arrow_offsets(2 * (host_sizes + 8))
    data = np.empty(offsets[-1] // 2, "S2")
    for size in (layout.HOST_V4_SIZE, layout.HOST_V6_SIZE):
        rows = np.flatnonzero(host_sizes == size)
        hosts = records.view[begins[rows, None] + np.arange(size)]
        raw = np.concatenate([hosts, raw_offsets[rows]], axis=1)
        data[offsets[rows, None] // 2 + np.arange(size + 8)] = _HEX[raw]
    return variable_width(pa.string(), offsets, data.view(np.uint8))


def _head_i32(field: str) -> Callable[[_Records], pa.Array]:
    """Return the column of an i32 at a fixed position in the record."""
    at = _field_at(layout.RECORD_HEAD, field)
    return lambda r: fixed_width(pa.int32(), r.i32(r.positions + at))


def _middle_at(records: _Records, field: str) -> NDArray[np.int64]:
    """Return the position of a RECORD_MIDDLE field in each record."""
    distance = layout.RECORD_MIDDLE.itemsize - _field_at(layout.RECORD_MIDDLE, field)
    at: NDArray[np.int64] = records.spans.body_at - distance
    return at


def _field_at(structure: np.dtype[Any], field: str) -> int:
    assert structure.fields is not None
    return structure.fields[field][1]


_COLUMNS: Mapping[str, Callable[[_Records], pa.Array]] = {
    "topic": _topic,
    "queue_id": lambda r: fixed_width(pa.int32(), r.requests.queue_ids[r.pick(r.requests.queue)]),
    "queue_offset": lambda r: fixed_width(pa.int64(), r.pick(r.requests.queue_offset)),
    "commit_log_offset": lambda r: fixed_width(pa.int64(), r.commit_log_offset),
    "size": lambda r: fixed_width(pa.int32(), r.pick(r.requests.size)),
    "tags": _property_column(layout.PROPERTY_TAGS),
    "keys": _property_column(layout.PROPERTY_KEYS),
    "uniq_key": _property_column(layout.PROPERTY_UNIQ_KEY),
    "body": _body,
    "properties": _properties,
    "store_timestamp": lambda r: _timestamp(r.pick(r.requests.store_timestamp)),
    "born_timestamp": lambda r: _timestamp(r.i64(r.positions + layout.BORN_TIMESTAMP_AT)),
    "born_host": _born_host,
    "store_host": _store_host,
    "reconsume_times": lambda r: fixed_width(pa.int32(), r.i32(_middle_at(r, "reconsume_times"))),
    "flag": _head_i32("flag"),
    "sys_flag": lambda r: fixed_width(pa.int32(), r.sys_flags),
    "tags_code": lambda r: fixed_width(pa.int64(), r.pick(r.requests.tags_code)),
    "prepared_transaction_offset": lambda r: fixed_width(
        pa.int64(), r.i64(_middle_at(r, "prepared_transaction_offset"))
    ),
    "body_crc": _head_i32("body_crc"),
    "store_timestamp_ms": lambda r: fixed_width(pa.int64(), r.pick(r.requests.store_timestamp)),
    "born_timestamp_ms": lambda r: fixed_width(
        pa.int64(), r.i64(r.positions + layout.BORN_TIMESTAMP_AT)
    ),
    "msg_id": _msg_id,
}
assert list(_COLUMNS) == [*MESSAGE_FIELDS, *EXACT_FIELDS]
