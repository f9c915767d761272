"""Proves by independent tasks that a root is what its log says; what differs it does not tell.

For a root of ours that has all its queues and index from the log's beginning, and nothing in
flight. Nothing is written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkpoints.bulk.rebuild import Report
from checkpoints.bulk.tasks import Job, Run, part_scanner
from checkpoints.progress import Progress
from store.bulk.compare_parts import (
    ComparedPart,
    compare_part,
    has_queue_files,
    is_index_file,
)
from store.bulk.log_parts import PART_BYTES, LogPart, cut
from store.bulk.queue_parts import JoinedQueues
from store.commit_log import CommitLog
from store.config import config_to_json
from store.consume_queue_store import QueueKey
from store.index_file import list_index_files
from store.layout import (
    ABORT_FILE,
    CONSUME_QUEUE_DIR,
    CONSUME_QUEUE_EXT_DIR,
    CQ_UNIT_SIZE,
    INDEX_DIR,
)
from store.log_plan import LogPlanner

_QUEUES_A_TASK = 1000


@dataclass(frozen=True, slots=True)
class Proof:
    """How much was compared and found equal."""

    messages: int
    units: int
    entries: int


@dataclass(frozen=True, slots=True)
class ComparePart:
    """Compares a part of the log with the root."""

    job: Job

    def __call__(self, part: LogPart) -> ComparedPart:
        """Do it."""
        scanner = part_scanner(self.job.config)
        return compare_part(part, scanner, Path(self.job.root), self.job.config_of())


@dataclass(frozen=True, slots=True)
class CheckQueues:
    """Checks what no unit covers of some queues."""

    job: Job

    def __call__(self, queues: Sequence[tuple[QueueKey, int, int]]) -> bool:
        """Do it."""
        config, root = self.job.config_of(), Path(self.job.root)
        return all(has_queue_files(root, queue, config) for queue in queues)


@dataclass(frozen=True, slots=True)
class CheckIndexFile:
    """Checks the chains, slots and counts of an index file."""

    job: Job

    def __call__(self, number: int) -> bool:
        """Do it."""
        return is_index_file(Path(self.job.root), number, self.job.config_of())


def can_prove(root: Path, progress: Progress, log: CommitLog) -> bool:
    """Tell whether a root is one of which all bytes follow from the log alone, and at rest."""
    return (
        not progress.lost
        and not log.config.enable_consume_queue_ext
        and max(log.min_offset(), 0) <= progress.begin_offset
        and not (root / ABORT_FILE).exists()
        and not (root / CONSUME_QUEUE_EXT_DIR).exists()
    )


def prove(  # noqa: PLR0913 - what is compared with what, and how
    root: Path,
    progress: Progress,
    log: CommitLog,
    planner: LogPlanner,
    run: Run,
    *,
    report: Report | None = None,
    part_bytes: int = PART_BYTES,
) -> Proof | None:
    """Return how much is equal; None if anything differs, or a queue is not continuous.

    Raises StoreIOError.
    """
    config, end = log.config, progress.reput_from_offset
    job, done = Job(str(root), config_to_json(config)), 0
    whole = cut(log, planner, progress.begin_offset, part_bytes=part_bytes)
    parts = [replace(p, end=min(p.end, end)) for p in whole.parts if p.begin < end]

    def advance(part: LogPart) -> None:
        nonlocal done
        done += part.end - part.begin
        if report is not None:
            report(done, end - progress.begin_offset)

    compared = run(ComparePart(job), parts, advance)
    queues = JoinedQueues()
    for part in compared:
        queues.add(part.queues)
    if not _is_joined(compared, progress) or queues.keys(continuous=False):
        return None
    spans = list(queues.spans())
    if not _has_only_queues(root / CONSUME_QUEUE_DIR, [key for key, _, _ in spans]):
        return None
    step = _QUEUES_A_TASK
    chunks = [spans[n : n + step] for n in range(0, len(spans), step)]
    files = len(list_index_files(root / INDEX_DIR)) if config.message_index_enable else 0
    if files != progress.index_files or not _has_only_index_files(root, files):
        return None
    if not all(run(CheckQueues(job), chunks, lambda _: None)):
        return None
    if not all(run(CheckIndexFile(job), range(files), lambda _: None)):
        return None
    units = sum(end - first for _, first, end in spans) // CQ_UNIT_SIZE
    return Proof(
        sum(part.messages for part in compared), units, sum(part.entries for part in compared)
    )


def _is_joined(parts: Sequence[ComparedPart], progress: Progress) -> bool:
    """Tell whether parts are equal and follow on, and the index has their entries and no more."""
    at, entry = progress.begin_offset, 0
    for part in parts:
        if not part.is_equal or part.begin != at:
            return False
        if part.entries and part.first_entry != entry:
            return False
        at, entry = part.end, entry + part.entries
    per_file = int(progress.shape["max_index_num"]) - 1
    counted = max(progress.index_files - 1, 0) * per_file + progress.index_count
    return at == progress.reput_from_offset and entry == counted


def _has_only_queues(directory: Path, keys: Sequence[QueueKey]) -> bool:
    """Tell whether there are directories for just these queues, and nothing beside them."""
    wanted: dict[str, set[str]] = {}
    for topic, queue_id in keys:
        wanted.setdefault(topic, set()).add(str(queue_id))
    if _names(directory) != set(wanted):
        return False
    return all(_names(directory / topic) == queues for topic, queues in wanted.items())


def _names(directory: Path) -> set[str]:
    return set(os.listdir(directory)) if directory.is_dir() else set()


def _has_only_index_files(root: Path, files: int) -> bool:
    directory = root / INDEX_DIR
    return len(_names(directory)) == files
