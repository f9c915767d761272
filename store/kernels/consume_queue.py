"""Appending units to consume queues, as one kernel: the broker's append rules (format notes §5.3).

The input is units of many queues in log order; the output is the bytes of the accepted units,
grouped by queue. Each group is one contiguous range of its queue.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.kernels.jit import allocating_kernel, kernel
from store.layout import CQ_UNIT_SIZE, EXT_ADDRESS_BASE, NO_QUEUE_YET

_ACCEPTED, _KNOWN, _REPEATED, _GAP = range(4)


class NewUnits(NamedTuple):
    """Units to append, in log order, one element per unit."""

    queue: NDArray[np.int32]
    commit_log_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    tags_code: NDArray[np.int64]
    queue_offset: NDArray[np.int64]
    is_main: NDArray[np.uint8]  # 0: a multi-dispatch unit, which never has an ext unit


class Queues(NamedTuple):
    """The state of the queues that the units belong to; updated in place."""

    max_physic_offset: NDArray[np.int64]
    end: NDArray[np.int64]  # bytes; NO_QUEUE_YET before the first unit
    allocated: NDArray[np.int64]  # bytes covered by the queue's files
    ext_count: NDArray[np.int64]  # ext units in the queue
    repeated: NDArray[np.int64]  # counts units dropped for a too low queue offset
    gaps: NDArray[np.int64]  # counts units appended below their queue offset


class AppendedUnits(NamedTuple):
    """The units to write, grouped by queue, in the order of the queue numbers."""

    data: NDArray[np.uint8]  # accepted units, 20 bytes each
    group_end: NDArray[np.int64]  # end of each queue's units in data, in units
    first: NDArray[np.int64]  # byte in the queue at which its units begin; -1: none
    ext_at: NDArray[np.int64]  # number of each unit's ext unit in its queue; -1: none


@kernel
def _write(out: NDArray[np.uint8], at: int, value: int, width: int) -> None:
    for i in range(width):
        out[at + i] = np.uint8((value >> (8 * (width - 1 - i))) & 0xFF)


@kernel
def _append_unit(u: int, units: NewUnits, queues: Queues, file_size: int) -> int:
    """Decide on one unit and advance the state of its queue (``putMessagePositionInfo``).

    Java parity: the file is allocated before the queue offset is checked, so a unit that is dropped
    because its queue offset is too low still starts a new file if the last one was full.
    """
    q = units.queue[u]
    end_offset = units.commit_log_offset[u] + units.size[u]
    if end_offset <= queues.max_physic_offset[q]:
        return _KNOWN
    expected = units.queue_offset[u] * CQ_UNIT_SIZE
    verdict = _ACCEPTED
    if queues.end[q] == NO_QUEUE_YET:
        queues.end[q] = expected
        queues.allocated[q] = expected - expected % file_size + file_size
    elif queues.end[q] == queues.allocated[q]:
        queues.allocated[q] += file_size
    if units.queue_offset[u] != 0:
        if expected < queues.end[q]:
            queues.repeated[q] += 1
            return _REPEATED
        if expected != queues.end[q]:
            queues.gaps[q] += 1
            verdict = _GAP
    queues.max_physic_offset[q] = end_offset
    queues.end[q] += CQ_UNIT_SIZE
    return verdict


@kernel
def _ext_address(number: int, file_size: int, per_file: int) -> int:
    return (number // per_file) * file_size + (number % per_file) * 20 + EXT_ADDRESS_BASE


@allocating_kernel
def append_units(
    units: NewUnits, queues: Queues, file_size: int, ext: tuple[int, int]
) -> AppendedUnits:
    """Append units to their queues; ``ext`` = (ext file size, ext units per file), (0, 0): off.

    Java parity: an ext unit is written before a unit is dropped for a too low queue offset, so such
    a drop leaves an orphan ext unit; only units already known (by their end offset) write none.
    """
    n, count = len(units.queue), len(queues.end)
    first = np.full(count, -1, np.int64)
    verdicts = np.empty(n, np.uint8)
    group_end = np.zeros(count, np.int64)
    ext_at = np.full(n if ext[1] else 0, -1, np.int64)
    for u in range(n):
        q = units.queue[u]
        if ext[1] and units.is_main[u]:
            if units.commit_log_offset[u] + units.size[u] > queues.max_physic_offset[q]:
                ext_at[u] = queues.ext_count[q]
                queues.ext_count[q] += 1
        verdict = _append_unit(u, units, queues, file_size)
        verdicts[u] = verdict
        if verdict == _ACCEPTED or verdict == _GAP:
            group_end[q] += 1
            if first[q] < 0:
                first[q] = queues.end[q] - CQ_UNIT_SIZE
    total = 0
    at = np.empty(count, np.int64)
    for q in range(count):
        at[q] = total
        total += group_end[q]
        group_end[q] = total
    data = np.empty(total * CQ_UNIT_SIZE, np.uint8)
    for u in range(n):
        if verdicts[u] == _ACCEPTED or verdicts[u] == _GAP:
            q = units.queue[u]
            to = at[q] * CQ_UNIT_SIZE
            at[q] += 1
            code = units.tags_code[u]
            if ext[1] and ext_at[u] >= 0:
                code = _ext_address(ext_at[u], ext[0], ext[1])
            _write(data, to, units.commit_log_offset[u], 8)
            _write(data, to + 8, units.size[u], 4)
            _write(data, to + 12, code, 8)
    return AppendedUnits(data, group_end, first, ext_at)
