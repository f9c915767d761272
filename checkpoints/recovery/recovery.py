"""Recovery: a root brought back to a record boundary after whatever happened (promises I3, I4).

Three things can have happened, looked for in this order:

* something else wrote the root, or a broker ran on it: it is adopted (``checkpoints.recovery.adoption``);
* a batch was cut off: the root is cut back to its progress, by the batch record;
* the log changed (it came back shorter, or other messages were written over its end): the root is
  cut back to the newest milestone that the log still holds.

To cut, a batch record with the end to reach is made durable first; then progress is lowered, so
that no reader looks beyond it; then files are cut. Killed anywhere, it is done again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoints.batch_record import BATCH, BatchRecord, read_batch, write_batch
from checkpoints.progress import Progress, RollbackPoint, progress_path, queue_key, write_progress
from checkpoints.recovery.adoption import Adoption, Report
from checkpoints.recovery.fingerprint import (
    find_log_change,
    find_other_record,
    read_fingerprint,
)
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.search import is_boundary
from store.config import StoreConfig
from store.consumequeue.ends import QueueEnd
from store.errors import DamageError
from store.index.ends import IndexEnd
from store.index.file import list_index_files
from store.index.writer import read_header
from store.io.disk import Disk
from store.io.mapped_file import map_file
from store.kernels.index import END_TIMESTAMP, INDEX_COUNT
from store.layout import INDEX_DIR
from store.root.end_search import (
    find_index_end,
    find_queue_ends,
    trim_to_remaining_files,
    was_dispatched,
)
from store.root.progress import Fingerprint
from store.root.truncation import Truncation, TruncationCounts


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery found and did. Offsets are physical offsets of the log."""

    why: str
    from_offset: int
    to_offset: int
    cut: TruncationCounts
    seconds: float


def finished_swap(offset: int, seconds: float) -> Recovered:
    """Return what the end of an interrupted swap came to, on a root that is at ``offset``."""
    why = "a swap of rebuilt files was interrupted, and is complete now"
    return Recovered(why, offset, offset, TruncationCounts(), seconds)


