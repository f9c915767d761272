"""The short form of the faults: each call of a run fails once, kind after kind."""

from pathlib import Path

from tests.torture import faults


def test_each_call_that_fails_is_told_and_undone(directory: Path) -> None:
    figures = faults.run(directory, whole=False, names=["all"])
    kinds = {"create", "ftruncate", "pwrite", "fsync", "fsync directory", "rename", "mkdir"}
    assert kinds <= figures.faults.keys()
    assert figures.faults.total() > 60
