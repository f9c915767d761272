"""Dispatch requests as columns: the dispatchers' input for one stretch of the log.

Pure values. A stretch ``[begin, end)`` holds ``len(size)`` records in log order. The columns are
the fields of the broker's DispatchRequest that the dispatchers need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.layout import SYS_COMMIT, SYS_TRANSACTION

# Name and element type of each packed column, in wire order.
COLUMN_TYPES: dict[str, str] = {
    "commit_log_offset": "<i8",
    "size": "<i4",
    "queue": "<i4",
    "queue_offset": "<i8",
    "tags_code": "<i8",
    "store_timestamp": "<i8",
    "transaction": "|u1",
    "key_end": "<i4",
    "key_hash": "<i4",
    "multi_row": "<i4",
    "multi_queue": "<i4",
    "multi_offset": "<i8",
}
_PER_RECORD = tuple(COLUMN_TYPES)[:8]  # the others are per key or per multi-dispatch unit


def is_queued(sys_flag: Any) -> Any:
    """Return whether a record with a system flag enters its queue; for an array, of each.

    A prepared or rolled back message of a transaction does not
    (``CommitLogDispatcherBuildConsumeQueue``).
    """
    transaction = sys_flag & SYS_TRANSACTION
    return (transaction == 0) | (transaction == SYS_COMMIT)


@dataclass(frozen=True, slots=True)
class DispatchRequests:
    """The records of ``[begin, end)`` as columns; ``queue`` indexes ``topics`` and ``queue_ids``.

    ``key_hash`` holds the index key hashes of all records, those of record r up to
    ``key_end[r]``. The ``multi_…`` columns hold one element per multi-dispatch unit.
    """

    begin: int
    end: int
    topics: list[str]
    queue_ids: NDArray[np.int32]
    commit_log_offset: NDArray[np.int64]
    size: NDArray[np.int32]
    queue: NDArray[np.int32]
    queue_offset: NDArray[np.int64]
    tags_code: NDArray[np.int64]
    store_timestamp: NDArray[np.int64]
    transaction: NDArray[np.uint8]
    key_end: NDArray[np.int32]
    key_hash: NDArray[np.int32]
    multi_row: NDArray[np.int32]
    multi_queue: NDArray[np.int32]
    multi_offset: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.size)

    @property
    def is_queued(self) -> NDArray[np.bool_]:
        """Whether each record enters its queue."""
        queued: NDArray[np.bool_] = is_queued(self.transaction)
        return queued

    def packed(self) -> dict[str, bytes]:
        """Return each column as little-endian bytes."""
        return {
            name: np.ascontiguousarray(getattr(self, name), kind).tobytes()
            for name, kind in COLUMN_TYPES.items()
        }

    @classmethod
    def unpack(
        cls, span: tuple[int, int], queues: tuple[list[str], Any], columns: Mapping[str, Any]
    ) -> DispatchRequests:
        """Build from packed columns. Buffers are not copied."""
        begin, end = span
        topics, queue_ids = queues
        arrays = {n: np.frombuffer(columns[n], kind) for n, kind in COLUMN_TYPES.items()}
        return cls(begin, end, topics, np.frombuffer(queue_ids, "<i4"), **arrays)

    @classmethod
    def of(
        cls,
        span: tuple[int, int],
        queues: tuple[list[str], list[int]] = ([], []),
        **columns: NDArray[Any],
    ) -> DispatchRequests:
        """Build from some columns; the others hold zeros, and no keys and no units."""
        count = len(columns["commit_log_offset"])
        zeros: dict[str, NDArray[Any]] = {
            name: np.zeros(count if name in _PER_RECORD else 0, kind)
            for name, kind in COLUMN_TYPES.items()
        }
        begin, end = span
        topics, queue_ids = queues
        return cls(begin, end, topics, np.array(queue_ids, np.int32), **{**zeros, **columns})

    def starting_at(self, offset: int) -> DispatchRequests:
        """Return the part whose records begin at ``offset`` or later."""
        first = int(np.searchsorted(self.commit_log_offset, offset))
        if first == 0:
            return self
        return self.slice(first, len(self))

    def slice(self, first: int, last: int) -> DispatchRequests:
        """Return records ``first`` to ``last`` (exclusive) with their keys and units."""
        key_from = int(self.key_end[first - 1]) if first else 0
        key_to = int(self.key_end[last - 1]) if last else 0
        multi_from, multi_to = np.searchsorted(self.multi_row, [first, last])
        rows = slice(first, last)
        multis = slice(int(multi_from), int(multi_to))
        columns: dict[str, NDArray[Any]] = {
            **{name: getattr(self, name)[rows] for name in _PER_RECORD},
            "key_end": self.key_end[rows] - np.int32(key_from),
            "key_hash": self.key_hash[key_from:key_to],
            "multi_row": self.multi_row[multis] - np.int32(first),
            "multi_queue": self.multi_queue[multis],
            "multi_offset": self.multi_offset[multis],
        }
        offsets = columns["commit_log_offset"]
        begin = int(offsets[0]) if len(offsets) else self.end
        end = self.end if last == len(self) else int(self.commit_log_offset[last])
        return DispatchRequests(begin, end, self.topics, self.queue_ids, **columns)


def concat(parts: list[DispatchRequests]) -> DispatchRequests:
    """Concatenate adjacent requests, merging their queue tables."""
    if len(parts) == 1:
        return parts[0]
    numbers: dict[tuple[str, int], int] = {}
    renumber = [
        np.array(
            [
                numbers.setdefault(queue, len(numbers))
                for queue in zip(p.topics, p.queue_ids.tolist(), strict=True)
            ],
            np.int32,
        )
        for p in parts
    ]
    rows = np.cumsum([0, *[len(p) for p in parts]])
    keys = np.cumsum([0, *[len(p.key_hash) for p in parts]])
    columns: dict[str, list[NDArray[Any]]] = {
        n: [getattr(p, n) for p in parts] for n in COLUMN_TYPES
    }
    columns["queue"] = [r[p.queue] for r, p in zip(renumber, parts, strict=True)]
    columns["multi_queue"] = [r[p.multi_queue] for r, p in zip(renumber, parts, strict=True)]
    columns["key_end"] = [p.key_end + np.int32(k) for k, p in zip(keys[:-1], parts, strict=True)]
    columns["multi_row"] = [
        p.multi_row + np.int32(r) for r, p in zip(rows[:-1], parts, strict=True)
    ]
    return DispatchRequests(
        begin=parts[0].begin,
        end=parts[-1].end,
        topics=[topic for topic, _ in numbers],
        queue_ids=np.array([queue_id for _, queue_id in numbers], np.int32),
        **{name: np.concatenate(arrays) for name, arrays in columns.items()},
    )
