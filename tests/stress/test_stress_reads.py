"""The short form of the stress script: reads beside a process that writes."""

from pathlib import Path

import pytest

from tests.stress.reads import stress
from tests.support.cases import first_cases


@pytest.mark.parametrize(("seconds", "least"), first_cases([(3, 1), (8, 20)]))
def test_reads_beside_a_writer_are_whole_and_miss_nothing(
    tmp_path: Path, seconds: int, least: int
) -> None:
    asked = stress(tmp_path, seconds, seed=3)
    assert asked["messages"] > 20 * least
    assert min(asked.values()) >= least
