"""Where a consumer group resumes: its committed offsets, translated to offsets of the log.

A committed offset is a position in a queue. STORE's own queue translates it, because the group read
that queue; else the queue of OUTPUT does. A queue is trusted only where its unit agrees with the
log, and if its positions are those that a broker assigned: a queue that was rebuilt across lost
messages has closed the gap, and one in which own queue offsets repeat was begun again.

Without such a queue, own queue offsets are compared instead. A position is never above the own
offset of its message as long as own offsets ascend, so this selects too many messages, never too
few. A scan of the log shows whether they do; if not, or if the committed offset is beyond all of
them, the whole queue is selected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoints.commit import queue_name
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Stretch
from store.consumequeue.writer import QueueKey
from store.errors import StoreError
from store.output.progress import read_progress
from store.reads.message_store import MessageStore
from store.rocksdb import require_queue_files

_NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a group resumes in a queue: at an own queue offset, or at an offset of the log."""

    queue_offset: int = _NEVER
    commit_log_offset: int = _NEVER


WHOLE_QUEUE = Resume(queue_offset=0)


@dataclass(frozen=True, slots=True)
class QueueSources:
    """STORE and OUTPUT, whose queues may translate positions, and how to open them.

    ``is_log_whole``: the export reads the log from its beginning and fails where it has lost a
    part, so no queue can have closed a gap that a broker's queue did not have.
    """

    store_root: Path
    output: Path | None
    broker_conf: Path | None
    broker_version: str | None
    is_log_whole: bool


def find_resumes(
    committed: Mapping[QueueKey, int], sources: QueueSources, scan: Callable[[], Iterable[Stretch]]
) -> tuple[dict[QueueKey, Resume], list[QueueKey]]:
    """Return where to resume in each queue, and the queues of which too much may be selected.

    These are queues that no directory could translate. ``scan`` returns the stretches of the log;
    it is called if there are any. Raises StoreError if OUTPUT cannot be opened.
    """
    found: dict[QueueKey, Resume] = {}
    with _opened(sources) as translators:
        for queue, position in committed.items():
            answers = (t.resume(queue, position) for t in translators)
            resume = next((r for r in answers if r is not None), None)
            if resume is not None:
                found[queue] = resume
    rest = {queue: n for queue, n in committed.items() if queue not in found}
    own = _own_offsets(rest, scan()) if rest else {}
    found |= {queue: own[queue].resume(position) for queue, position in rest.items()}
    return found, sorted(q for q in rest if found[q].queue_offset <= own[q].greatest)


@contextmanager
def _opened(sources: QueueSources) -> Iterator[list[_Translator]]:
    """Yield STORE's own queues if they can be read, then those of OUTPUT."""
    with ExitStack() as stack:
        translators = []
        for output in dict.fromkeys((sources.store_root, sources.output)):
            if output is None:
                continue
            try:
                translators.append(
                    _Translator(stack.enter_context(_queues(sources, output)), sources)
                )
            except StoreError:
                if output != sources.store_root:
                    raise
        yield translators


@contextmanager
def _queues(sources: QueueSources, output: Path) -> Iterator[MessageStore]:
    conf, version = sources.broker_conf, sources.broker_version
    with MessageStore.open(sources.store_root, output, conf, version) as store:
        if store.reput_from_offset() is None:
            require_queue_files(sources.store_root, output, store.config.rocksdb_queues)
        yield store


class _Translator:
    """The queues of one directory; ``resume`` translates a position as far as it can be trusted."""

    def __init__(self, store: MessageStore, sources: QueueSources) -> None:
        self._store = store
        progress = read_progress(store.output)
        self._drops = {} if progress is None else progress.drops
        has_lost = progress is not None and bool(progress.lost)
        self._may_have_lost = has_lost or not sources.is_log_whole or bool(store.missing_files())

    def resume(self, queue: QueueKey, position: int) -> Resume | None:
        """Return where a position is in the log, None if these queues cannot tell."""
        if self._drops.get(queue_name(*queue), {}).get("repeated"):
            return None
        try:
            return self._find(queue, position)
        except StoreError:  # damaged, expired meanwhile, or of a kind that is not read
            return None

    def _find(self, queue: QueueKey, position: int) -> Resume | None:
        store = self._store
        first, end = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
        if end == 0 or position > end:
            return None
        at = min(position, end - 1)
        if at < first:
            return WHOLE_QUEUE  # all before the position has expired
        (message,) = store.get_message(*queue, at, max_count=1).messages
        is_own = (message.topic, message.queue_id) == queue  # else multi-dispatch put it there
        if is_own and message.queue_offset != at and self._may_have_lost:
            return None
        is_end = position == end
        return Resume(commit_log_offset=message.commit_log_offset + is_end * message.size)


@dataclass(slots=True)
class _OwnOffsets:
    """The own queue offsets of a queue, in log order: the greatest, and whether they ascend."""

    greatest: int = -1
    ascend: bool = True

    def resume(self, position: int) -> Resume:
        """Return where to resume so that nothing from a position on is missed."""
        is_bound = self.ascend and position <= self.greatest + 1
        return Resume(queue_offset=position) if is_bound else WHOLE_QUEUE


def _own_offsets(
    queues: Collection[QueueKey], stretches: Iterable[Stretch]
) -> dict[QueueKey, _OwnOffsets]:
    """Return what the log shows of some queues; damage in it is reported by the export."""
    found = {queue: _OwnOffsets() for queue in queues}
    for stretch in stretches:
        if not isinstance(stretch, DispatchRequests):
            continue
        is_queued = stretch.is_queued
        for n, queue in enumerate(zip(stretch.topics, stretch.queue_ids.tolist(), strict=True)):
            if queue not in found:
                continue
            offsets = stretch.queue_offset[is_queued & (stretch.queue == n)]
            if len(offsets):
                own = found[queue]
                own.ascend &= bool(offsets[0] > own.greatest and (np.diff(offsets) > 0).all())
                own.greatest = max(own.greatest, int(offsets.max()))
    return found
