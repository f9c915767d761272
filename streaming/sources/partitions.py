"""How a batch of the log is cut into Spark partitions: one range of one log for each task.

Here are the sizes that a range should have. ``store.commitlog.planner`` cuts the log at the record
boundaries nearest to them. All partitions of one log tile it, in log order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from store.commitlog.scanner import LogRange
from store.config import StoreConfig
from streaming.sources.queues.offsets import QueueSpans
from streaming.sources.stores import Store

BATCH_RANGE_BYTES = 64 << 20
_STREAM_BATCH_BYTES = 64 << 20  # if maxBytesPerTrigger does not say
_STREAM_PARTITIONS = 2
_RANGE_BYTES_MIN, _RANGE_BYTES_MAX = 4 << 20, 64 << 20
_TASK_BYTES_MIN = 16 << 10  # reading less takes less time than starting a task


@dataclass(frozen=True)
class MessagePartition(InputPartition):
    """One range of the log of one store, of the public source."""

    part: LogRange
    store: Store
    queues: QueueSpans
    config: StoreConfig  # found once, on the driver


@dataclass(frozen=True)
class DispatchPartition(InputPartition):
    """One range of the log of a dispatch; ``is_spooled``: its columns bypass Spark if they can.

    This holds for all ranges of a batch: the sink takes one only after the one before it.
    """

    part: LogRange
    is_spooled: bool


def message_partitions(
    ranges: Iterable[LogRange], store: Store, queues: QueueSpans, config: StoreConfig
) -> list[InputPartition]:
    """Return the partitions of one store."""
    return [MessagePartition(part, store, queues, config) for part in ranges]


def batch_range_bytes(log_bytes: int, partitions_min: int) -> int:
    """Return the size of a range of a batch read with ``minPartitions``."""
    return max(log_bytes // partitions_min, _TASK_BYTES_MIN)


def stream_range_bytes(batch_bytes: int | None, partitions_min: int | None) -> int:
    """Return the size of a range of a stream, by ``maxBytesPerTrigger`` and ``minPartitions``."""
    size = (batch_bytes or _STREAM_BATCH_BYTES) // (partitions_min or _STREAM_PARTITIONS)
    return max(size, _RANGE_BYTES_MIN)


def dispatch_range_bytes(batch_bytes: int, cores: int) -> int:
    """Return the size of a range of a dispatch: a share of the batch for each core."""
    return min(max(batch_bytes // cores, _RANGE_BYTES_MIN), _RANGE_BYTES_MAX)
