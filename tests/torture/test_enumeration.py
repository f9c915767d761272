"""The short form of the enumeration: a one-message batch and its recovery."""

from pathlib import Path

from tests.torture import enumeration


def test_every_state_after_a_power_loss_recovers_to_before_or_after_the_batch(
    directory: Path,
) -> None:
    figures = enumeration.run(directory, names=["one message"])
    assert figures.states > 100
    assert figures.outcomes["before"] > figures.outcomes["after"] > 0
