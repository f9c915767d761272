"""An OUTPUT root: one owner, its state files, and where its dispatch goes on.

``DispatchRoot.open`` takes the broker's lock, refuses what does not fit and recovers what was left
by a crash; ``commit`` makes a batch durable in the order data, progress, checkpoint (promise I4).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

from checkpoints.batch_record import BatchRecord, read_batch, write_batch
from checkpoints.checkpoint_file import (
    StoreCheckpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from checkpoints.foreign_writer import (
    ANY_ABORT,
    checksum,
    detect_foreign_writer,
    read_ownership_stamp,
)
from checkpoints.output import NEW_OUTPUT_HINT, check_output
from checkpoints.output_state import is_spark_checkpoint, numbered_epochs
from checkpoints.progress import (
    REPUT_DIR,
    BatchEnd,
    OwnershipStamp,
    Progress,
    advance,
    read_progress,
    write_progress,
)
from checkpoints.recovery.adoption import Report
from checkpoints.recovery.fingerprint import check_unchanged, read_fingerprint
from checkpoints.recovery.recovery import Recovered, Recovery, finished_swap
from checkpoints.swap import finish_swap
from store import layout
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig, check_shape
from store.consumequeue.ends import QueueEnd
from store.errors import ConfigError
from store.index.ends import IndexEnd
from store.io.disk import Disk
from store.root.progress import SWAP

_EPOCHS_DIR = "spark"
_CHANGED_HINT = "the next start goes back to the last record that both have, and on from there"


class DispatchRoot:
    """An OUTPUT that this process owns until ``close``."""

    def __init__(self, path: Path, disk: Disk, lock: IO[bytes] | None) -> None:
        self.path = path
        self.disk = disk
        self.is_unread = lock is None  # nobody reads it, and it lies in a root that is locked
        self.log: CommitLog
        self.progress: Progress
        self.recovered: tuple[Recovered, ...] = ()
        self._checkpoint: StoreCheckpoint | None = None
        self._lock = lock

    @classmethod
    def open(  # noqa: PLR0913 - how a root is opened
        cls,
        output: Path,
        store_root: Path,
        config: StoreConfig,
        *,
        from_offset: int | None = None,
        disk: Disk | None = None,
        report: Report | None = None,
    ) -> DispatchRoot:
        """Take a root, recover it if need be, and find where its dispatch goes on.

        ``from_offset``, a record boundary, is where a new root begins; on one that has progress
        it must not lie beyond it, which would leave a hole. ``recovered`` tells what was done.

        Raises RootInUseError if another process owns it, ConfigError if it may not be OUTPUT
        (``checkpoints.output``) or was made with other settings or from another log, DamageError
        if the log is another one.
        """
        check_output(output, store_root, config.commit_log_paths(store_root))
        disk = disk if disk is not None else Disk()
        root = cls(output, disk, disk.lock(output / layout.LOCK_FILE, layout.LOCK_CONTENT))
        try:
            root._begin(store_root, config, from_offset, report)
        except BaseException:
            root._release()
            raise
        return root

    @classmethod
    def replacing(
        cls, output: Path, store_root: Path, config: StoreConfig, *, disk: Disk | None = None
    ) -> DispatchRoot:
        """Take a root whose queues and index are about to be replaced: nothing of it is recovered.

        ``progress`` is that of a root that begins at the log's minimum. Raises RootInUseError,
        ConfigError if it may not be OUTPUT, holds foreign files where it is replaced, or was made
        from another log or with other settings.
        """
        check_output(output, store_root, config.commit_log_paths(store_root), is_replaced=True)
        disk = disk if disk is not None else Disk()
        root = cls(output, disk, disk.lock(output / layout.LOCK_FILE, layout.LOCK_CONTENT))
        try:
            root._begin_anew(store_root, config)
        except BaseException:
            root._release()
            raise
        return root

    @classmethod
    def unread(
        cls, root: DispatchRoot, path: Path, begin: int, config: StoreConfig
    ) -> DispatchRoot:
        """Open a root below one that is owned: of the same log, dispatched from ``begin`` on.

        It is recovered if need be, as by ``open``; its ``close`` gives nothing back.
        """
        built = cls(path, root.disk, None)
        built._begin(Path(root.progress.store), config, begin, None)
        built.progress = replace(built.progress, log_was_clean=root.progress.log_was_clean)
        return built

    def _begin_anew(self, store_root: Path, config: StoreConfig) -> None:
        self._checkpoint = read_checkpoint(self.path)
        before, has_abort = read_progress(self.path), (self.path / layout.ABORT_FILE).exists()
        if before is not None:
            _check_same(before, store_root, config, self.path)
        before = finish_swap(self.path, before, self.disk)
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        new = self._new_progress(store_root, config, before, max(self.log.min_offset(), 0))
        log_was_clean = None
        if _same_directory(self.path, store_root):
            is_ours = before is not None and not self._find_other(before)
            log_was_clean = before.log_was_clean if before and is_ours else not has_abort
        self.progress = replace(new, log_was_clean=log_was_clean)

    def replaced(self, progress: Progress) -> None:
        """Own the root that has been put in the place of the one that was taken."""
        self.progress = progress
        self._own(self.log.config)

    def _begin(
        self,
        store_root: Path,
        config: StoreConfig,
        from_offset: int | None,
        report: Report | None,
    ) -> None:
        self._checkpoint = read_checkpoint(self.path)
        progress, has_abort = read_progress(self.path), (self.path / layout.ABORT_FILE).exists()
        if progress is not None:
            if progress.batch == 0 and progress.is_untouched and read_batch(self.path) is None:
                progress = replace(progress, shape=config.shape())  # nothing depends on it yet
            _check_same(progress, store_root, config, self.path)
        began, is_in_swap = time.monotonic(), self.is_in_swap()
        progress = finish_swap(self.path, progress, self.disk)
        if is_in_swap and progress is not None:
            seconds = time.monotonic() - began
            self.recovered = (finished_swap(progress.reput_from_offset, seconds),)
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        recovery = Recovery(self.path, self.log, self.disk, report)
        why = self._find_other(progress)
        if progress is None or why:
            begin = max(self.log.min_offset(), 0) if from_offset is None else from_offset
            if why:  # it may have units of messages that have expired since
                begin = progress.begin_offset if progress is not None else 0
            new = self._new_progress(store_root, config, progress, begin)
            is_same = _same_directory(self.path, store_root)
            new = replace(new, log_was_clean=not has_abort if is_same else None)
            progress = new if not why else recovery.adopt(new, self._planner(new, store_root), why)
        else:
            progress = recovery.roll_back_batch(progress)
            progress = recovery.follow_log(progress, self._planner(progress, store_root))
        self.recovered += tuple(recovery.done)
        if from_offset is not None and from_offset > progress.reput_from_offset:
            raise ConfigError(
                f"offset {from_offset} lies beyond the progress of {self.path} (offset "
                f"{progress.reput_from_offset}): that would leave a hole"
            )
        self.progress = replace(progress, is_recovering=False)
        self._own(config)

    def _find_other(self, progress: Progress | None) -> str:
        """Say how it is seen that something else wrote to the root, "" if it is not."""
        if progress is not None:
            broker = detect_foreign_writer(self.path, progress.signs)
            return f"a broker ran on it since: {broker}" if broker else ""
        for name in (layout.CONSUME_QUEUE_DIR, layout.CONSUME_QUEUE_EXT_DIR, layout.INDEX_DIR):
            if _has_entries(self.path / name):
                return "a broker made it"
        return ""

    def _planner(self, progress: Progress, store_root: Path) -> LogPlanner:
        is_clean = _is_log_clean(progress, store_root)
        return LogPlanner(self.log, lambda: is_clean)

    def _own(self, config: StoreConfig) -> None:
        """Write ``abort`` and ``checkpoint``, and note what a broker that ran here would change."""
        checkpoint = self._checkpoint_of(self.progress)
        before = checksum(encode_checkpoint(self._checkpoint)) if self._checkpoint else ""
        signs = OwnershipStamp(checksum(encode_checkpoint(checkpoint)), before, ANY_ABORT)
        write_progress(self.path, replace(self.progress, signs=signs), self.disk)
        content = str(os.getpid()).encode() if config.writes_pid_in_abort else b""
        self.disk.replace(self.path / layout.ABORT_FILE, content)
        self._write_checkpoint(checkpoint)
        self.disk.sync()
        self.progress = replace(self.progress, signs=read_ownership_stamp(self.path, before))
        write_progress(self.path, self.progress, self.disk)

    def _new_progress(
        self, store_root: Path, config: StoreConfig, before: Progress | None, begin: int
    ) -> Progress:
        """Return the progress of a root that begins now, or anew where it began before."""
        return Progress(
            reput_from_offset=begin,
            begin_offset=begin,
            store=str(store_root.resolve()),
            commit_log=",".join(map(str, config.commit_log_paths(store_root.resolve()))),
            shape=config.shape(),
            # One that leaves no milestone: the files of a root that begins anew are another
            # generation (``store.root.progress``).
            batch=before.batch + 1 if before is not None else 0,
        )

    def is_log_clean(self, store_root: Path) -> bool:
        """Tell whether the broker closed the log cleanly (its own ``abort`` is gone)."""
        return _is_log_clean(self.progress, store_root)

    def check_log(self) -> None:
        """Raise DamageError if the log no longer holds the record dispatched last."""
        self.log.refresh()
        progress = self.progress
        check_unchanged(self.log, progress.last_record, progress.dispatched_to, hint=_CHANGED_HINT)

    def may_skip(self, offset: int) -> bool:
        """Tell whether damage at ``offset`` may be skipped: never in a live log's last file."""
        last = self.log.last_file()
        is_last = last is not None and offset >= last.base
        return not is_last or self.is_log_clean(Path(self.progress.store))

    def begin_batch(self, queues: Iterable[QueueEnd], index: IndexEnd | None) -> None:
        """Write down, durably, where the files end that a batch is about to write."""
        record = BatchRecord(self.progress.batch + 1, tuple(queues), index)
        write_batch(self.path, record, self.disk)

    def commit(self, end: BatchEnd) -> None:
        """Make a batch durable: data, then progress, then checkpoint (promise I4)."""
        self.disk.sync()
        progress = self.advanced(end)
        checkpoint = self._checkpoint_of(progress)
        signs = progress.signs
        if checkpoint != self._checkpoint:
            signs = replace(
                signs,
                checkpoint=checksum(encode_checkpoint(checkpoint)),
                checkpoint_before=signs.checkpoint,
            )
        progress = replace(progress, signs=signs)
        write_progress(self.path, progress, self.disk)
        self.progress = progress
        self._write_checkpoint(checkpoint)

    def advanced(self, end: BatchEnd) -> Progress:
        """Return the progress that there is after a batch."""
        first = last = None
        if end.last_offset >= 0:
            last = read_fingerprint(self.log, end.last_offset)
        if end.first_offset >= 0 and not self.progress.milestones:
            first = read_fingerprint(self.log, end.first_offset)
        return advance(self.progress, end, first, last)

    def count_index_from(self, first: str, files: int) -> None:
        """Let, durably, only the index files from the one named ``first`` on count."""
        self.progress = replace(self.progress, index_first=first, index_files=files)
        write_progress(self.path, self.progress, self.disk)

    def is_in_swap(self) -> bool:
        """Tell whether rebuilt queues are on the way to their places: the next start goes on."""
        return (self.path / SWAP).exists()

    def close(self, *, clean: bool) -> None:
        """Give the root back; ``clean`` removes ``abort``."""
        try:
            if clean:
                self.disk.remove(self.path / layout.ABORT_FILE)
                self.disk.sync()
        finally:
            self._release()

    def new_epoch(self) -> Path:
        """Begin a new Spark checkpoint directory and remove the old ones (promise I7).

        Entries of other names, such as an NFS client's ``.nfs…``, are left as they are, and so is a
        directory that holds anything but a Spark checkpoint.
        """
        epochs = self.path / REPUT_DIR / _EPOCHS_DIR
        old = numbered_epochs(epochs)
        number = max(old.values(), default=0) + 1
        epoch = epochs / f"epoch-{number:06d}"
        self.disk.make_directory(epoch)
        for directory in filter(is_spark_checkpoint, old):
            self.disk.remove_tree(directory)
        return epoch

    def _release(self) -> None:
        if self._lock is not None:
            self.disk.close()
            self.disk.unlock(self._lock)

    def _checkpoint_of(self, progress: Progress) -> StoreCheckpoint:
        """Return the checkpoint that goes with a progress; what a broker put there is kept."""
        known, last = self._checkpoint or StoreCheckpoint(), progress.last_record
        stamp = last.store_timestamp if last is not None else known.physic_msg_timestamp
        checkpoint = replace(
            known,
            physic_msg_timestamp=stamp,
            logics_msg_timestamp=stamp,
            index_msg_timestamp=progress.index_msg_timestamp,
        )
        if last is not None and self.log.config.writes_logics_physical_offset:
            checkpoint = replace(checkpoint, logics_physical_offset=last.offset)
        return checkpoint

    def _write_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        if checkpoint != (self._checkpoint or StoreCheckpoint()):
            write_checkpoint(self.path, checkpoint, self.disk)
            self._checkpoint = checkpoint


def _is_log_clean(progress: Progress, store_root: Path) -> bool:
    if progress.log_was_clean is not None:
        return progress.log_was_clean
    return not (store_root / layout.ABORT_FILE).exists()


def _check_same(progress: Progress, store_root: Path, config: StoreConfig, path: Path) -> None:
    """Raise ConfigError if a root was made from another log or with other settings."""
    if progress.store != str(store_root.resolve()):
        raise ConfigError(
            f"{path} was made from {progress.store}, not from {store_root}; {NEW_OUTPUT_HINT}"
        )
    hint = f"give the broker.conf and version it was made with, or {NEW_OUTPUT_HINT}"
    check_shape(progress.shape, config, path, hint)


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _same_directory(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()
