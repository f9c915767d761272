"""Log files that are truncated in place while they are read, as ``cp`` does to restore one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.dispatching import dispatch_all
from tests.support.stores.numbered import CONFIG, make_store, numbered
from tests.support.vanishing import READERS

BIG = replace(CONFIG, mapped_file_size_commit_log=1 << 20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two log files: the last one is whole, so that the log's end is known."""
    path = tmp_path_factory.mktemp("vanishing")
    store_root = make_store(path / "store", numbered(600, body=b"x" * 2000), BIG)
    dispatch_all(store_root, path / "output", BIG)
    return path


@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_read_of_vanished_bytes_is_right_or_an_error(store: Path, reader: str) -> None:
    command = [sys.executable, "-m", "tests.support.vanishing", reader]
    arguments = [*command, str(store / "store"), str(store / "output")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    found = json.loads(done.stdout)
    assert found["is_right"], found
    assert "wrong" not in found, found
    assert found["faults"] > 0, found
