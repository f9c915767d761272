"""Kill and resume at random: processes die in any call, power fails, the log comes back shorter.

One *life* is a process that opens OUTPUT, dispatches some batches and ends: in a call chosen in
advance, between two batches, or cleanly. After each start, before anything is dispatched, OUTPUT
must equal what an undisturbed dispatch builds from the log up to the progress record; after the
last, what it builds from the whole log.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from random import Random

from checkpoints.checkpoint_file import read_checkpoint
from checkpoints.output import DispatchOutput
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import Scanner
from store.config import BrokerVersion, StoreConfig
from store.errors import DamageError
from store.output.progress import Progress, read_progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.dispatching import Batch, cut_stretches
from tests.torture.simulation.broker_log import FILE_SIZE, BrokerLog
from tests.torture.simulation.choosers import MODES, chooser_for
from tests.torture.simulation.device import Device
from tests.torture.simulation.reference import Reference, assert_same_state
from tests.torture.simulation.simulated_disk import Plan, SimulatedDisk, process

VERSIONS = ("4.7.0", "4.8.0", "4.9.4", "5.1.4", "5.3.3", "5.5.0")
LIVES_MAX = 60  # of one OUTPUT; after that it runs to completion


@dataclass
class Figures:
    """Counts of what was tried."""

    roots: int = 0
    recoveries: int = 0  # that rolled something back
    ends: Counter[str] = field(default_factory=Counter)  # of processes
    calls: Counter[str] = field(default_factory=Counter)  # in which processes ended
    places: Counter[str] = field(default_factory=Counter)  # the phase they ended in
    modes: Counter[str] = field(default_factory=Counter)  # which changes power losses kept
    logs: Counter[str] = field(default_factory=Counter)  # what happened to the log

    @property
    def cycles(self) -> int:
        """The number of processes that did not end cleanly."""
        return self.ends.total() - self.ends["closed"]


def random_config(random: Random) -> StoreConfig:
    """Draw a configuration in which a few messages fill files of every kind."""
    has_multi = random.random() < 0.5
    return StoreConfig(
        version=BrokerVersion.parse(random.choice(VERSIONS)),
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=random.choice([20, 40, 100, 600, 2000]),
        mapped_file_size_consume_queue_ext=random.choice([24, 64, 130, 1004]),
        max_hash_slot_num=random.choice([1, 3, 17, 2000]),
        max_index_num=random.choice([2, 3, 7, 30, 200]),
        message_index_enable=random.random() < 0.9,
        enable_consume_queue_ext=random.random() < 0.4,
        enable_multi_dispatch=has_multi,
        enable_lmq=has_multi and random.random() < 0.7,
        enabled_append_prop_crc=random.random() < 0.1,
    )


class Lives:
    """The lives of one OUTPUT, from its first process to the end of its log."""

    def __init__(self, directory: Path, seed: str, figures: Figures) -> None:
        self.random = random = Random(seed)
        self.figures = figures
        self.config = random_config(random)
        self.store = directory / "store"
        start = random.choice([0, 0, 0, 3 * FILE_SIZE])
        self.log = BrokerLog(self.store, self.config, random, start)
        self.log.grow(random.randint(10, 60))
        self.log.show(self.log.start)
        self.device = Device(directory / "device")
        self.output = self.device.root / "output"
        self.reference = Reference(directory / "reference", self.config)
        self.place = ""  # the phase the process is in
        self.committed = self.in_flight = start
        self.is_cut = False  # whether the log has been truncated since the last start
        self.has_common = True  # whether the log still holds a dispatched record
        self.common_end = UNLIMITED  # the end of the records a truncated log shows for now
        self.is_overwritten = False  # whether dispatched bytes changed under a running process

    def run(self) -> None:
        """Run processes until one has dispatched the whole log."""
        self.figures.roots += 1
        for _ in range(LIVES_MAX):
            if self.live(self.draw_plan(), lazy=True):
                break
        else:
            self.show(self.log.end)
            self.is_cut = self.is_cut or self.is_overwritten
            assert self.live(Plan(), lazy=False)
        self.device.power_loss(chooser_for("all lost", self.random, 0))
        expected = self.reference.at(self.log, self.committed)
        with process(self.device) as disk:
            owned = self.open(disk)
            assert_same_state(self.output, owned.progress, expected)
            owned.close(clean=True)
        assert read_checkpoint(self.output) == expected.checkpoint

    def close(self) -> None:
        """Close the reference's OUTPUT."""
        self.reference.close()

    def draw_plan(self) -> Plan:
        """Draw the call in which a process dies, if any."""
        random = self.random
        dies_at = random.randint(1, random.choice([8, 30, 80, 200, 500]))
        return Plan(
            dies_at=dies_at if random.random() < 0.9 else 0,
            shorten=Random(random.random()) if random.random() < 0.3 else None,
        )

    def live(self, plan: Plan, *, lazy: bool) -> bool:
        """Run one process; return whether it dispatched the whole log and closed OUTPUT.

        A ``lazy`` process may end early.
        """
        is_done = is_closed = False
        with process(self.device, plan) as disk:
            self.place = "open"
            owned = self.open(disk)
            sink = DispatchSink(owned, self.config)
            try:
                is_done = self.dispatch(owned, sink, lazy=lazy)
            except DamageError:
                if not self.is_overwritten:
                    raise
                self.figures.logs["seen while running"] += 1
            self.is_cut = self.is_overwritten
            self.place = "close"
            if is_done or self.random.random() < 0.3:
                sink.close()
                is_closed = True
        if is_closed:
            self.figures.ends["closed"] += 1
        else:
            self.figures.places[self.place] += 1
            self.figures.calls[disk.died_in or "none"] += 1
        if is_done and is_closed:
            return True
        self.after_end(is_closed=is_closed)
        return False

    def open(self, disk: SimulatedDisk) -> DispatchOutput:
        """Open OUTPUT, which recovers it, and check that it matches its progress record."""
        owned = self.open_or_begin(disk)
        progress = owned.progress
        self.figures.recoveries += len(owned.recovered)
        self.check_offset(progress)
        offset = progress.reput_from_offset
        expected = self.reference.at(self.log, min(offset, self.common_end))
        assert_same_state(self.output, progress, expected.moved_to(offset))
        self.committed = self.in_flight = progress.reput_from_offset
        self.is_cut, self.has_common, self.is_overwritten = False, True, False
        return owned

    def open_or_begin(self, disk: SimulatedDisk) -> DispatchOutput:
        """Open OUTPUT; start a new one if the log no longer holds any dispatched record."""
        try:
            return DispatchOutput.open(self.output, self.store, self.config, disk=disk)
        except DamageError:
            if self.has_common and not self.is_cut_into_first_drops():
                raise
        self.figures.logs["another log"] += 1
        self.output = self.output.with_name(self.output.name + "+")
        return DispatchOutput.open(self.output, self.store, self.config, disk=disk)

    def is_cut_into_first_drops(self) -> bool:
        """Return whether the log ends within a first batch with dropped records.

        The queue ends after the first record alone are then unknown, so OUTPUT has no rollback
        point before the batch's end (``checkpoints.commit.advance``).
        """
        progress = read_progress(self.output)
        assert progress is not None
        oldest = progress.rollback_points[0]
        has_dropped = any(drops["repeated"] for drops in oldest.drops.values())
        end = min(self.log.end, self.log.shown, self.common_end)
        return has_dropped and oldest.reput_from_offset > end

    def check_offset(self, progress: Progress) -> None:
        """Check that OUTPUT resumes from a permitted offset."""
        offset = progress.reput_from_offset
        if not self.is_cut:
            assert offset in (self.committed, self.in_flight)
            return
        assert offset <= self.in_flight
        assert offset <= self.log.end
        self.figures.logs["cut, rolled back" if offset < self.committed else "cut beyond"] += 1

    def dispatch(self, owned: DispatchOutput, sink: DispatchSink, *, lazy: bool) -> bool:
        """Dispatch in random cuts; return whether the whole log has been dispatched."""
        random = self.random
        planner = LogPlanner(
            owned.log, lambda: False, range_bytes=random.choice([1, 700, 5000, UNLIMITED])
        )
        scanner = Scanner(self.config, random.choice([1, 700, 20_000]))
        last: Batch = []
        while not lazy or random.random() < 0.8:
            if lazy and self.log.shown < self.log.end:
                self.show_more()
            begin = owned.progress.reput_from_offset
            plan = planner.plan(begin, max_bytes=random.choice([1, 700, 5000, UNLIMITED]))
            if not plan.ranges and self.log.shown == self.log.end:
                return not self.is_overwritten
            stretches = [s for part in plan.ranges for s in scanner.read(part)]
            for batch in cut_stretches(stretches, repeat(random.choice([1, 2, 5, 50]))):
                self.place = "batch"
                self.in_flight = max(self.in_flight, *(s.end for s in batch), 0)
                sink.apply([*last, *batch] if random.random() < 0.1 else batch)
                self.committed = owned.progress.reput_from_offset
                last = batch
        return False

    def show_more(self) -> None:
        """Let the broker append; what a process sees may end inside a record."""
        end = self.random.choice([r.end for r in self.log.records if r.end > self.log.shown])
        if self.random.random() < 0.2:
            end = min(self.log.end, end + self.random.randint(1, 300))
        self.show(end, ahead=self.random.random() < 0.2)

    def show(self, end: int, *, ahead: bool = False) -> None:
        """Write the log's files up to ``end``."""
        self.log.show(end, ahead=ahead)
        if self.committed > self.common_end:
            self.is_overwritten = True  # a blank, or a record that was dispatched
        self.common_end = UNLIMITED

    def after_end(self, *, is_closed: bool) -> None:
        """Lose power or keep it; the log may come back shorter."""
        random, figures = self.random, self.figures
        has_power = random.random() < 0.4
        if not has_power:
            mode = random.choice(MODES)
            self.device.power_loss(chooser_for(mode, random, self.device.last_number))
            figures.modes[mode] += 1
        if not is_closed:
            figures.ends["killed" if has_power else "power lost"] += 1
        if not has_power and random.random() < 0.25 and self.log.shown > self.log.start:
            self.cut_log()

    def cut_log(self) -> None:
        """Let the log come back shorter: followed by zeros, or by records already appended."""
        random, log = self.random, self.log
        end = random.choice([log.shown, self.committed, random.randint(log.start, log.shown)])
        end = min(end, log.shown)
        end = random.randint(max(log.start, end - random.choice([1, 300, 3000])), end)
        if random.random() < 0.5:
            end = max((r.end for r in log.records if r.end <= end), default=log.start)
        end = log.whole_end(end)
        self.is_cut = True
        self.has_common = self.has_common and log.surely_holds_a_record(end)
        log.show(end, ahead=random.random() < 0.2)
        if random.random() < 0.5:
            self.figures.logs["reappears"] += 1
            return
        self.figures.logs["diverges"] += 1
        log.cut()
        self.reference.forget_from(log.common_end)
        self.common_end = min(self.common_end, log.common_end)
        log.grow(random.randint(3, 20))
        if random.random() < 0.5:
            self.show_more()


def run(directory: Path, seed: int, cycles: int) -> Figures:
    """Run at least ``cycles`` cycles, one OUTPUT after another; a failure names the seed."""
    figures, number = Figures(), 0
    while figures.cycles < cycles:
        name = f"{seed}-{number}"
        try:
            with closing(Lives(directory / name, name, figures)) as lives:
                lives.run()
        except BaseException as e:
            e.add_note(f"the OUTPUT of seed {name!r}, in {directory / name}")
            raise
        shutil.rmtree(directory / name)
        number += 1
    return figures
