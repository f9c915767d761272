"""An OUTPUT root: one owner, its state files, and where its dispatch goes on.

``DispatchRoot.open`` takes the broker's lock, reads progress and refuses what does not fit;
``commit`` makes a batch durable in the order data, checkpoint, progress (promise I4).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from checkpoints.batch import read_batch, write_batch
from checkpoints.checkpoint_file import StoreCheckpoint, read_checkpoint, write_checkpoint
from checkpoints.fingerprint import check_fingerprint, read_fingerprint
from checkpoints.progress import (
    REPUT_DIR,
    LostRange,
    Progress,
    progress_path,
    read_progress,
    write_progress,
)
from store import layout
from store.commit_log import CommitLog
from store.config import StoreConfig, other_setting
from store.disk import Disk
from store.errors import ConfigError

_EPOCHS_DIR = "spark"
NEW_OUTPUT_HINT = "give a new OUTPUT"


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """What a dispatched batch leaves for the progress record."""

    reput_from_offset: int
    last_offset: int  # of the last record dispatched, -1 if the batch had none
    messages: int
    index_file: str
    index_count: int
    index_msg_timestamp: int
    drops: Mapping[tuple[str, int], tuple[int, int]]  # repeated, gaps by queue, so far
    lost: tuple[LostRange, ...] = ()


class DispatchRoot:
    """An OUTPUT that this process owns until ``close``."""

    def __init__(self, path: Path, disk: Disk, lock: IO[bytes]) -> None:
        self.path = path
        self.disk = disk
        self.log: CommitLog
        self.progress: Progress
        self._checkpoint: StoreCheckpoint
        self._lock = lock

    @classmethod
    def open(
        cls,
        output: Path,
        store_root: Path,
        config: StoreConfig,
        *,
        from_offset: int | None = None,
        disk: Disk | None = None,
    ) -> DispatchRoot:
        """Take a root and find where its dispatch goes on.

        ``from_offset``, a record boundary, is where a new root begins; on one that has progress
        it must not lie beyond it, which would leave a hole.

        Raises RootInUseError if another process owns it, ConfigError if it was made with other
        settings, from another log, or not by a dispatch of ours, DamageError if the log changed.
        """
        disk = disk if disk is not None else Disk()
        root = cls(output, disk, disk.lock(output / layout.LOCK_FILE, layout.LOCK_CONTENT))
        try:
            root._begin(store_root, config, from_offset)
        except BaseException:
            root._release()
            raise
        return root

    def _begin(self, store_root: Path, config: StoreConfig, from_offset: int | None) -> None:
        has_abort = (self.path / layout.ABORT_FILE).exists()
        progress = read_progress(self.path)
        if progress is not None:
            if progress.is_untouched and read_batch(self.path) is None:
                progress = replace(progress, shape=config.shape())  # nothing depends on it yet
            _check_same(progress, store_root, config, self.path)
        self.log = CommitLog(config.commit_log_paths(store_root), config)
        if progress is None:
            progress = self._new_progress(store_root, config, has_abort=has_abort)
            if from_offset is not None:
                progress = replace(
                    progress, reput_from_offset=from_offset, begin_offset=from_offset
                )
        else:
            if from_offset is not None and from_offset > progress.reput_from_offset:
                raise ConfigError(
                    f"offset {from_offset} lies beyond the progress of {self.path} (offset "
                    f"{progress.reput_from_offset}): that would leave a hole"
                )
            if has_abort:
                _refuse_cut_off_batch(progress, self.path)
        check_fingerprint(self.log, progress.last_record)
        self._checkpoint = read_checkpoint(self.path) or StoreCheckpoint()
        self.progress = progress
        self._write_abort(config)
        self.disk.sync()
        write_progress(self.path, progress, self.disk)

    def _new_progress(self, store_root: Path, config: StoreConfig, *, has_abort: bool) -> Progress:
        for name in (layout.CONSUME_QUEUE_DIR, layout.CONSUME_QUEUE_EXT_DIR, layout.INDEX_DIR):
            if _has_entries(self.path / name):
                raise ConfigError(
                    f"{self.path / name} holds files but {progress_path(self.path)} is missing: "
                    f"a broker or something else made them; {NEW_OUTPUT_HINT}"
                )
        begin = max(self.log.min_offset(), 0)
        is_same = _same_directory(self.path, store_root)
        return Progress(
            reput_from_offset=begin,
            begin_offset=begin,
            store=str(store_root.resolve()),
            commit_log=",".join(map(str, config.commit_log_paths(store_root.resolve()))),
            shape=config.shape(),
            log_was_clean=not has_abort if is_same else None,
        )

    def is_log_clean(self, store_root: Path) -> bool:
        """Tell whether the broker closed the log cleanly (its own ``abort`` is gone)."""
        if self.progress.log_was_clean is not None:
            return self.progress.log_was_clean
        return not (store_root / layout.ABORT_FILE).exists()

    def check_log(self) -> None:
        """Raise DamageError if the log no longer holds the record dispatched last."""
        self.log.refresh()
        check_fingerprint(self.log, self.progress.last_record)

    def may_skip(self, offset: int) -> bool:
        """Tell whether damage at ``offset`` may be skipped: never in a live log's last file."""
        last = self.log.last_file()
        is_last = last is not None and offset >= last.base
        return not is_last or self.is_log_clean(Path(self.progress.store))

    def begin_batch(self) -> None:
        """Write down, durably, that what follows belongs to a batch not yet committed."""
        write_batch(self.path, self.progress.reput_from_offset, self.disk)

    def commit(self, end: BatchEnd) -> None:
        """Make a batch durable: data, then checkpoint, then progress (promise I4)."""
        self.disk.sync()
        last = self.progress.last_record
        if end.last_offset >= 0:
            last = read_fingerprint(self.log, end.last_offset)
        progress = replace(
            self.progress,
            reput_from_offset=end.reput_from_offset,
            last_record=last,
            index_file=end.index_file,
            index_count=end.index_count,
            index_msg_timestamp=end.index_msg_timestamp or self.progress.index_msg_timestamp,
            messages=self.progress.messages + end.messages,
            lost=self.progress.lost + end.lost,
            drops=_add_drops(self.progress.drops, end.drops),
        )
        self._write_checkpoint(progress)
        write_progress(self.path, progress, self.disk)
        self.progress = progress

    def close(self, *, clean: bool) -> None:
        """Give the root back; ``clean`` removes ``abort``."""
        if clean:
            self.disk.remove(self.path / layout.ABORT_FILE)
            self.disk.sync()
        self._release()

    def new_epoch(self) -> Path:
        """Begin a new Spark checkpoint directory and remove the old ones (promise I7)."""
        epochs = self.path / REPUT_DIR / _EPOCHS_DIR
        old = sorted(epochs.iterdir()) if epochs.is_dir() else []
        number = max((int(p.name.rpartition("-")[2]) for p in old), default=0) + 1
        epoch = epochs / f"epoch-{number:06d}"
        self.disk.make_directory(epoch)
        for directory in old:
            self.disk.remove_tree(directory)
        return epoch

    def _release(self) -> None:
        self.disk.close()
        self.disk.unlock(self._lock)

    def _write_abort(self, config: StoreConfig) -> None:
        content = str(os.getpid()).encode() if config.writes_pid_in_abort else b""
        self.disk.replace(self.path / layout.ABORT_FILE, content)

    def _write_checkpoint(self, progress: Progress) -> None:
        known, last = self._checkpoint, progress.last_record
        stamp = last.store_timestamp if last is not None else known.physic_msg_timestamp
        checkpoint = replace(
            known,
            physic_msg_timestamp=stamp,
            logics_msg_timestamp=stamp,
            index_msg_timestamp=progress.index_msg_timestamp,
        )
        if last is not None and self.log.config.writes_logics_physical_offset:
            checkpoint = replace(checkpoint, logics_physical_offset=last.offset)
        if checkpoint != known:
            write_checkpoint(self.path, checkpoint, self.disk)
            self._checkpoint = checkpoint


