"""Each system call of a run fails once, in turn, with a full disk or a device error.

The run must raise a StoreIOError that names what failed. The process then ends, perhaps with a
power loss, and the next start must bring OUTPUT to what an undisturbed dispatch builds.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from random import Random

from store.errors import StoreIOError
from tests.torture.simulation.choosers import chooser_for
from tests.torture.simulation.device import Device
from tests.torture.simulation.simulated_disk import Plan, SimulatedDisk, process
from tests.torture.simulation.stage import CONFIGS, Stage

MESSAGES = 12
SIZES = (3, 1, 5)  # records a batch
ERRORS = (errno.ENOSPC, errno.EIO)
AFTERMATHS = ("power stays", "all lost", "random")


@dataclass
class Figures:
    """Counts of what was tried."""

    faults: Counter[str] = field(default_factory=Counter)  # by call
    recoveries: int = 0  # OUTPUT directories whose recovery was tested


@dataclass(frozen=True)
class Fault:
    """Which call fails, how, and what follows."""

    at: int
    errno: int
    aftermath: str


def each_fault(*, whole: bool) -> Iterator[Sequence[Fault]]:
    """Yield the faults to try for each call in turn: all kinds, or one kind per call."""
    kinds = list(product(ERRORS, AFTERMATHS))
    for at in count(1):
        chosen = kinds if whole else [kinds[at % len(kinds)]]
        yield [Fault(at, *kind) for kind in chosen]


def try_fault(stage: Stage, device: Device, fault: Fault) -> str:
    """Fail one call of a run; return its name, or "" if the run has fewer calls."""
    disk = SimulatedDisk(device, Plan(fails_at=fault.at, errno=fault.errno))
    try:
        stage.dispatch(disk, device, SIZES)
    except StoreIOError as e:
        check_error(e, disk, fault)
    else:
        assert disk.failed is None, f"{disk.failed_call} failed and no error was raised"
    assert not disk.holds_lock
    disk.end()
    if disk.failed is None:
        return ""
    if fault.aftermath != "power stays":
        random = Random(fault.at)
        device.power_loss(chooser_for(fault.aftermath, random, device.last_number))
    stage.finish(device)
    return disk.failed_call


def check_error(error: StoreIOError, disk: SimulatedDisk, fault: Fault) -> None:
    """Check that an error names what failed, and where."""
    assert disk.failed is not None, error
    assert error.errno == fault.errno
    names = {disk.failed.name, disk.failed.name.removesuffix(".tmp")}
    # A failure while a path is created or a file is replaced is reported with that path.
    related = error.path.is_relative_to(disk.failed) or disk.failed == error.path.parent
    assert error.path.name in names or related, (error, disk.failed)
    assert str(error).startswith("cannot ")
    assert "\n" not in str(error)


def try_all(stage: Stage, figures: Figures, *, whole: bool) -> None:
    """Fail each call of a run in turn, from where the stage's trials begin."""
    for faults in each_fault(whole=whole):
        for fault in faults:
            with stage.trial() as device:
                try:
                    call = try_fault(stage, device, fault)
                except BaseException as e:
                    e.add_note(f"{fault}")
                    raise
            if not call:
                return
            figures.faults[call] += 1


def interrupt(stage: Stage) -> None:
    """Run with short and interrupted writes throughout."""
    with stage.trial() as device:
        stage.run(device, Plan(shorten=Random(1), interrupts=True), SIZES)
        stage.finish(device)


def crash_points(stage: Stage) -> list[int]:
    """Return calls in which to interrupt a run so that recovery has much to do."""
    with stage.trial() as device:
        disk = SimulatedDisk(device)
        stage.dispatch(disk, device, SIZES)
        disk.end()
        total = len(disk.calls)
    return list(range(total // 3, total, max(1, total // 4)))


def cut_off(stage: Stage, point: int) -> None:
    """Begin all trials with an OUTPUT whose dispatch was killed in call ``point``."""
    with stage.trial() as device:
        with process(device, Plan(dies_at=point)) as disk:
            stage.dispatch(disk, device, SIZES)
        stage.keep(device)


def run(directory: Path, *, names: Sequence[str] = tuple(CONFIGS), whole: bool = True) -> Figures:
    """Try all faults; ``whole``: all kinds at each call, and in recoveries as well."""
    figures = Figures()
    for name in names:
        with closing(Stage(directory / name, CONFIGS[name], MESSAGES if whole else 3)) as stage:
            interrupt(stage)
            try_all(stage, figures, whole=whole)
            points = crash_points(stage)
        for n, point in enumerate(points if whole else ()):
            with closing(Stage(directory / f"{name} {n}", CONFIGS[name], MESSAGES)) as stage:
                cut_off(stage, point)
                try_all(stage, figures, whole=whole)
            figures.recoveries += 1
    return figures
