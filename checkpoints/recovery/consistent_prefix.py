"""The consistent prefix of OUTPUT: up to which offset its files equal a dispatch of the log.

The log is replayed and compared with OUTPUT, at first record by record, then in ever larger
stretches. The first stretch that differs ends the prefix. The replay knows where all files ended
before that stretch, so OUTPUT can be truncated there and the dispatch can resume.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.dispatch_request import DispatchRequests
from store.compare.findings import NOTHING, Difference
from store.compare.store import ComparisonPolicy, StoreComparison
from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue
from store.consumequeue.names import list_queues, queue_directory
from store.consumequeue.queue_ends import QueueEnd
from store.consumequeue.writer import QueueEnds, QueueKey
from store.index.index_end import IndexEnd
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR, NO_QUEUE_YET
from store.output.end_search import count_ext_units

_ONE_BY_ONE = 64  # this many records are compared one at a time
_FULL_FILE_PARTS = ("header", "slot")  # compared once an index file is full


@dataclass(frozen=True, slots=True)
class ConsistentPrefix:
    """OUTPUT and log match up to ``offset``; ``last_offset`` is that of the last record, or -1.

    ``difference`` is the one that ended the prefix, None if the whole log matches. ``queues`` are
    the ends of all queues of OUTPUT.
    """

    offset: int
    last_offset: int
    messages: int
    queues: tuple[QueueEnd, ...]
    index: IndexEnd | None
    index_full_timestamp: int
    drops: dict[QueueKey, tuple[int, int]]
    difference: Difference | None


@dataclass(frozen=True, slots=True)
class _ReplayState:
    """The state of the replay before some record."""

    offset: int
    last_offset: int
    messages: int
    ends: QueueEnds
    index_number: int
    index: IndexEnd | None
    index_full_timestamp: int
    drops: dict[QueueKey, tuple[int, int]]


def find_consistent_prefix(
    output: Path, config: StoreConfig, policy: ComparisonPolicy, batches: Iterable[DispatchRequests]
) -> ConsistentPrefix:
    """Compare OUTPUT with its log's requests from ``policy.begin`` on.

    Raises DamageError, as the batches do, StoreIOError.
    """
    comparison = StoreComparison(output, config, policy)
    state = before = _replay_state(comparison, (policy.begin, -1, 0), {})
    # By index file, the state before the file was created; only the newest two are kept.
    at_creation = {state.index_number: state}
    for batch in _in_growing_slices(batches):
        before = state
        comparison.put(batch)
        if comparison.differs():
            break
        last = int(batch.commit_log_offset[-1]) if len(batch) else before.last_offset
        done = batch.end, last, before.messages + len(batch)
        state = _replay_state(comparison, done, before.drops)
        at_creation.setdefault(state.index_number, before)
        for number in sorted(at_creation)[:-2]:
            del at_creation[number]
    difference = None
    if comparison.differs():
        difference = comparison.differences()[0]
        earlier = _states_before_index_files(comparison, at_creation)
        state = min((before, *earlier), key=lambda s: s.offset)
    return ConsistentPrefix(
        offset=state.offset,
        last_offset=state.last_offset,
        messages=state.messages,
        queues=tuple(_queue_ends(output, config, comparison, state.ends)),
        index=state.index,
        index_full_timestamp=state.index_full_timestamp,
        drops=state.drops,
        difference=difference,
    )


def _in_growing_slices(batches: Iterable[DispatchRequests]) -> Iterator[DispatchRequests]:
    """Yield the same requests: the first ones singly, then twice as many in each slice."""
    done = 0
    for batch in batches:
        at = 0
        while at < len(batch):
            count = 1 if done < _ONE_BY_ONE else done
            yield batch.slice(at, min(at + count, len(batch)))
            at, done = at + count, done + count


def _replay_state(
    comparison: StoreComparison,
    done: tuple[int, int, int],
    drops: dict[QueueKey, tuple[int, int]],
) -> _ReplayState:
    """Return the current state; ``done`` = (offset, last record's offset, messages)."""
    drops = dict(drops)
    for key, new in comparison.take_drops().items():
        repeated, gaps = drops.get(key, (0, 0))
        drops[key] = repeated + new.repeated, gaps + new.gaps
    number, index, full_timestamp = comparison.index_end()
    ends = comparison.queue_ends()
    return _ReplayState(*done, ends, number, index, full_timestamp, drops)


def _states_before_index_files(
    comparison: StoreComparison, at_creation: dict[int, _ReplayState]
) -> list[_ReplayState]:
    """Return the states before index files that differ in what is compared once a file is full."""
    names = [path.name for path in comparison.index_files]
    found = []
    for difference in comparison.differences():
        is_of_full_file = difference.part in _FULL_FILE_PARTS or difference.expected == NOTHING
        if is_of_full_file and difference.path.name in names:
            number = names.index(difference.path.name)
            found.append(at_creation.get(number, at_creation[min(at_creation)]))
    return found


def _queue_ends(
    output: Path, config: StoreConfig, comparison: StoreComparison, ends: QueueEnds
) -> Iterator[QueueEnd]:
    """Yield the end of each queue on disk."""
    numbers = {key: n for n, key in enumerate(ends.keys)}
    kinds = (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR)
    for key in dict.fromkeys(key for kind in kinds for key in list_queues(output, kind)):
        number = numbers.get(key)
        shift = comparison.shift_of(key) if number is not None else None
        if number is None or shift is None:
            end, allocated = comparison.end_of_older(key)
        else:
            end, allocated = int(ends.end[number]), int(ends.allocated[number])
        if shift:
            end += shift
            size = config.mapped_file_size_consume_queue
            allocated = -(-end // size) * size
        ext_count = 0
        if config.enable_consume_queue_ext and end != NO_QUEUE_YET:
            queue = ConsumeQueue(
                queue_directory(output / CONSUME_QUEUE_DIR, *key),
                config.mapped_file_size_consume_queue,
            )
            ext_count = count_ext_units(queue, config, end)
            if number is not None and not comparison.has_older:
                ext_count = int(ends.ext_count[number])
        yield QueueEnd(*key, end, allocated, ext_count)