class Recovery:
    """Brings one root, which this process owns, back to a record boundary."""

    def __init__(
        self, root: Path, log: CommitLog, disk: Disk, report: Report | None = None
    ) -> None:
        self.done: list[Recovered] = []
        self._root = root
        self._log = log
        self._config: StoreConfig = log.config
        self._disk = disk
        self._report = report or (lambda _what, _done, _total: None)

    def roll_back_batch(self, progress: Progress) -> Progress:
        """Cut off what a batch left that progress does not count; return progress then."""
        record = read_batch(self._root)
        if record is None or record.number <= progress.batch:
            return progress
        if record.progress is None and record.index is not None:
            self._check_index_end(record.index, progress)
        target = record.progress or replace(progress, batch=record.number, is_recovering=False)
        why = "a dispatch was cut off in a batch"
        if record.progress is not None:
            why = "a recovery was cut off"
        return self._cut(why, progress.reput_from_offset, record, target)

    def _check_index_end(self, end: IndexEnd, progress: Progress) -> None:
        """Refuse to cut the index back to another file than progress names."""
        if end.file != progress.index_file:
            reason = f"it names index file {end.file!r}, progress {progress.index_file!r}"
            raise DamageError(self._root / BATCH, 0, reason)

    def follow_log(self, progress: Progress, planner: LogPlanner) -> Progress:
        """Cut off what is not in the log any more; return progress then.

        Raises DamageError if the log holds nothing that is known to have been dispatched.
        """
        self._remove_uncounted_index(progress)
        end = planner.end()
        why = self._find_change(progress, end)
        if not why:
            return progress
        milestone = self._last_common(progress, end)
        if milestone is None:
            raise self._other_log(progress, why)
        index = self._index_end(milestone.reput_from_offset)
        files = list_index_files(self._root / INDEX_DIR)
        target = _progress_at(progress, milestone, index, files)
        ends = self._queue_ends(progress, milestone)
        record = BatchRecord(target.batch, ends, index, target)
        write_batch(self._root, record, self._disk)
        return self._cut(why, progress.reput_from_offset, record, target)

    def _find_change(self, progress: Progress, end: int) -> str:
        """Say how the log is seen to be another one than was dispatched, "" if it is not.

        The log ends at ``end`` now.
        """
        why = find_log_change(self._log, progress.last_record, progress.dispatched_to)
        if why:
            return why
        if progress.reput_from_offset > max(end, self._log.min_offset()):
            return f"the log ends at offset {end}"
        begin = max((lost.end for lost in progress.lost), default=0)  # nothing leads through it
        ends = [m.last_record for m in progress.milestones]
        at = find_other_record(self._log, ends, begin, self._was_dispatched)
        return f"the log changed: at offset {at} it has other messages" if at >= 0 else ""

    def _was_dispatched(self, offset: int) -> bool:
        return was_dispatched(self._root, self._config, offset)

    def _remove_uncounted_index(self, progress: Progress) -> None:
        """Delete the index files that had expired when a crash came between.

        Raises DamageError if the files that progress counts are not all there.
        """
        files = list_index_files(self._root / INDEX_DIR)
        expired = [path for path in files if path.name < progress.index_first]
        if not expired:
            return
        first, last = progress.index_first, progress.index_file
        counted = [path.name for path in files if first <= path.name <= last]
        if counted[:1] + counted[-1:] != [first, last] or len(counted) != progress.index_files:
            reason = (
                f"it counts {progress.index_files} index files from {first} to {last}, "
                f"{self._root / INDEX_DIR} holds {len(counted)} of them"
            )
            raise DamageError(progress_path(self._root), 0, reason)
        for path in expired:
            self._disk.remove(path)

    def _last_common(self, progress: Progress, end: int) -> RollbackPoint | None:
        """Return the newest milestone whose last record the log still has, in its chain."""
        for milestone in reversed(progress.milestones):
            at, last = milestone.reput_from_offset, milestone.last_record
            if at >= progress.reput_from_offset or at > end or last.offset < self._min():
                continue
            if not find_log_change(self._log, last, at) and is_boundary(self._log, at):
                return milestone
        return None

    def _min(self) -> int:
        return max(self._log.min_offset(), 0)

    def _other_log(self, progress: Progress, why: str) -> DamageError:
        return DamageError(
            self._log.path_of(progress.reput_from_offset),
            progress.reput_from_offset,
            f"{why}, nor any record that an earlier batch ended with",
            "it is another log, or was cut off too far back; dispatch it into a new OUTPUT",
        )

    def _queue_ends(self, progress: Progress, milestone: RollbackPoint) -> tuple[QueueEnd, ...]:
        noted = [trim_to_remaining_files(self._root, self._config, end) for end in milestone.marks]
        known = {end.key: end for end in noted}
        dropped = [queue_key(name) for name, d in progress.drops.items() if d["repeated"]]
        found = find_queue_ends(self._root, self._config, milestone.reput_from_offset, dropped)
        return tuple(({end.key: end for end in found} | known).values())

    def _index_end(self, offset: int) -> IndexEnd | None:
        if not self._config.message_index_enable:
            return None

        def record_at(at: int) -> Fingerprint | None:
            return read_fingerprint(self._log, at)

        return find_index_end(self._root, self._config, offset, self._log, record_at)

    def adopt(self, progress: Progress, planner: LogPlanner, why: str) -> Progress:
        """Make a root that something else wrote ours, cut back to where it agrees with its log.

        ``progress`` is that of a new root. Raises ConfigError if it is the root of another log or
        of other settings.
        """
        began = time.monotonic()
        end = max(planner.end(), self._min(), progress.begin_offset)
        adoption = Adoption(self._root, self._log, planner, self._report)
        target, agreement = adoption.adopt(progress, end)
        record = BatchRecord(target.batch, agreement.queues, agreement.index, target)
        write_batch(self._root, record, self._disk)
        if agreement.difference is not None:
            why = f"{why}; {agreement.difference}"
        target = self._cut(why, end, record, target)
        self.done[-1] = replace(self.done[-1], seconds=time.monotonic() - began)
        return target

    def _cut(self, why: str, from_offset: int, record: BatchRecord, target: Progress) -> Progress:
        began = time.monotonic()
        lowered = replace(target, batch=record.number - 1, is_recovering=True)
        write_progress(self._root, lowered, self._disk)
        truncation = Truncation(self._root, self._config, self._disk)
        for number, end in enumerate(record.queues):
            self._report(why, number, len(record.queues))
            truncation.truncate_queue(end)
            if record.progress is not None:
                truncation.mark_full_ext_files(end)
        if record.index is not None:
            truncation.truncate_index(record.index)
        self._disk.sync()
        write_progress(self._root, target, self._disk)
        self._report(why, len(record.queues), len(record.queues))
        at = target.reput_from_offset
        seconds = time.monotonic() - began
        self.done.append(Recovered(why, max(from_offset, at), at, truncation.counts, seconds))
        return target


def _progress_at(
    progress: Progress, milestone: RollbackPoint, index: IndexEnd | None, files: list[Path]
) -> Progress:
    """Return progress as it was at a milestone, but for the count of batches."""
    at = milestone.reput_from_offset
    names = [path.name for path in files if index is not None and path.name <= index.file]
    return replace(
        progress,
        batch=progress.batch + 1,
        reput_from_offset=at,
        last_record=milestone.last_record,
        messages=milestone.messages,
        index_file=names[-1] if names else "",
        index_count=index.header[INDEX_COUNT] - 1 if index is not None and names else 0,
        index_first=names[0] if names else "",
        index_files=len(names),
        index_msg_timestamp=_last_full(files, len(names)) or milestone.index_msg_timestamp,
        lost=tuple(lost for lost in progress.lost if lost.end <= at),
        drops=milestone.drops,
        milestones=tuple(m for m in progress.milestones if m.reput_from_offset <= at),
    )


def _last_full(files: list[Path], count: int) -> int:
    """Return when the newest but one of the first ``count`` index files ends, 0 without one."""
    return int(read_header(map_file(files[count - 2]))[END_TIMESTAMP]) if count > 1 else 0
