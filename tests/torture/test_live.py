"""The short form of ``tests.torture.live``."""

from pathlib import Path

import pytest

from tests.support.cases import first_cases
from tests.torture.live import live


@pytest.mark.parametrize(("seconds", "questions"), first_cases([(4, 10), (10, 100)]))
def test_kills_beside_a_writer_and_readers_cause_no_wrong_answer(
    tmp_path: Path, seconds: int, questions: int
) -> None:
    done = live(tmp_path, seconds, seed=5)
    assert done["kills"] >= 1
    assert done["questions"] > questions
