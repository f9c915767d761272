"""A temporary directory for simulated devices."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.simulation.device import make_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield an empty directory, in memory where possible; it is removed after the test."""
    path = make_directory()
    yield path
    shutil.rmtree(path)
