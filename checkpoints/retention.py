"""Retention: files of OUTPUT whose messages have all expired are deleted, as by a broker.

``store.output.expiry`` determines the files. A crash can happen at any point, on a disk that keeps
any part of the writes that were not synced, so:

* a queue's files are deleted oldest first, each deletion synced before the next one, so that the
  remaining files are always contiguous;
* progress stops counting an index file before the file is deleted. Older index files that a crash
  leaves are not read, and the next start deletes them.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from checkpoints.output import DispatchOutput
from store.config import StoreConfig
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.writer import IndexService
from store.output.expiry import expired_index_files, expired_queue_files
from store.output.progress import PROGRESS


class Retention:
    """Deletes the expired files of one OUTPUT, which this process owns, unless they are kept."""

    def __init__(self, output: DispatchOutput, config: StoreConfig, *, keep_expired: bool) -> None:
        self.files = 0  # deleted so far
        self._output = output
        self._config = config
        self._keeps_expired = keep_expired
        self._min_offset = output.progress.begin_offset  # nothing below was dispatched

    def follow_log(self, index: IndexService | None = None) -> None:
        """Delete the files that have expired since the last call. All writes must be synced.

        ``index`` drops its deleted files.
        """
        min_offset = self._output.log.min_offset()
        if self._keeps_expired or min_offset <= self._min_offset:
            return
        self._expire_index(min_offset, index)
        self._expire_queues(min_offset)
        self._min_offset = min_offset

    def _expire_queues(self, min_offset: int) -> None:
        output = self._output
        queues = list(expired_queue_files(output.path, self._config, min_offset))
        for files in queues:
            # An interrupted process may have deleted files there without a sync.
            output.disk.include_in_sync(files[0].parent)
        output.disk.sync()
        for oldest in zip_longest(*queues):
            self._remove([path for path in oldest if path is not None])

    def _expire_index(self, min_offset: int, index: IndexService | None) -> None:
        output, progress = self._output, self._output.progress
        if not self._config.message_index_enable or not progress.index_first:
            return
        expired = expired_index_files(output.path, self._config, progress.index_first, min_offset)
        if not expired:
            return
        names = [path.name for path in list_index_files(output.path)]
        kept = [name for name in names if expired[-1].name < name <= progress.index_file]
        if not kept:
            reason = f"it names {progress.index_file}, but {expired[-1].name} is the newest"
            raise DamageError(output.path / PROGRESS, 0, reason)
        output.set_first_index_file(kept[0], len(kept))
        if index is not None:
            index.forget_before(kept[0])
        self._remove(expired)

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            self._output.disk.remove(path)
        self._output.disk.sync()
        self.files += len(paths)
