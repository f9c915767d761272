"""Fixtures shared by the tests: the stores of real brokers, unpacked."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from store.config import StoreConfig, load_config

ARCHIVES = sorted((Path(__file__).parent / "golden").glob("*.tar.xz"))


def archive_name(path: Path) -> str:
    """Return the store's name."""
    return path.name.removesuffix(".tar.xz")


@dataclass(frozen=True)
class Golden:
    """A store that a real broker wrote: its input, and what that broker built from it."""

    name: str
    directory: Path
    scenario: dict[str, Any]

    @property
    def version(self) -> str:
        """The broker's version."""
        return str(self.scenario["version"])

    @property
    def store_root(self) -> Path:
        """What a dispatch starts from: commit log, broker.conf, perhaps abort and config."""
        return self.directory / "input"

    @property
    def expected(self) -> Path:
        """What the broker builds from the log alone."""
        rebuilt = self.directory / "expected_rebuilt"
        return rebuilt if rebuilt.is_dir() else self.directory / "expected"

    @property
    def config(self) -> StoreConfig:
        """The settings, read from the store's broker.conf."""
        return load_config(self.store_root, self.store_root / "broker.conf", self.version)


@pytest.fixture(scope="session", params=ARCHIVES, ids=archive_name)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Unpack one archive after the other."""
    archive: Path = request.param
    name = archive_name(archive)
    parent = tmp_path_factory.mktemp("stores")
    subprocess.run(["tar", "-xJf", archive, "-C", parent], check=True)
    conf = parent / name / "input" / "broker.conf"
    conf.write_text(conf.read_text("utf-8").replace("@STORE@", str(conf.parent)), "utf-8")
    scenario = json.loads((parent / name / "scenario.json").read_text("utf-8"))
    return Golden(name, parent / name, scenario)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local time be that of Berlin: an hour ahead of UTC in winter."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
