"""The life cycle of OUTPUT: lock, recover, own, commit batches, close.

``DispatchOutput.open`` takes the broker's lock, refuses a directory that may not be OUTPUT, and
recovers it. ``checkpoints.recovery.steps`` defines the order of the steps after a crash.
OUTPUT is then owned: ``_take_ownership`` writes ``abort`` and ``checkpoint``, and records a stamp
of them that shows later whether a broker has run on OUTPUT.

``checkpoints.commit`` defines the order in which a batch is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from checkpoints.allowed_output import NEW_OUTPUT_HINT, check_output
from checkpoints.batch_record import read_batch
from checkpoints.checkpoint_file import StoreCheckpoint, encode_checkpoint, read_checkpoint
from checkpoints.commit import (
    BatchEnd,
    advance,
    begin_batch,
    checkpoint_of,
    commit_batch,
    update_checkpoint,
)
from checkpoints.ownership import (
    ANY_ABORT,
    checksum,
    detect_foreign_writer,
    read_ownership_stamp,
)
from checkpoints.recovery.adoption import RecoveryReporter
from checkpoints.recovery.fingerprint import check_unchanged, read_fingerprint
from checkpoints.recovery.steps import Recovered, Recovery, finished_swap
from checkpoints.spark_epochs import create_epoch
from checkpoints.swap import finish_swap
from store import layout
from store.commitlog.commit_log import CommitLog, was_closed_cleanly
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig, check_shape
from store.consumequeue.queue_ends import QueueEnd
from store.errors import ConfigError
from store.index.index_end import IndexEnd
from store.io.disk import Disk
from store.output.progress import (
    SWAP,
    LostRange,
    OwnershipStamp,
    Progress,
    read_progress,
    write_progress,
)

_CHANGED_HINT = "the next start rolls back to the last record that both have, and resumes there"


class DispatchOutput:
    """An OUTPUT that this process owns until ``close``."""

    def __init__(self, path: Path, disk: Disk, lock: IO[bytes] | None) -> None:
        self.path = path
        self.disk = disk
        self.is_unread = lock is None  # it has no readers, and is inside an OUTPUT that is locked
        self.log: CommitLog
        self.progress: Progress
        self.recovered: tuple[Recovered, ...] = ()
        self.known_losses: tuple[LostRange, ...] = ()  # of the files that a rebuild replaces
        self._checkpoint: StoreCheckpoint | None = None
        self._lock = lock

    @classmethod
    def open(  # noqa: PLR0913 - the options of opening OUTPUT
        cls,
        output: Path,
        store_root: Path,
        config: StoreConfig,
        *,
        from_offset: int | None = None,
        adopts: bool = False,
        disk: Disk | None = None,
        report: RecoveryReporter | None = None,
    ) -> DispatchOutput:
        """Lock OUTPUT, recover it if necessary, and take ownership of it.

        ``from_offset``, a record boundary, is where the dispatch of a new OUTPUT begins. If OUTPUT
        has progress, it must not be beyond that progress, which would leave a hole. ``recovered``
        lists the recoveries that were performed. Without ``adopts``, a broker's files are refused,
        except in STORE and in an OUTPUT that has a state file.

        Raises OutputInUseError if another process owns it; ConfigError if it may not be OUTPUT
        (``checkpoints.allowed_output``), or was created with other settings or from another log;
        DamageError if the log holds nothing that is known to have been dispatched.
        """
        check_output(output, store_root, config.commit_log_paths(store_root), adopts=adopts)
        disk = disk if disk is not None else Disk()
        owned = cls(output, disk, disk.lock(output / layout.LOCK_FILE, layout.LOCK_CONTENT))
        try:
            owned._recover(store_root, config, from_offset, report)
        except BaseException:
            owned._release()
            raise
        return owned

    @classmethod
    def replacing(
        cls, output: Path, store_root: Path, config: StoreConfig, *, disk: Disk | None = None
    ) -> DispatchOutput:
        """Lock an OUTPUT whose queues and index are about to be replaced, without recovering them.

        ``progress`` is that of a new OUTPUT that begins at the log's minimum offset. Raises
        OutputInUseError; ConfigError if the directory may not be OUTPUT, holds foreign files in a
        directory that is replaced, or was created from another log or with other settings.
        """
        check_output(output, store_root, config.commit_log_paths(store_root), is_replaced=True)
        disk = disk if disk is not None else Disk()
        owned = cls(output, disk, disk.lock(output / layout.LOCK_FILE, layout.LOCK_CONTENT))
        try:
            owned._prepare_replacement(store_root, config)
        except BaseException:
            owned._release()
            raise
        return owned

    @classmethod
    def open_new_output(
        cls, owned: DispatchOutput, path: Path, begin: int, config: StoreConfig
    ) -> DispatchOutput:
        """Open the new OUTPUT of a rebuild, inside ``owned``, to be dispatched from ``begin``.

        It is of the same log, and is recovered if necessary, as by ``open``. It has no lock, so
        ``close`` releases none.
        """
        built = cls(path, owned.disk, None)
        built.known_losses = owned.known_losses
        built._recover(Path(owned.progress.store), config, begin, None)
        built.progress = replace(built.progress, log_was_clean=owned.progress.log_was_clean)
        return built

    def _prepare_replacement(self, store_root: Path, config: StoreConfig) -> None:
        self._checkpoint = read_checkpoint(self.path)
        before, has_abort = read_progress(self.path), (self.path / layout.ABORT_FILE).exists()
        if before is not None:
            _check_origin(before, store_root, config, self.path)
        before = finish_swap(self.path, before, self.disk)
        self.known_losses = before.lost if before is not None else ()
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        new = self._new_progress(store_root, config, before, max(self.log.min_offset(), 0))
        log_was_clean = None
        if _is_same_directory(self.path, store_root):
            is_ours = before is not None and not self._detect_foreign_writer(before)
            log_was_clean = before.log_was_clean if before and is_ours else not has_abort
        self.progress = replace(new, log_was_clean=log_was_clean)

    def own_replacement(self, progress: Progress) -> None:
        """Take ownership of the rebuilt files that have replaced those of this OUTPUT."""
        self.progress = progress
        self._take_ownership(self.log.config)

    def _recover(
        self,
        store_root: Path,
        config: StoreConfig,
        from_offset: int | None,
        report: RecoveryReporter | None,
    ) -> None:
        """Perform the steps that ``checkpoints.recovery.steps`` numbers, and take ownership."""
        self._checkpoint = read_checkpoint(self.path)
        progress, has_abort = read_progress(self.path), (self.path / layout.ABORT_FILE).exists()
        if progress is not None:
            if progress.batch == 0 and progress.is_untouched and read_batch(self.path) is None:
                progress = replace(progress, shape=config.shape())  # no file depends on it yet
            _check_origin(progress, store_root, config, self.path)
        started, is_in_swap = time.monotonic(), self.is_in_swap()
        progress = finish_swap(self.path, progress, self.disk)  # step 1
        if is_in_swap and progress is not None:
            seconds = time.monotonic() - started
            self.recovered = (finished_swap(progress.reput_from_offset, seconds),)
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        recovery = Recovery(self.path, self.log, self.disk, report)
        why = self._detect_foreign_writer(progress)
        if progress is None or why:
            begin = max(self.log.min_offset(), 0) if from_offset is None else from_offset
            if why:  # OUTPUT may hold units of messages that have expired since
                begin = progress.begin_offset if progress is not None else 0
            new = self._new_progress(store_root, config, progress, begin)
            is_same = _is_same_directory(self.path, store_root)
            new = replace(new, log_was_clean=not has_abort if is_same else None)
            if why:
                new = recovery.adopt(new, self._planner(new, store_root), why)  # step 2
            progress = new
        else:
            progress = recovery.roll_back_batch(progress)  # step 3
            progress = recovery.follow_log(progress, self._planner(progress, store_root))  # step 4
        self.recovered += tuple(recovery.done)
        if from_offset is not None and from_offset > progress.reput_from_offset:
            raise ConfigError(
                f"offset {from_offset} is beyond the progress of {self.path} (offset "
                f"{progress.reput_from_offset}): that would leave a hole"
            )
        self.progress = replace(progress, is_recovering=False)
        self._take_ownership(config)

    def _detect_foreign_writer(self, progress: Progress | None) -> str:
        """Return the evidence that another program wrote to OUTPUT; "" if there is none."""
        if progress is not None:
            evidence = detect_foreign_writer(self.path, progress.stamp)
            return f"a broker ran on it since: {evidence}" if evidence else ""
        for name in (layout.CONSUME_QUEUE_DIR, layout.CONSUME_QUEUE_EXT_DIR, layout.INDEX_DIR):
            if _has_entries(self.path / name):
                return "a broker made it"
        return ""

    def _planner(self, progress: Progress, store_root: Path) -> LogPlanner:
        is_clean = _is_log_clean(progress, store_root)
        return LogPlanner(self.log, lambda: is_clean)

    def _take_ownership(self, config: StoreConfig) -> None:
        """Write ``abort`` and ``checkpoint``, and record the stamp that a broker would change."""
        checkpoint = checkpoint_of(self.progress, self._checkpoint, config)
        before = checksum(encode_checkpoint(self._checkpoint)) if self._checkpoint else ""
        stamp = OwnershipStamp(checksum(encode_checkpoint(checkpoint)), before, ANY_ABORT)
        write_progress(self.path, replace(self.progress, stamp=stamp), self.disk)
        content = str(os.getpid()).encode() if config.writes_pid_in_abort else b""
        self.disk.replace(self.path / layout.ABORT_FILE, content)
        self._checkpoint = update_checkpoint(self.path, checkpoint, self._checkpoint, self.disk)
        self.disk.sync()
        self.progress = replace(self.progress, stamp=read_ownership_stamp(self.path, before))
        write_progress(self.path, self.progress, self.disk)

    def _new_progress(
        self, store_root: Path, config: StoreConfig, before: Progress | None, begin: int
    ) -> Progress:
        """Return the progress of a new OUTPUT, or of one that restarts from ``begin``."""
        batch = before.batch + 1 if before is not None else 0
        return Progress(
            reput_from_offset=begin,
            begin_offset=begin,
            store=str(store_root.resolve()),
            commit_log=",".join(map(str, config.commit_log_paths(store_root.resolve()))),
            shape=config.shape(),
            batch=batch,
            generation=batch,
        )

    def is_log_clean(self, store_root: Path) -> bool:
        """Return whether the broker closed the log cleanly (it deleted its own ``abort``)."""
        return _is_log_clean(self.progress, store_root)

    def check_log(self) -> None:
        """Raise DamageError if the log no longer holds the last dispatched record."""
        self.log.refresh()
        progress = self.progress
        check_unchanged(self.log, progress.last_record, progress.dispatched_to, hint=_CHANGED_HINT)

    def may_skip(self, offset: int) -> bool:
        """Return whether damage at ``offset`` may be skipped: never in a live log's last file."""
        last = self.log.last_file()
        is_last = last is not None and offset >= last.base
        return not is_last or self.is_log_clean(Path(self.progress.store))

    def known_loss_end(self, begin: int) -> int | None:
        """Return the end of the range at ``begin`` that OUTPUT had lost before a rebuild.

        None if there is none. Of the oldest such range, a part may have expired since.
        """
        first = self.progress.begin_offset
        ends = (r.end for r in self.known_losses if max(r.begin, first) == begin < r.end)
        return next(ends, None)

    def begin_batch(self, queues: Iterable[QueueEnd], index: IndexEnd | None) -> None:
        """Record, durably, the ends of the files that a batch is about to write."""
        begin_batch(self.path, self.progress.batch + 1, queues, index, self.disk)

    def commit(self, end: BatchEnd) -> None:
        """Make a batch durable (promise I4)."""
        first = last = None
        if end.last_offset >= 0:
            last = read_fingerprint(self.log, end.last_offset)
        if end.first_offset >= 0 and not self.progress.rollback_points:
            first = read_fingerprint(self.log, end.first_offset)
        after = advance(self.progress, end, first, last)
        config = self.log.config
        committed = commit_batch(self.path, after, self._checkpoint, config, self.disk)
        self.progress, self._checkpoint = committed

    def set_first_index_file(self, first: str, files: int) -> None:
        """Record, durably, that the oldest of the ``files`` index files that count is ``first``."""
        self.progress = replace(self.progress, index_first=first, index_files=files)
        write_progress(self.path, self.progress, self.disk)

    def is_in_swap(self) -> bool:
        """Return whether a swap of rebuilt files is incomplete; the next start finishes it."""
        return (self.path / SWAP).exists()

    def close(self, *, clean: bool) -> None:
        """Release OUTPUT; ``clean`` deletes ``abort``."""
        try:
            if clean:
                self.disk.remove(self.path / layout.ABORT_FILE)
                self.disk.sync()
        finally:
            self._release()

    def new_epoch(self) -> Path:
        """Create the Spark checkpoint directory of a new epoch; delete the old ones."""
        return create_epoch(self.path, self.disk)

    def _release(self) -> None:
        if self._lock is not None:
            self.disk.close()
            self.disk.unlock(self._lock)


def _is_log_clean(progress: Progress, store_root: Path) -> bool:
    if progress.log_was_clean is not None:
        return progress.log_was_clean
    return was_closed_cleanly(store_root)


def _check_origin(progress: Progress, store_root: Path, config: StoreConfig, path: Path) -> None:
    """Raise ConfigError if OUTPUT was created from another log or with other settings."""
    if progress.store != str(store_root.resolve()):
        raise ConfigError(
            f"{path} was made from {progress.store}, not from {store_root}; {NEW_OUTPUT_HINT}"
        )
    hint = f"give the broker.conf and version it was made with, or {NEW_OUTPUT_HINT}"
    check_shape(progress.shape, config, path, hint)


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _is_same_directory(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()
