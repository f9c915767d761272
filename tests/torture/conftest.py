"""A directory for simulated devices."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.simulation.device import make_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return an empty directory, in memory where that can be; it goes with the test."""
    made = make_directory()
    yield made
    shutil.rmtree(made)
