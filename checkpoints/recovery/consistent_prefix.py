"""How far a root agrees with its log: up to where its files are what a dispatch would have made.

The log is derived again and compared with the root, a few records at a time in the beginning, then
more and more. The first stretch that differs ends the agreement; where all files ended before it
is known from the derivation, so the root can be cut back to there and dispatched on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from store.commitlog.dispatch_request import DispatchRequests
from store.compare.findings import NOTHING, Difference
from store.compare.store import ComparisonPolicy, StoreComparison
from store.config import StoreConfig
from store.consumequeue.ends import QueueEnd
from store.consumequeue.files import ConsumeQueue
from store.consumequeue.names import list_queues
from store.consumequeue.writer import QueueEnds, QueueKey
from store.index.ends import IndexEnd
from store.kernels.consume_queue import NO_QUEUE_YET
from store.layout import CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR
from store.root.end_search import count_ext_units

_ONE_BY_ONE = 64  # so many records are compared one by one
_FINISHED_PARTS = ("header", "slot")  # compared when an index file is finished


@dataclass(frozen=True, slots=True)
class ConsistentPrefix:
    """Root and log agree up to ``offset``; ``last_offset`` is the last record's before it, or -1.

    ``difference`` is what ended it, None if nothing did. ``queues`` are the marks of all queues
    that the root has.
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
class _Moment:
    """The derivation before some record."""

    offset: int
    last_offset: int
    messages: int
    ends: QueueEnds
    index_number: int
    index: IndexEnd | None
    index_full_timestamp: int
    drops: dict[QueueKey, tuple[int, int]]


def find_consistent_prefix(
    root: Path, config: StoreConfig, terms: ComparisonPolicy, batches: Iterable[DispatchRequests]
) -> ConsistentPrefix:
    """Compare a root with its log's requests from ``terms.begin`` on.

    Raises DamageError, as the batches do, StoreIOError.
    """
    comparison = StoreComparison(root, config, terms)
    moment = before = _moment(comparison, (terms.begin, -1, 0), {})
    begun = {moment.index_number: moment}  # the moments before the newest index files began
    for batch in _graded(batches):
        before = moment
        comparison.put(batch)
        if comparison.differs():
            break
        last = int(batch.commit_log_offset[-1]) if len(batch) else before.last_offset
        done = batch.end, last, before.messages + len(batch)
        moment = _moment(comparison, done, before.drops)
        begun.setdefault(moment.index_number, before)
        for number in sorted(begun)[:-2]:
            del begun[number]
    difference = None
    if comparison.differs():
        difference = comparison.differences()[0]
        moment = min((before, *_begun_before(comparison, begun)), key=lambda m: m.offset)
    return ConsistentPrefix(
        offset=moment.offset,
        last_offset=moment.last_offset,
        messages=moment.messages,
        queues=tuple(_queue_ends(root, config, comparison, moment.ends)),
        index=moment.index,
        index_full_timestamp=moment.index_full_timestamp,
        drops=moment.drops,
        difference=difference,
    )


def _graded(batches: Iterable[DispatchRequests]) -> Iterator[DispatchRequests]:
    """Yield the same requests, the first ones one by one, then twice as many each time."""
    done = 0
    for batch in batches:
        at = 0
        while at < len(batch):
            count = 1 if done < _ONE_BY_ONE else done
            yield batch.slice(at, min(at + count, len(batch)))
            at, done = at + count, done + count


def _moment(
    comparison: StoreComparison,
    done: tuple[int, int, int],
    drops: dict[QueueKey, tuple[int, int]],
) -> _Moment:
    """Return the derivation as it is; ``done`` = (offset, last record's offset, messages)."""
    drops = dict(drops)
    for key, new in comparison.take_drops().items():
        repeated, gaps = drops.get(key, (0, 0))
        drops[key] = repeated + new.repeated, gaps + new.gaps
    number, index, full_timestamp = comparison.index_end()
    ends = comparison.queue_ends()
    return _Moment(*done, ends, number, index, full_timestamp, drops)


def _begun_before(comparison: StoreComparison, begun: dict[int, _Moment]) -> list[_Moment]:
    """Return the moments before index files began that differ where finished files are compared."""
    names = [path.name for path in comparison.index_files]
    found = []
    for difference in comparison.differences():
        is_of_end = difference.part in _FINISHED_PARTS or difference.expected == NOTHING
        if is_of_end and difference.path.name in names:
            number = names.index(difference.path.name)
            found.append(begun.get(number, begun[min(begun)]))
    return found


def _queue_ends(
    root: Path, config: StoreConfig, comparison: StoreComparison, ends: QueueEnds
) -> Iterator[QueueEnd]:
    """Yield the mark of each queue on disk."""
    numbers = {key: n for n, key in enumerate(ends.keys)}
    there = (CONSUME_QUEUE_DIR, CONSUME_QUEUE_EXT_DIR)
    for key in dict.fromkeys(key for kind in there for key in list_queues(root / kind)):
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
                root / CONSUME_QUEUE_DIR / key[0] / str(key[1]),
                config.mapped_file_size_consume_queue,
            )
            ext_count = count_ext_units(queue, config, end)
            if number is not None and not comparison.has_older:
                ext_count = int(ends.ext_count[number])
        yield QueueEnd(*key, end, allocated, ext_count)
