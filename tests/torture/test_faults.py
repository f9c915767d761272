"""The short form of the faults: each call of a run fails once, kind after kind."""

from pathlib import Path

import pytest

from tests.torture import faults


@pytest.mark.parametrize("name", ["tiny files", "all"])
def test_each_call_that_fails_is_told_and_undone(tmp_path: Path, name: str) -> None:
    figures = faults.run(tmp_path, whole=False, names=[name])
    kinds = {"create", "ftruncate", "pwrite", "fsync", "fsync directory", "rename", "mkdir"}
    assert kinds <= figures.faults.keys()
    assert figures.faults.total() > 100
