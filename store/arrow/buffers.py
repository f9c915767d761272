"""Arrow arrays built from NumPy buffers, without a Python object per value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.errors import StoreError
from store.kernels import message_columns as mk

_DATA_SIZE_MAX = 2**31 - 1  # Arrow's offsets are i32
_ASCII_END = 0x80


def arrow_offsets(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return Arrow's offsets of values of these sizes. Raises StoreError if they do not fit."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if ends[-1] > _DATA_SIZE_MAX:
        raise StoreError(
            f"one column of {len(sizes)} messages has {ends[-1]} bytes, more than the "
            f"{_DATA_SIZE_MAX} of a batch; read fewer messages at once"
        )
    return ends.astype(np.int32)


def gather(
    buf: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Copy spans of bytes one after another; return their offsets in the copy and the copy."""
    offsets = arrow_offsets(ends - begins)
    data = np.empty(offsets[-1], np.uint8)
    mk.gather_bytes(buf, (begins, ends), offsets, data)
    return offsets, data


def replace_malformed(
    offsets: NDArray[np.int32], data: NDArray[np.uint8]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return texts with U+FFFD for malformed UTF-8; the arguments if all of it is well-formed."""
    if not len(data) or data.max() < _ASCII_END:
        return offsets, data
    sizes = np.empty(len(offsets) - 1, np.int64)
    if not mk.sanitized_sizes(data, offsets, sizes):
        return offsets, data
    new_offsets = arrow_offsets(sizes)
    out = np.empty(new_offsets[-1], np.uint8)
    mk.sanitize_utf8(data, offsets, out)
    return new_offsets, out


def fixed_width(
    kind: pa.DataType, values: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Wrap values of one width, null where not valid."""
    buffers = [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def variable_width(
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
