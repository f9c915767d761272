"""A store whose log can be damaged."""

from pathlib import Path

import pytest

from store.commitlog import live_end
from store.commitlog import scanner as scan
from tests.support.stores.damaged import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return an empty store; retries and stall checks do not wait."""
    monkeypatch.setattr(scan, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(live_end, "_STALLED_SECONDS", 0)
    return Store(tmp_path / "store", tmp_path / "output")
