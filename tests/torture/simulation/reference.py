"""The state that an undisturbed dispatch builds from any prefix of a log."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from checkpoints.checkpoint_file import StoreCheckpoint, read_checkpoint
from checkpoints.output import DispatchOutput
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.output.progress import Progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.dispatching import (
    BUILT_DIRECTORIES,
    Content,
    HastyDisk,
    assert_same_content,
    built_tree,
)
from tests.torture.simulation.broker_log import BrokerLog


@dataclass(frozen=True)
class State:
    """A closed OUTPUT: its files, its progress, its checkpoint."""

    files: dict[str, Content]
    progress: Progress
    checkpoint: StoreCheckpoint | None

    def moved_to(self, offset: int) -> State:
        """Return the state from which dispatch resumes at ``offset``, after a blank."""
        return replace(self, progress=replace(self.progress, reput_from_offset=offset))


class Reference:
    """Builds the states of prefixes; cheapest when asked in ascending order."""

    def __init__(self, directory: Path, config: StoreConfig) -> None:
        self._directory = directory
        self._config = config
        self._states: dict[int, State] = {}
        self._sink: DispatchSink | None = None
        self._output: DispatchOutput
        self._requests: list[DispatchRequests] = []

    def forget_from(self, end: int) -> None:
        """Forget the states beyond ``end``, where the log has diverged."""
        self._states = {offset: state for offset, state in self._states.items() if offset <= end}
        self.close()

    def at(self, log: BrokerLog, offset: int) -> State:
        """Return the state of a dispatch of all records that end at or before ``offset``."""
        end = max((r.end for r in log.records if r.end <= offset), default=log.start)
        if end not in self._states:
            if self._sink is None or self._output.progress.reput_from_offset > end:
                self.close()
                self._open(log)
            self._apply(end)
            output = self._output.path
            state = State(built_tree(output), self._output.progress, read_checkpoint(output))
            self._states[end] = state
        return self._states[end].moved_to(offset)

    def close(self) -> None:
        """Close the OUTPUT that is being built."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _open(self, log: BrokerLog) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._directory)
        store = self._directory / "store"
        log.copy_to(store, self._config)
        self._output = DispatchOutput.open(
            self._directory / "output", store, self._config, disk=HastyDisk()
        )
        self._sink = DispatchSink(self._output, self._config)
        plan = LogPlanner(self._output.log, lambda: False).plan(log.start)
        scanner = Scanner(self._config)
        stretches = [s for part in plan.ranges for s in scanner.read(part)]
        self._requests = [s for s in stretches if isinstance(s, DispatchRequests)]
        assert len(self._requests) == len(stretches)
        assert sum(map(len, self._requests)) == len(log.records) + 1

    def _apply(self, end: int) -> None:
        assert self._sink is not None
        parts = [r.slice(0, int(np.searchsorted(r.commit_log_offset, end))) for r in self._requests]
        if end > self._output.progress.reput_from_offset:
            self._sink.apply([part for part in parts if len(part)])


def assert_same_state(output: Path, progress: Progress, expected: State) -> None:
    """Compare a closed OUTPUT with a reference; index file names are each OUTPUT's own."""
    assert_same_content(built_tree(output), expected.files)
    has_index = progress.index_files > 0
    names = sorted(p.name for p in (output / "index").iterdir()) if has_index else [""]
    known = replace(
        expected.progress,
        store=progress.store,
        commit_log=progress.commit_log,
        index_first=names[0],
        index_file=names[-1],
        batch=progress.batch,
        generation=progress.generation,
        rollback_points=progress.rollback_points,
        stamp=progress.stamp,
    )
    assert _differing(progress, known) == {}
    assert_rollback_points(progress)
    for kind in BUILT_DIRECTORIES:
        empty = [d for d in (output / kind).rglob("*") if d.is_dir() and not any(d.iterdir())]
        assert empty == [], "recovery left directories that no dispatch creates"


def _differing(progress: Progress, known: Progress) -> dict[str, tuple[object, object]]:
    values = {f.name: (getattr(progress, f.name), getattr(known, f.name)) for f in fields(progress)}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def assert_rollback_points(progress: Progress) -> None:
    """Assert that rollback points ascend, and that the last one is the current end."""
    ends = [point.reput_from_offset for point in progress.rollback_points]
    assert ends == sorted(ends)
    if progress.rollback_points:
        last = progress.rollback_points[-1]
        assert (last.reput_from_offset, last.last_record, last.drops) == (
            progress.reput_from_offset,
            progress.last_record,
            progress.drops,
        )