def _check_same(progress: Progress, store_root: Path, config: StoreConfig, path: Path) -> None:
    """Raise ConfigError if a root was made from another log or with other settings."""
    if progress.store != str(store_root.resolve()):
        raise ConfigError(
            f"{path} was made from {progress.store}, not from {store_root}; {NEW_OUTPUT_HINT}"
        )
    other = other_setting(progress.shape, config)
    if other is not None:
        name, made_with, now = other
        raise ConfigError(
            f"{path} was made with {name}={made_with}, now it is {now}; give the broker.conf and "
            f"version it was made with, or {NEW_OUTPUT_HINT}"
        )


def _refuse_cut_off_batch(progress: Progress, path: Path) -> None:
    """Refuse a root that a run has left in the middle of a batch."""
    begun = read_batch(path)
    if begun is not None and begun >= progress.reput_from_offset:
        raise ConfigError(
            f"{path} goes beyond its progress (offset {progress.reput_from_offset}): "
            f"a dispatch was cut off in a batch; {NEW_OUTPUT_HINT}"
        )


def _add_drops(
    known: dict[str, dict[str, int]], new: Mapping[tuple[str, int], tuple[int, int]]
) -> dict[str, dict[str, int]]:
    total = {name: dict(counts) for name, counts in known.items()}
    for (topic, queue_id), (repeated, gaps) in new.items():
        counts = total.setdefault(f"{topic}/{queue_id}", {"repeated": 0, "gaps": 0})
        counts["repeated"] += repeated
        counts["gaps"] += gaps
    return total


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _same_directory(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()
