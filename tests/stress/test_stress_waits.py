"""The short form of the stress script: a consumer waits while dispatchers are killed."""

from pathlib import Path

import pytest

from tests.stress.waits import stress
from tests.support.cases import first_cases


@pytest.mark.parametrize(("seconds", "seed"), first_cases([(3, 3), (12, 1)]))
def test_a_consumer_outlives_the_dispatchers_and_misses_nothing(
    tmp_path: Path, seconds: int, seed: int
) -> None:
    done = stress(tmp_path, seconds, seed)
    assert done["kills"] > 3
    assert done["messages"] > 3
