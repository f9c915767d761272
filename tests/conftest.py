"""Shared by all tests: the unpacked stores of real brokers, and the grouping of tests."""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from store.config import StoreConfig, load_config
from tests.support.sessions import run_here, run_spark, skip_classic, spark

__all__ = ["run_here", "run_spark", "spark"]

# No deadline for an example: other tests keep the cores busy at the same time.
settings.register_profile(
    "shared cores", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared cores")

ARCHIVES = sorted((Path(__file__).parent / "golden").glob("*.tar.xz"))


def archive_name(path: Path) -> str:
    """Return the store's name."""
    return path.name.removesuffix(".tar.xz")


@dataclass(frozen=True)
class Golden:
    """A store that a real broker wrote: its input, and the files the broker built from it."""

    name: str
    directory: Path
    scenario: dict[str, Any]

    @property
    def version(self) -> str:
        """The broker's version."""
        return str(self.scenario["version"])

    @property
    def store_root(self) -> Path:
        """The input of a dispatch: commit log, broker.conf, perhaps abort and config."""
        return self.directory / "input"

    @property
    def expected(self) -> Path:
        """The files that the broker builds from the log alone."""
        rebuilt = self.directory / "expected_rebuilt"
        return rebuilt if rebuilt.is_dir() else self.directory / "expected"

    @property
    def config(self) -> StoreConfig:
        """The settings, read from the store's broker.conf."""
        return load_config(self.store_root, self.store_root / "broker.conf", self.version)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--sample``."""
    text = "run each N-th of the selected tests only, always the same ones"
    parser.addoption("--sample", type=int, default=1, metavar="N", help=text)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of the Spark session in one process, and those of each golden store in one."""
    from tests.support.groups import GroupScheduling

    return GroupScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what Spark Connect has not; keep a sample of the selected tests."""
    skip_classic(items)
    number = config.getoption("sample")
    if number > 1:
        config.hook.pytest_deselected(items=[i for n, i in enumerate(items) if n % number])
        items[:] = items[::number]


@pytest.fixture(scope="session")
def unpacked_stores() -> dict[str, Golden]:
    """Return the stores that this process has unpacked."""
    return {}


@pytest.fixture(scope="session", params=ARCHIVES, ids=archive_name)
def golden(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    unpacked_stores: dict[str, Golden],
) -> Golden:
    """Unpack each archive once."""
    archive: Path = request.param
    name = archive_name(archive)
    if name not in unpacked_stores:
        unpacked_stores[name] = unpack(archive, tmp_path_factory.mktemp("stores"))
    return unpacked_stores[name]


def unpack(archive: Path, parent: Path) -> Golden:
    """Unpack an archive below a directory."""
    name = archive_name(archive)
    subprocess.run(["tar", "-xJf", archive, "-C", parent], check=True)
    conf = parent / name / "input" / "broker.conf"
    conf.write_text(conf.read_text("utf-8").replace("@STORE@", str(conf.parent)), "utf-8")
    scenario = json.loads((parent / name / "scenario.json").read_text("utf-8"))
    return Golden(name, parent / name, scenario)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local time zone to Berlin: one hour ahead of UTC in winter."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
