"""A store with all kinds of file to dump."""

from pathlib import Path

import pytest

from tests.support.dumping import make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dispatched store; tests must not change it."""
    store_root = tmp_path_factory.mktemp("store")
    make_store(store_root)
    return store_root
