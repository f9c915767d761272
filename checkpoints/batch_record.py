"""The batch record ``OUTPUT/reput/batch``: the undo record of the batch in flight.

It is durable before the first byte of the batch is written. It holds the end of each queue that the
batch touches, and of the newest index file, before the batch. OUTPUT may hold any part of the batch
while its progress does not count it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from checkpoints.state_paths import BATCH
from store.consumequeue.queue_ends import QueueEnd
from store.index.index_end import IndexEnd
from store.io.checked_json import BY_POSITION, Count, encode_record, read_record
from store.io.disk import Disk
from store.output.progress import Progress

# dataclasses.astuple copies deeply: 50,000 queues would take a second.
_values_of = attrgetter(*(field.name for field in dataclasses.fields(QueueEnd)))


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The ends to truncate OUTPUT to, while progress does not count batch ``number``.

    ``progress`` is the progress after the truncation, as a recovery records it; None, in the record
    of every batch, leaves the progress unchanged.
    """

    number: Count
    queues: tuple[Annotated[QueueEnd, BY_POSITION], ...]
    index: IndexEnd | None  # None: no index, or the batch does not touch it
    progress: Progress | None = None


def write_batch(output: Path, record: BatchRecord, disk: Disk) -> None:
    """Write, durably, the ends that a recovery truncates OUTPUT to from now on."""
    queues = [_values_of(end) for end in record.queues]
    disk.replace(output / BATCH, encode_record(record, queues=queues))


def read_batch(output: Path) -> BatchRecord | None:
    """Return the record of the last batch, None if there has been none.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    return read_record(output / BATCH, BatchRecord)
