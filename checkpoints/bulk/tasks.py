"""The tasks of a rebuild: each is a value that any process with the files at hand can run.

A task may run twice, also at the same time: it writes the same bytes at the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeVar

from checkpoints.bulk.state import BulkState, PartRecord
from checkpoints.fingerprint import fingerprint_at
from store.bulk.index_build import build_index_part
from store.bulk.key_parts import IndexPart, encode_keys, summarise
from store.bulk.log_parts import LogPart, PartScanner
from store.bulk.queue_parts import lay_pre_fill, lay_units, place_part
from store.config import StoreConfig, config_from_json
from store.consume_queue_store import QueueKey
from store.disk import Disk
from store.layout import INDEX_DIR
from store.mapped_file import map_file

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Run(Protocol):
    """Runs a function on each of some tasks, in any order and anywhere.

    ``cores``: how many run at a time. ``advance`` is told of each task that is done. Raises the
    StoreError that a task raised.
    """

    cores: int

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        """Run all, and return what they came to, in the order of the tasks."""


class RunHere:
    """Runs one task after the other in this process."""

    cores = 1

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        """Run all."""
        results = []
        for task in tasks:
            results.append(function(task))
            advance(task)
        return results


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a rebuild share: the root, and its settings as JSON."""

    root: str
    config: str

    def config_of(self) -> StoreConfig:
        """Return the settings."""
        return config_from_json(self.config)


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Scans a part of the log, lays its units and keeps its keys."""

    job: Job

    def __call__(self, part: LogPart) -> None:
        """Do it; a part that ends with a fault lays nothing."""
        config, disk = self.job.config_of(), Disk(Path(self.job.root))
        state = BulkState(Path(self.job.root), disk)
        scanned = part_scanner(self.job.config).scan(part)
        placed = place_part(scanned.requests, config.mapped_file_size_consume_queue)
        keys = summarise(scanned.begin, scanned.requests)
        try:
            if scanned.fault is None:
                if not config.enable_consume_queue_ext:
                    lay_units(placed, state.new, config, disk)
                if config.message_index_enable and keys.keys:
                    disk.put(state.keys_path(part.number), encode_keys(scanned.requests))
            view = map_file(Path(part.path))
            first, last = (
                fingerprint_at(view, offset - part.base, offset) if offset >= 0 else None
                for offset in (keys.first_offset, keys.last_offset)
            )
            record = PartRecord(
                scanned.begin, scanned.end, scanned.fault, keys, placed.queues, first, last
            )
            state.write_part(part.number, record)
        finally:
            disk.close()


@dataclass(frozen=True, slots=True)
class BuildIndex:
    """Builds a part of an index file."""

    job: Job

    def __call__(self, part: IndexPart) -> None:
        """Do it."""
        disk = Disk(Path(self.job.root))
        state = BulkState(Path(self.job.root), disk)
        try:
            directory = state.new / INDEX_DIR
            built = build_index_part(part, directory, self.job.config_of(), disk)
            state.write_index_part(part, built)
        finally:
            disk.close()


@dataclass(frozen=True, slots=True)
class PreFill:
    """Fills the beginnings of queues whose first unit is not the first of its file."""

    job: Job

    def __call__(self, queues: Sequence[tuple[QueueKey, int]]) -> None:
        """Do it for (queue, first byte)."""
        config, disk = self.job.config_of(), Disk(Path(self.job.root))
        try:
            for key, first in queues:
                lay_pre_fill(BulkState(Path(self.job.root), disk).new, key, first, config, disk)
        finally:
            disk.close()


@lru_cache(maxsize=1)
def part_scanner(config: str) -> PartScanner:
    """Return this process's scanner: its buffers are used again."""
    return PartScanner(config_from_json(config))
