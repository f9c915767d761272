"""The short form of the stress script: reads while their OUTPUT is replaced, on busy cores."""

from pathlib import Path

import pytest

from tests.stress.swaps import REPLACE, questions, stress
from tests.support.cases import first_cases


@pytest.mark.parametrize("seconds", first_cases([3, 12]))
def test_reads_of_an_output_being_replaced_are_always_right(tmp_path: Path, seconds: int) -> None:
    result = stress(tmp_path, seconds)
    assert result["wrong"] == []
    assert set(result["replaced"]) == {change.__name__ for change in REPLACE}
    assert set(result["asked"]) == set(questions())
