"""The short form of the cycles: killed processes and power losses leave the same final bytes."""

from pathlib import Path

from tests.torture import cycles
from tests.torture.simulation.choosers import MODES


def test_dispatch_resumes_after_kills_and_power_losses(directory: Path) -> None:
    figures = cycles.run(directory, seed=1, cycles=250)
    assert min(figures.ends[end] for end in ("killed", "power lost", "closed")) > 20
    assert {"pwrite", "fsync", "fsync directory", "rename", "create"} <= figures.calls.keys()
    assert set(figures.modes) == set(MODES)
    assert figures.logs["cut, rolled back"] > 5
    assert figures.recoveries > 20
