"""Messages of one queue as Arrow columns, read from its units without a scan of the log.

Kernels check each record in full, CRCs included, and read its fields. A record that does not match
its unit exactly (topic, queue id, queue offset) is checked by ``QueueReader.message_of``, which
accepts multi-dispatch units and closed gaps and raises for damage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.arrow.batches import BodyLimits, message_batches
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.record_of_unit import RecordRef
from store.commitlog.scanner import scan_rules
from store.consumequeue.files import UnitColumns
from store.consumequeue.reader import QueueReader
from store.errors import DamageError
from store.io.mapped_file import MappedFile
from store.kernels.message_columns import Heads, read_heads
from store.layout import EXT_ADDRESS_MAX

_UNITS_MAX = 1 << 16
_RECORD_BYTES_MAX = 16 * 1024 * 1024


def queue_batch(
    queue: QueueReader,
    log: CommitLog,
    span: tuple[int, int],
    wanted: Sequence[str],
    limits: BodyLimits,
) -> pa.RecordBatch:
    """Return the wanted columns of the first messages in a span of positions, not empty.

    The batch ends with a file of the queue or of the log, at 65,536 messages or 16 MB of records,
    or at the limit of decompressed bodies; it has at least one message. Raises DamageError,
    LostDataError, BodyTooLargeError, ConfigError for an unknown column.
    """
    position, stop = span
    units = queue.units(position, min(stop - position, _UNITS_MAX))
    file = log.file_of(units.commit_log_offset[0])
    requests = _requests(queue, log, file, (position, units))
    batches = message_batches(
        requests,
        file.view(),
        file.base,
        wanted,
        config=log.config,
        path=file.path,
        limits=limits,
    )
    return next(batches)


def _requests(
    queue: QueueReader, log: CommitLog, file: MappedFile, units: tuple[int, UnitColumns]
) -> DispatchRequests:
    """Read the records of units, the first of which is at a position, as far as in one file."""
    position, (begins, sizes, tags_codes) = units
    begin, size = np.array(begins, np.int64), np.array(sizes, np.int64)
    count = int(np.searchsorted(begin, file.base + file.length))
    count = max(min(count, int(np.searchsorted(np.cumsum(size), _RECORD_BYTES_MAX))), 1)
    begin, size = begin[:count], size[:count]
    heads = Heads(
        np.empty(count, np.int32), *(np.empty(count, np.int64) for _ in Heads._fields[1:])
    )
    rules = scan_rules(log.config)
    valid = read_heads(file.view(), file.base, (begin - file.base, size), rules, heads)
    matches = _matches(queue, file.view(), heads, valid)
    matches &= heads.queue_offset == np.arange(position, position + count)
    refs = [RecordRef(begins[n], sizes[n], position + n) for n in np.flatnonzero(~matches).tolist()]
    owners = _Owners(queue, position, count)
    readable = owners.add_all(refs, heads)
    return DispatchRequests.of(
        (begins[0], begins[count - 1] + sizes[count - 1]),
        ([topic for topic, _ in owners.numbers], [queue_id for _, queue_id in owners.numbers]),
        commit_log_offset=begin,
        size=size.astype(np.int32),
        queue=owners.of_row,
        queue_offset=heads.queue_offset,
        tags_code=_tags_codes(queue, tags_codes[:count]),
        store_timestamp=heads.store_timestamp,
    ).slice(0, readable)


class _Owners:
    """The queue that each message names: the queue read, except for multi-dispatch units."""

    def __init__(self, queue: QueueReader, position: int, count: int) -> None:
        self._queue, self._position = queue, position
        self.numbers = {(queue.topic, queue.queue_id): 0}
        self.of_row = np.zeros(count, np.int32)

    def add_all(self, refs: Sequence[RecordRef], heads: Heads) -> int:
        """Check the records that do not match their units; return how many rows are readable.

        The rows before a damaged one are a batch of their own. Raises DamageError at the first row.
        """
        for ref in refs:
            row = ref.position - self._position
            try:
                message = self._queue.message_of(ref)
            except DamageError:
                if row == 0:
                    raise
                return row
            owner = message.topic, message.queue_id
            self.of_row[row] = self.numbers.setdefault(owner, len(self.numbers))
            heads.queue_offset[row] = message.queue_offset
            heads.store_timestamp[row] = message.store_timestamp
        return len(self.of_row)


def _matches(
    queue: QueueReader, view: NDArray[np.uint8], heads: Heads, valid: int
) -> NDArray[np.bool_]:
    """Return for each record whether it is valid and names this queue."""
    topic = np.frombuffer(queue.topic.encode("utf-8", "surrogatepass"), np.uint8)
    matches = np.zeros(len(heads.queue_id), np.bool_)
    matches[:valid] = heads.queue_id[:valid] == queue.queue_id
    matches[:valid] &= heads.topic_end[:valid] - heads.topic_at[:valid] == len(topic)
    rows = np.flatnonzero(matches)
    found = view[heads.topic_at[rows, None] + np.arange(len(topic))]
    matches[rows] = (found == topic).all(axis=1)
    return matches


def _tags_codes(queue: QueueReader, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tags codes of units, those in an ext file resolved."""
    resolved = codes.astype(np.int64)
    for row in np.flatnonzero(resolved <= EXT_ADDRESS_MAX).tolist():
        code = queue.tags_code(int(resolved[row]))
        resolved[row] = resolved[row] if code is None else code
    return resolved
