"""Recovery: the steps that return OUTPUT to a record boundary after a crash (promises I3, I4).

``DispatchOutput`` performs them at every start, in this order, while it holds the lock:

1. **Finish a swap.** If ``reput/swap`` exists, the rebuilt files are moved into place. The remains
   of a rebuild that cannot be resumed are deleted (``checkpoints.swap.finish_swap``).
2. **Adopt** an OUTPUT that another program wrote, or on which a broker has run since
   (``Recovery.adopt``): keep what matches the log, truncate the rest. Steps 3 and 4 are skipped,
   because adoption compares the files themselves with the log.
3. **Roll back the batch in flight** (``Recovery.roll_back_batch``): if ``reput/batch`` is newer
   than progress, the files are truncated to the ends that it records.
4. **Follow the log** (``Recovery.follow_log``): delete index files that had expired. If the log
   changed (it came back shorter, or a broker wrote other messages over its end), roll OUTPUT back
   to the newest rollback point that the log still holds.

OUTPUT then resumes at ``reput_from_offset``. ``checkpoints.output`` describes the order of the
syncs of a batch, on which step 3 relies.

Steps 2 to 4 truncate in the same order: a batch record with the target is durable first; then
progress is lowered, so that no reader reads beyond it; then the files are truncated and synced;
then the target's progress is written. After a crash in between, step 3 truncates again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoints.batch_record import BatchRecord, read_batch, write_batch
from checkpoints.commit import queue_key
from checkpoints.recovery.adoption import Adoption, RecoveryReporter
from checkpoints.recovery.fingerprint import (
    find_log_change,
    find_other_record,
    read_fingerprint,
)
from checkpoints.state_paths import BATCH
from store.commitlog.boundary_search import is_boundary
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig
from store.consumequeue.queue_ends import QueueEnd
from store.errors import DamageError
from store.index.file import list_index_files
from store.index.file_parts import read_header
from store.index.index_end import IndexEnd
from store.io.disk import Disk
from store.io.mapped_file import intact, map_file
from store.kernels.index import END_TIMESTAMP, INDEX_COUNT
from store.layout import INDEX_DIR
from store.output.end_search import (
    find_index_end,
    find_queue_ends,
    trim_to_remaining_files,
    was_dispatched,
)
from store.output.progress import PROGRESS, Fingerprint, Progress, RollbackPoint, write_progress
from store.output.truncation import Truncation, TruncationCounts


@dataclass(frozen=True, slots=True)
class Recovered:
    """The reason for a recovery and its result. Offsets are physical offsets of the log."""

    why: str
    from_offset: int
    to_offset: int
    cut: TruncationCounts
    seconds: float


def finished_swap(offset: int, seconds: float) -> Recovered:
    """Return the recovery that finished an interrupted swap, in an OUTPUT at ``offset``."""
    why = "a swap of rebuilt files was interrupted, and is complete now"
    return Recovered(why, offset, offset, TruncationCounts(), seconds)


class Recovery:
    """Returns one OUTPUT, which this process owns, to a record boundary."""

    def __init__(
        self, output: Path, log: CommitLog, disk: Disk, report: RecoveryReporter | None = None
    ) -> None:
        self.done: list[Recovered] = []
        self._output = output
        self._log = log
        self._config: StoreConfig = log.config
        self._disk = disk
        self._report = report or (lambda _what, _done, _total: None)

    def roll_back_batch(self, progress: Progress) -> Progress:
        """Truncate the remains of a batch that progress does not count; return the progress."""
        record = read_batch(self._output)
        if record is None or record.number <= progress.batch:
            return progress
        if record.progress is None and record.index is not None:
            self._check_index_end(record.index, progress)
        number = record.number
        target = record.progress or replace(
            progress, batch=number, generation=number, is_recovering=False
        )
        why = "a dispatch was interrupted in a batch"
        if record.progress is not None:
            why = "a recovery was interrupted"
        return self._truncate(why, progress.reput_from_offset, record, target)

    def _check_index_end(self, end: IndexEnd, progress: Progress) -> None:
        """Refuse to truncate the index to another file than progress names."""
        if end.file != progress.index_file:
            reason = f"it names index file {end.file!r}, progress {progress.index_file!r}"
            raise DamageError(self._output / BATCH, 0, reason)

    def follow_log(self, progress: Progress, planner: LogPlanner) -> Progress:
        """Truncate what the log no longer holds; return the progress.

        Raises DamageError if the log holds nothing that is known to have been dispatched.
        """
        self._remove_uncounted_index(progress)
        end = planner.end()
        why = self._find_change(progress, end)
        if not why:
            return progress
        point = self._find_rollback_point(progress, end)
        if point is None:
            raise self._other_log_error(progress, why)
        index = self._find_index_end(point.reput_from_offset)
        files = list_index_files(self._output)
        target = _progress_at(progress, point, index, files)
        ends = self._find_queue_ends(progress, point)
        record = BatchRecord(target.batch, ends, index, target)
        write_batch(self._output, record, self._disk)
        return self._truncate(why, progress.reput_from_offset, record, target)

    def _find_change(self, progress: Progress, end: int) -> str:
        """Return the evidence that the log, which ends at ``end``, has changed; "" if none."""
        why = find_log_change(self._log, progress.last_record, progress.dispatched_to)
        if why:
            return why
        if progress.reput_from_offset > max(end, self._log.min_offset()):
            return f"the log ends at offset {end}"
        begin = max(
            (lost.end for lost in progress.lost), default=0
        )  # the chain does not lead through a lost range
        dispatched = [point.last_record for point in progress.rollback_points]
        at = find_other_record(self._log, dispatched, begin, self._was_dispatched)
        return f"the log changed: at offset {at} it has other messages" if at >= 0 else ""

    def _was_dispatched(self, offset: int) -> bool:
        return was_dispatched(self._output, self._config, offset)

    def _remove_uncounted_index(self, progress: Progress) -> None:
        """Delete the expired index files that an interrupted expiry did not delete.

        Raises DamageError if a file that progress counts is missing.
        """
        files = list_index_files(self._output)
        expired = [path for path in files if path.name < progress.index_first]
        if not expired:
            return
        first, last = progress.index_first, progress.index_file
        counted = [path.name for path in files if first <= path.name <= last]
        if counted[:1] + counted[-1:] != [first, last] or len(counted) != progress.index_files:
            reason = (
                f"it counts {progress.index_files} index files from {first} to {last}, "
                f"{self._output / INDEX_DIR} holds {len(counted)} of them"
            )
            raise DamageError(self._output / PROGRESS, 0, reason)
        for path in expired:
            self._disk.remove(path)

    def _find_rollback_point(self, progress: Progress, end: int) -> RollbackPoint | None:
        """Return the newest one whose last record is still in the log, in its chain."""
        for point in reversed(progress.rollback_points):
            at, last = point.reput_from_offset, point.last_record
            if at >= progress.reput_from_offset or at > end or last.offset < self._min_offset():
                continue
            if not find_log_change(self._log, last, at) and is_boundary(self._log, at):
                return point
        return None

    def _min_offset(self) -> int:
        return max(self._log.min_offset(), 0)

    def _other_log_error(self, progress: Progress, why: str) -> DamageError:
        return DamageError(
            self._log.path_of(progress.reput_from_offset),
            progress.reput_from_offset,
            f"{why}, nor any record that an earlier batch ended with",
            "it is another log, or was truncated too far; dispatch it into a new OUTPUT",
        )

    @intact()
    def _find_queue_ends(self, progress: Progress, point: RollbackPoint) -> tuple[QueueEnd, ...]:
        recorded = [
            trim_to_remaining_files(self._output, self._config, end) for end in point.queue_ends
        ]
        known = {end.key: end for end in recorded}
        dropped = [queue_key(name) for name, d in progress.drops.items() if d["repeated"]]
        found = find_queue_ends(self._output, self._config, point.reput_from_offset, dropped)
        return tuple(({end.key: end for end in found} | known).values())

    @intact()
    def _find_index_end(self, offset: int) -> IndexEnd | None:
        if not self._config.message_index_enable:
            return None

        def record_at(at: int) -> Fingerprint | None:
            return read_fingerprint(self._log, at)

        return find_index_end(self._output, self._config, offset, self._log, record_at)

    def adopt(self, progress: Progress, planner: LogPlanner, why: str) -> Progress:
        """Adopt an OUTPUT that another program wrote: truncate it to where it matches its log.

        ``progress`` is that of a new OUTPUT. Raises ConfigError if the files belong to another
        log or have other settings.
        """
        started = time.monotonic()
        end = max(planner.end(), self._min_offset(), progress.begin_offset)
        adoption = Adoption(self._output, self._log, planner, self._report)
        target, prefix = adoption.adopt(progress, end)
        record = BatchRecord(target.batch, prefix.queues, prefix.index, target)
        write_batch(self._output, record, self._disk)
        if prefix.difference is not None:
            why = f"{why}; {prefix.difference}"
        target = self._truncate(why, end, record, target)
        self.done[-1] = replace(self.done[-1], seconds=time.monotonic() - started)
        return target

    def _truncate(
        self, why: str, from_offset: int, record: BatchRecord, target: Progress
    ) -> Progress:
        started = time.monotonic()
        before = record.number - 1
        lowered = replace(target, batch=before, generation=before, is_recovering=True)
        write_progress(self._output, lowered, self._disk)
        truncation = Truncation(self._output, self._config, self._disk)
        for number, end in enumerate(record.queues):
            self._report(why, number, len(record.queues))
            truncation.truncate_queue(end)
            if record.progress is not None:
                truncation.mark_full_ext_files(end)
        if record.index is not None:
            truncation.truncate_index(record.index)
        self._disk.sync()
        write_progress(self._output, target, self._disk)
        self._report(why, len(record.queues), len(record.queues))
        at = target.reput_from_offset
        seconds = time.monotonic() - started
        self.done.append(Recovered(why, max(from_offset, at), at, truncation.counts, seconds))
        return target


def _progress_at(
    progress: Progress, point: RollbackPoint, index: IndexEnd | None, files: list[Path]
) -> Progress:
    """Return the progress as it was at a rollback point, except for the count of batches."""
    at = point.reput_from_offset
    names = [path.name for path in files if index is not None and path.name <= index.file]
    return replace(
        progress,
        batch=progress.batch + 1,
        generation=progress.batch + 1,
        reput_from_offset=at,
        last_record=point.last_record,
        messages=point.messages,
        index_file=names[-1] if names else "",
        index_count=index.header[INDEX_COUNT] - 1 if index is not None and names else 0,
        index_first=names[0] if names else "",
        index_files=len(names),
        index_msg_timestamp=_last_full_timestamp(files, len(names)) or point.index_msg_timestamp,
        lost=tuple(lost for lost in progress.lost if lost.end <= at),
        drops=point.drops,
        rollback_points=tuple(p for p in progress.rollback_points if p.reput_from_offset <= at),
    )


@intact()
def _last_full_timestamp(files: list[Path], count: int) -> int:
    """Return the end time of the last full one of ``count`` index files, 0 if there is none."""
    return int(read_header(map_file(files[count - 2]))[END_TIMESTAMP]) if count > 1 else 0
