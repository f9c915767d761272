"""Messages as lines of JSON, formatted in bulk from Arrow columns.

A line is, byte for byte, what ``json.dumps(message_json(message), ensure_ascii=False)`` returns,
plus a newline. The JSON texts of each field form a column; a line joins one text of each. Python
visits values one by one only in a column that needs escapes, and bodies only in a batch where one
of them is not text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring  # json.dumps calls it for each text
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.commitlog.message_json import BODY_FIELDS, JSON_FIELDS, body_json

_TEXT = pa.large_string()
_SPACE, _QUOTE, _BACKSLASH = b' "\\'


class _Field(NamedTuple):
    column: str
    texts: Callable[[pa.Array], pa.Array]


def columns_of(fields: Sequence[str]) -> list[str]:
    """Return the columns (of ``store.arrow.batches``) that lines with these fields need."""
    return list(dict.fromkeys(_FIELDS[name].column for name in fields))


def json_lines(batch: pa.RecordBatch, fields: Sequence[str]) -> pa.Array:
    """Return the lines of a batch, each with these fields in this order."""
    parts: list[Any] = []
    for number, name in enumerate(fields):
        start, field = "{" if number == 0 else ", ", _FIELDS[name]
        parts += [pa.scalar(f'{start}"{name}": ', _TEXT), field.texts(batch.column(field.column))]
    end, nothing = pa.scalar("}\n", _TEXT), pa.scalar("", _TEXT)
    return pc.binary_join_element_wise(*parts, end, nothing)


def _integers(column: pa.Array) -> pa.Array:
    return column.cast(_TEXT)


def _strings(column: pa.Array) -> pa.Array:
    """Return texts as JSON strings, ``null`` for a missing one."""
    column = column.cast(_TEXT)
    if _needs_escapes(column):
        values = column.to_numpy(zero_copy_only=False).tolist()
        quoted = [None if text is None else encode_basestring(text) for text in values]
        return pa.array(quoted, _TEXT).fill_null("null")
    quote, nothing = pa.scalar('"', _TEXT), pa.scalar("", _TEXT)
    return pc.binary_join_element_wise(quote, column, quote, nothing).fill_null("null")


def _needs_escapes(column: pa.Array) -> bool:
    """Return whether a text may contain a character that JSON escapes."""
    buffer = column.buffers()[2]
    if buffer is None:
        return False
    data = np.frombuffer(buffer, np.uint8)
    return bool(((data < _SPACE) | (data == _QUOTE) | (data == _BACKSLASH)).any())


def _objects(column: pa.MapArray) -> pa.Array:
    """Return maps as JSON objects; no map is null."""
    separator, nothing = pa.scalar(": ", _TEXT), pa.scalar("", _TEXT)
    pairs = pc.binary_join_element_wise(
        _strings(column.keys), separator, _strings(column.items), nothing
    )
    joined = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pairs), pa.scalar(", ", _TEXT))
    return pc.binary_join_element_wise(
        pa.scalar("{", _TEXT), joined, pa.scalar("}", _TEXT), nothing
    )


def _bodies(column: pa.Array) -> pa.Array:
    """Return each body as a JSON string: text or hex, as ``body_json`` decides."""
    texts = _texts(column)
    if texts is not None:
        return _strings(texts)
    return _each_body(column, "body")


def _encodings(column: pa.Array) -> pa.Array:
    """Return the encoding of each body: utf-8 or hex."""
    if _texts(column) is not None:
        return _strings(pc.if_else(column.is_valid(), "utf-8", None))
    return _each_body(column, "body_encoding")


def _each_body(column: pa.Array, field: str) -> pa.Array:
    bodies = column.to_numpy(zero_copy_only=False).tolist()
    values = [None if body is None else body_json(body)[field] for body in bodies]
    return _strings(pa.array(values, _TEXT))


def _texts(column: pa.Array) -> pa.Array | None:
    """Return the bodies as texts, None if any of them is not text."""
    try:
        texts = column.cast(_TEXT)
    except pa.ArrowInvalid:
        return None
    return None if pc.any(pc.match_substring(texts, "\0")).as_py() else texts


_FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "topic": _Field("topic", _strings),
        "queue_id": _Field("queue_id", _integers),
        "queue_offset": _Field("queue_offset", _integers),
        "commit_log_offset": _Field("commit_log_offset", _integers),
        "size": _Field("size", _integers),
        "msg_id": _Field("msg_id", _strings),
        "tags": _Field("tags", _strings),
        "keys": _Field("keys", _strings),
        "uniq_key": _Field("uniq_key", _strings),
        "store_timestamp": _Field("store_timestamp_ms", _integers),
        "born_timestamp": _Field("born_timestamp_ms", _integers),
        "born_host": _Field("born_host", _strings),
        "store_host": _Field("store_host", _strings),
        "reconsume_times": _Field("reconsume_times", _integers),
        "flag": _Field("flag", _integers),
        "sys_flag": _Field("sys_flag", _integers),
        "prepared_transaction_offset": _Field("prepared_transaction_offset", _integers),
        "body_crc": _Field("body_crc", _integers),
        "properties": _Field("properties", _objects),
        "body_encoding": _Field("body", _encodings),
        "body": _Field("body", _bodies),
    }
)
assert list(_FIELDS) == [*JSON_FIELDS, *BODY_FIELDS]
