"""The short form of the stress script: reads beside a process that writes."""

from pathlib import Path

from tests.stress.reads import stress


def test_reads_beside_a_writer_are_whole_and_miss_nothing(tmp_path: Path) -> None:
    asked = stress(tmp_path, 8, seed=3)
    assert asked["messages"] > 1000
    assert min(asked.values()) > 20
