"""The short form of the enumeration: a batch of one message, and its recovery."""

from pathlib import Path

from tests.torture import enumeration


def test_all_states_behind_a_batch_recover_to_before_or_after_it(directory: Path) -> None:
    figures = enumeration.run(directory, names=["one message"])
    assert figures.states > 100
    assert figures.outcomes["before"] > figures.outcomes["after"] > 0
