"""The short form of the cycles: processes killed and power lost, and the same bytes in the end."""

from pathlib import Path

from tests.torture import cycles
from tests.torture.simulation.choosers import MODES


def test_whatever_was_cut_off_is_resumed(directory: Path) -> None:
    figures = cycles.run(directory, seed=1, cycles=250)
    assert min(figures.ends[end] for end in ("killed", "power lost", "closed")) > 20
    assert {"pwrite", "fsync", "fsync directory", "rename", "create"} <= figures.calls.keys()
    assert set(figures.modes) == set(MODES)
    assert figures.logs["cut, rolled back"] > 5
    assert figures.recoveries > 20
