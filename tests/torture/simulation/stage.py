"""A small log, and fresh OUTPUT directories for repeated trials of its dispatch."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from checkpoints.checkpoint_file import read_checkpoint
from checkpoints.output import DispatchOutput
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import Message
from tests.support.dispatching import Batch, cut_stretches
from tests.torture.simulation.broker_log import FILE_SIZE, BrokerLog
from tests.torture.simulation.device import Device
from tests.torture.simulation.reference import Reference, assert_same_state
from tests.torture.simulation.simulated_disk import Plan, SimulatedDisk, process

TINY = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=40,
    mapped_file_size_consume_queue_ext=64,
    max_hash_slot_num=200,
    max_index_num=6,
)
CONFIGS = {
    "tiny files": TINY,
    "ext": replace(TINY, enable_consume_queue_ext=True),
    "lmq": replace(TINY, enable_multi_dispatch=True, enable_lmq=True),
    "no index": replace(TINY, message_index_enable=False, mapped_file_size_consume_queue=400),
    "all": replace(
        TINY, enable_consume_queue_ext=True, enable_multi_dispatch=True, enable_lmq=True
    ),
}


class Stage:
    """A log, the reference of its dispatch, and a device for each trial."""

    def __init__(
        self, directory: Path, config: StoreConfig, messages: Iterable[Message] | int
    ) -> None:
        self.config = config
        self.store = directory / "store"
        self.log = BrokerLog(self.store, config, Random(7))
        if isinstance(messages, int):
            self.log.grow(messages)
        else:
            for message in messages:
                self.log.append(message)
        self.log.show(self.log.end)
        self.reference = Reference(directory / "reference", config)
        self.kept_end = 0  # up to where the log is dispatched when a trial begins
        self._directory = directory
        self._base = directory / "base"

    def close(self) -> None:
        """Close the reference's OUTPUT."""
        self.reference.close()

    @contextmanager
    def trial(self) -> Iterator[Device]:
        """Yield a device with the content that ``keep`` saved."""
        directory = self._directory / "trial"
        if self._base.exists():
            shutil.copytree(self._base, directory / "root")
        try:
            yield Device(directory)
        finally:
            shutil.rmtree(directory)

    def keep(self, device: Device) -> None:
        """Save the content of a device as the start of all later trials."""
        shutil.rmtree(self._base, ignore_errors=True)
        shutil.copytree(device.root, self._base)

    def open(self, disk: SimulatedDisk, device: Device) -> DispatchOutput:
        """Open OUTPUT, which recovers it; it must match its progress record."""
        output = device.root / "output"
        owned = DispatchOutput.open(output, self.store, self.config, disk=disk)
        expected = self.reference.at(self.log, owned.progress.reput_from_offset)
        assert_same_state(output, owned.progress, expected)
        return owned

    def batches(self, owned: DispatchOutput, sizes: Iterable[int]) -> Iterator[Batch]:
        """Yield the rest of the log in batches of these sizes, then the remainder as one."""
        plan = LogPlanner(owned.log, lambda: False).plan(owned.progress.reput_from_offset)
        scanner = Scanner(self.config)
        stretches = [s for part in plan.ranges for s in scanner.read(part)]
        if stretches:
            yield from cut_stretches(stretches, iter(sizes))

    def dispatch(self, disk: SimulatedDisk, device: Device, sizes: Iterable[int]) -> None:
        """Open OUTPUT, dispatch the whole log, close."""
        sink: DispatchSink | None = None
        try:
            owned = self.open(disk, device)
            sink = DispatchSink(owned, self.config)
            for batch in self.batches(owned, sizes):
                sink.apply(batch)
        finally:
            if sink is not None and not disk.is_dead:
                sink.close()

    def recovered(self, device: Device) -> int:
        """Start a new process; return the offset from which it would resume."""
        with process(device) as disk:
            owned = self.open(disk, device)
            offset = owned.progress.reput_from_offset
            owned.close(clean=True)
        return offset

    def finish(self, device: Device) -> None:
        """Dispatch the rest in a new process; OUTPUT must be as if nothing had happened."""
        with process(device) as disk:
            self.dispatch(disk, device, [2])
        output = device.root / "output"
        with process(device) as disk:
            owned = self.open(disk, device)
            assert owned.progress.reput_from_offset == self.log.end
            owned.close(clean=True)
        assert read_checkpoint(output) == self.reference.at(self.log, self.log.end).checkpoint

    def run(self, device: Device, plan: Plan, sizes: Iterable[int]) -> SimulatedDisk:
        """Dispatch the whole log in a process that may end early; return its disk."""
        with process(device, plan) as disk:
            self.dispatch(disk, device, sizes)
        return disk
