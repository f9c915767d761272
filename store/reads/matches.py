"""The messages of a log that match filters, in stretches that a scan has read.

The columns of a scan exclude most records; only candidates are decoded, and checked in full.

Damage raises DamageError after the matches before it. A file that expires is no damage: its
messages are no longer in the log.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from store.arrow.batches import BodyLimits, message_batches
from store.commitlog.commit_log import CommitLog, decode_in_file, was_closed_cleanly
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.record import Message, limit_bodies
from store.commitlog.scanner import Damage, Stretch
from store.config import StoreConfig
from store.errors import StoreIOError
from store.io.mapped_file import MappedFile
from store.reads.message_filter import MessageFilter

_RANGE_BYTES = 16 * 1024 * 1024


class LogMatches:
    """The log of the store at ``store_root``, for any number of filters. Not thread-safe.

    ``config`` and ``planner`` are those of the scans: with them, a scan hashes keys.
    """

    def __init__(
        self, store_root: Path, config: StoreConfig, max_body_bytes: int = BODY_BYTES_MAX
    ) -> None:
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        self.config = replace(config, message_index_enable=True)
        self.planner = LogPlanner(
            self.log, lambda: was_closed_cleanly(store_root), range_bytes=_RANGE_BYTES
        )
        self._max_body_bytes = max_body_bytes

    def readable(self, stretches: Iterable[Stretch]) -> Iterator[DispatchRequests]:
        """Yield the requests before any damage. Raises DamageError, not for an expired part."""
        for stretch in stretches:
            if isinstance(stretch, DispatchRequests):
                yield stretch
            else:
                self.check_expired(stretch)

    def rows(self, requests: DispatchRequests, wanted: MessageFilter) -> NDArray[np.int64]:
        """Return the rows of a stretch that only ``messages`` can still exclude, in log order."""
        rows = wanted.candidates(requests)
        if len(rows) and wanted.columns:
            file = self._file_of(requests)
            if file is None:
                return rows[:0]
            rows = rows[self._column_mask(requests, rows, file, wanted)]
        return rows

    def messages(
        self, requests: DispatchRequests, rows: NDArray[np.int64], wanted: MessageFilter
    ) -> Iterator[Message]:
        """Yield the messages of rows that match, in the order of the rows."""
        file = self._file_of(requests) if len(rows) else None
        if file is None:
            return
        for offset in requests.commit_log_offset[rows].tolist():
            message = decode_in_file(file, offset, self.config)
            if wanted.confirms(message):
                limit_bodies((message,), self._max_body_bytes)
                yield message

    def check_expired(self, damage: Damage) -> None:
        """Raise DamageError unless the damage is a part of the log that has expired."""
        self.log.refresh()
        if not damage.is_lost or damage.end > self.log.min_offset():
            raise damage.error()

    def _column_mask(
        self,
        requests: DispatchRequests,
        rows: NDArray[np.int64],
        file: MappedFile,
        wanted: MessageFilter,
    ) -> NDArray[np.bool_]:
        batches = message_batches(
            requests,
            file.view(),
            file.base,
            wanted.columns,
            rows=rows,
            config=self.config,
            path=file.path,
            limits=BodyLimits(self._max_body_bytes),
        )
        return np.concatenate([wanted.column_mask(batch) for batch in batches])

    def _file_of(self, requests: DispatchRequests) -> MappedFile | None:
        """Return the file of a stretch, None if it has expired since the scan."""
        file = self.log.find(requests.begin)
        try:
            if file is not None:
                file.map()
                return file
        except StoreIOError as e:
            if e.errno != errno.ENOENT:
                raise
        path, why = str(self.log.path_of(requests.begin)), "the file has been deleted"
        self.check_expired(Damage(requests.begin, requests.end, path, why, is_lost=True))
        return None
