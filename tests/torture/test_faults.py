"""The short form of the faults: each call of a run fails once, with alternating kinds."""

from pathlib import Path

from tests.torture import faults


def test_each_failed_call_is_reported_and_rolled_back(directory: Path) -> None:
    figures = faults.run(directory, whole=False, names=["all"])
    kinds = {"create", "ftruncate", "pwrite", "fsync", "fsync directory", "rename", "mkdir"}
    assert kinds <= figures.faults.keys()
    assert figures.faults.total() > 60
