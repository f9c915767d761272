"""The short form of ``tests.torture.live``."""

from pathlib import Path

from tests.torture.live import live


def test_killed_beside_a_writer_and_readers(tmp_path: Path) -> None:
    done = live(tmp_path, 10, seed=5)
    assert done["kills"] >= 2
    assert done["questions"] > 100
