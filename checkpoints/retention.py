"""Retention: OUTPUT follows the log; files whose messages have all expired go, as a broker's do.

Which files: ``store.root.expiry``. A root may be cut off anywhere in this, on a disk that keeps any of
what was not synced:

* of a queue's files the oldest is deleted and synced before the next one, so that what is left
  always follows on from one another;
* progress no longer counts an index file before that is deleted. What a crash leaves of older ones
  nobody reads, and the next start deletes it.
"""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from checkpoints.progress import progress_path
from checkpoints.root import DispatchRoot
from store.config import StoreConfig
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.writer import IndexService
from store.layout import INDEX_DIR
from store.root.expiry import expired_index_files, expired_queue_files


class Retention:
    """Deletes what has expired of one root, which this process owns, unless told to keep it."""

    def __init__(self, root: DispatchRoot, config: StoreConfig, *, keep_expired: bool) -> None:
        self.files = 0  # deleted so far
        self._root = root
        self._config = config
        self._keeps = keep_expired
        self._min_offset = root.progress.begin_offset  # nothing below was dispatched

    def follow_log(self, index: IndexService | None = None) -> None:
        """Delete what has expired since the last call; nothing may be written and not synced.

        ``index`` is told which of its files are gone.
        """
        min_offset = self._root.log.min_offset()
        if self._keeps or min_offset <= self._min_offset:
            return
        self._expire_index(min_offset, index)
        self._expire_queues(min_offset)
        self._min_offset = min_offset

    def _expire_queues(self, min_offset: int) -> None:
        root = self._root
        queues = list(expired_queue_files(root.path, self._config, min_offset))
        for files in queues:
            root.disk.include_in_sync(
                files[0].parent
            )  # a process killed before may have deleted some
        root.disk.sync()
        for oldest in zip_longest(*queues):
            self._remove([path for path in oldest if path is not None])

    def _expire_index(self, min_offset: int, index: IndexService | None) -> None:
        root, progress = self._root, self._root.progress
        if not self._config.message_index_enable or not progress.index_first:
            return
        expired = expired_index_files(root.path, self._config, progress.index_first, min_offset)
        if not expired:
            return
        names = [path.name for path in list_index_files(root.path / INDEX_DIR)]
        kept = [name for name in names if expired[-1].name < name <= progress.index_file]
        if not kept:
            reason = f"it names {progress.index_file}, but {expired[-1].name} is the newest"
            raise DamageError(progress_path(root.path), 0, reason)
        root.count_index_from(kept[0], len(kept))
        if index is not None:
            index.forget_before(kept[0])
        self._remove(expired)

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            self._root.disk.remove(path)
        self._root.disk.sync()
        self.files += len(paths)
