"""The whole rebuild, its tasks run here one by one: the same bytes as a dispatch, however cut."""

from pathlib import Path

import pytest

from checkpoints.bulk.rebuild import rebuild_root
from checkpoints.bulk.state import BULK_DIR
from checkpoints.bulk.tasks import run_here
from checkpoints.root import DispatchRoot
from tests.conftest import Golden
from tests.dispatching import assert_same_store
from tests.test_golden_sink import WITH_UNKNOWN_MAGIC

PART_SIZES = [400, 5_000, 1 << 20]


@pytest.mark.parametrize("part_bytes", PART_SIZES)
def test_every_real_store_is_rebuilt_byte_for_byte(
    golden: Golden, tmp_path: Path, part_bytes: int
) -> None:
    root = DispatchRoot.replacing(tmp_path, golden.store_root, golden.config)
    rebuilt = rebuild_root(root, run_here, part_bytes=part_bytes)
    assert_same_store(tmp_path, golden.expected)
    assert (rebuilt.damage is not None) == (golden.name == WITH_UNKNOWN_MAGIC)
    assert not (tmp_path / BULK_DIR).exists()
    assert not (tmp_path / "abort").exists()
