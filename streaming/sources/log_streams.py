"""The stream over one store or several: the micro-batches of all of them, side by side.

The offset of one store is ``{"commit_log_offset": N}``, that of several is one such object for each
broker. ``queues`` beside it holds the offsets by queue at which the query began, if it was given
any: a restart keeps to them. A checkpoint with the first form resumes with several stores: it
belongs to the first one.

A store that appears later joins in two steps, since Spark fixes the beginning of a batch before: in
one batch its beginning becomes part of the offset, from the next one on it is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from store.commitlog.planner import UNLIMITED
from store.commitlog.reader.log_batches import LogBatches
from store.errors import ConfigError, LostDataError, StoreError, StoreIOError
from streaming.sources.message_rows import MessageRows
from streaming.sources.options import OFFSET_KEY
from streaming.sources.partitions import message_partitions
from streaming.sources.queues.offsets import QueueOffsets, QueueSpans, parse_queue_offsets
from streaming.sources.read_bounds import Start
from streaming.sources.stores import Store, find_stores
from streaming.spark.read_limit import ReadLimit, max_bytes_of

QUEUES_KEY = "queues"  # beside OFFSET_KEY: the offsets by queue at which the query began
StreamOffset = dict[str, Any]  # of one store or of several, as Spark stores it

_log = logging.getLogger(__name__)


class LogStreams:
    """The streams of one query over all stores that its options name, by broker."""

    def __init__(self, rows: MessageRows, range_bytes: int) -> None:
        self._rows, self._range_bytes = rows, range_bytes
        self._options = rows.options
        self._stores: dict[str, Store] = {}  # those that exist, and were opened
        self._logs: dict[str, LogBatches] = {}  # all that ever did
        self._paths: dict[str, str] = {}  # from which they were opened
        self._is_fixed = False  # no store may join: the query reads what is available now
        self._turn = 0  # rotates, so that no store always gets what others left of a limit
        self._read_to_end: dict[str, int] = {}  # the offset of a log's end, once it was read
        self._warned: set[str] = set()

    def refresh(self) -> dict[str, LogBatches]:
        """Find the stores; return their streams. Raises StoreError, unless losses are skipped."""
        if self._options.is_single and self._logs:
            return self._logs
        skip = None if self._options.fail_on_data_loss else self._fail_or_warn
        found = {store.broker: store for store in find_stores(self._options, skip)}
        if self._is_fixed:
            found = {name: store for name, store in found.items() if name in self._logs}
        self._stores = {}
        for name, store in found.items():
            try:
                is_moved = self._paths.get(name) != store.store_root
                if is_moved or not Path(store.store_root).is_dir():
                    self._logs[name] = self._rows.open_log(store, self._range_bytes)
                    self._paths[name] = store.store_root
                self._stores[name] = store
            except (ConfigError, StoreIOError) as e:
                self._fail_or_warn(name, e)
        return {name: self._logs[name] for name in self._stores}

    def initial(self, begin: Callable[[LogBatches, Store], Start]) -> StreamOffset:
        """Return the offset of a new query; ``begin`` returns that of one store."""
        logs = self.refresh()
        starts = {name: begin(log, self._stores[name]) for name, log in logs.items()}
        queues = {name: s.queues for name, s in starts.items() if s.queues is not None}
        return self._encode({name: s.offset for name, s in starts.items()}, queues)

    def latest(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        """Return the end of the next batch. A limit in bytes is shared among the stores."""
        begin = self._decode(start)
        logs = self.refresh()
        end = dict(begin)
        names = sorted(begin)
        self._turn += 1
        left = max_bytes_of(limit)
        for n in range(len(names)):
            name = names[(n + self._turn) % len(names)]
            if name not in logs:
                self._check_gone(name, begin[name])
                continue
            share = left if left == UNLIMITED else max(left // (len(names) - n), 1)
            end[name] = self._latest_of(name, begin[name], share)
            if left != UNLIMITED:
                left = max(left - (end[name] - begin[name]), 0)
        for name in logs.keys() - begin.keys():
            end[name] = max(logs[name].log.min_offset(), 0)
        return self._encode(end, _of_joined(self._queues(start), end))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        """Return the ranges of a batch."""
        begins, ends = self._decode(start), self._decode(end)
        queues = self._queues(end)
        if not self._logs:
            self.refresh()
        found: list[InputPartition] = []
        for name, stop in ends.items():
            begin = begins.get(name, stop)
            if begin == stop:
                continue
            if name not in self._stores:
                self._check_gone(name, begin, stop)
                continue
            log, spans = self._logs[name], QueueSpans(queues.get(name))
            parts = log.ranges(begin, stop)
            found += message_partitions(parts, self._stores[name], spans, log.log.config)
        return found

    def report_latest(self) -> StreamOffset:
        """Return the current ends of the logs, for the query's status."""
        return self._encode({name: log.end() for name, log in self.refresh().items()})

    def prepare_available_now(self) -> None:
        """Fix the end of the query."""
        for log in self.refresh().values():
            log.fix_end()
        self._is_fixed = True

    def _latest_of(self, name: str, begin: int, max_bytes: int) -> int:
        log = self._logs[name]
        try:
            end = log.next_end(begin, max_bytes)
            if not self._options.is_single and end >= log.end():
                self._read_to_end[name] = end
        except StoreIOError as e:
            self._fail_or_warn(name, e)
            return begin
        return end

    def _check_gone(self, name: str, begin: int, end: int | None = None) -> None:
        """Raise, or warn once, if a store that no longer exists was not read to its end."""
        if end is None and self._read_to_end.get(name) == begin:
            return
        where, stop = ", ".join(self._options.paths), begin if end is None else end
        reason = f"the store of broker {name!r} no longer exists, and was not read to its end"
        hint = "failOnDataLoss=false continues without it"
        self._fail_or_warn(name, LostDataError(where, begin, stop, reason=reason, hint=hint))

    def _fail_or_warn(self, name: str, error: StoreError) -> None:
        if self._options.fail_on_data_loss or self._options.is_single:
            raise error
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("%s; the other stores are read", error)

    def _decode(self, offset: StreamOffset) -> dict[str, int]:
        """Return the offsets by broker."""
        if not _is_of_one_store(offset):
            return {name: of_broker[OFFSET_KEY] for name, of_broker in offset.items()}
        stores, paths = find_stores(self._options), ", ".join(self._options.paths)
        if not stores:
            raise ConfigError(f"no store at {paths}")
        if len(stores) > 1 and len(self._options.paths) == 1:
            raise ConfigError(
                f"the checkpoint is of one store, and {paths} matches {len(stores)}: name that "
                "store first in option 'paths'"
            )
        return {stores[0].broker: offset[OFFSET_KEY]}

    def _queues(self, offset: StreamOffset) -> dict[str, QueueOffsets]:
        """Return the offsets by queue at which a query began, by broker."""
        if not _is_of_one_store(offset):
            by_broker = offset
        elif QUEUES_KEY in offset:
            by_broker = {next(iter(self._decode(offset))): offset}
        else:
            return {}
        found = {n: parse_queue_offsets(of.get(QUEUES_KEY)) for n, of in by_broker.items()}
        return {name: queues for name, queues in found.items() if queues is not None}

    def _encode(
        self, offsets: Mapping[str, int], queues: Mapping[str, QueueOffsets] | None = None
    ) -> StreamOffset:
        of_each: StreamOffset = {name: {OFFSET_KEY: n} for name, n in sorted(offsets.items())}
        for name, of_broker in (queues or {}).items():
            of_each[name][QUEUES_KEY] = of_broker.as_json()
        if self._options.is_single and len(offsets) == 1:
            of_one: StreamOffset = next(iter(of_each.values()))
            return of_one
        return of_each


def _is_of_one_store(offset: StreamOffset) -> bool:
    return isinstance(offset.get(OFFSET_KEY), int)


def _of_joined(
    queues: Mapping[str, QueueOffsets], offsets: Mapping[str, int]
) -> dict[str, QueueOffsets]:
    """Return the offsets by queue of all stores: one that joins is read for the same topics."""
    if not queues:
        return {}
    topics = QueueOffsets({topic: {} for of_one in queues.values() for topic in of_one.by_topic})
    return {name: queues.get(name, topics) for name in offsets}
