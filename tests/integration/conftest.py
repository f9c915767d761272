"""Servers for the tests of this folder: started on first use, stopped at the end of the run."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.servers import processes

HERE = Path(__file__).parent
# A cold cache downloads jars during a test, and a busy machine is slow.
TEST_SECONDS = 900


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that runs without servers deselect them."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))
            # kafka-python leaves sockets to the garbage collector, see ``collected``.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the servers' output to the report of a failed test."""
    report = yield
    if report.failed and item.path.is_relative_to(HERE):
        for server in processes.started[-6:]:
            report.sections.append((f"end of the output of {server.name}", server.tail()))
    return report


@pytest.fixture(scope="session", autouse=True)
def no_server_left() -> Iterator[None]:
    """Kill servers that tests left running, also when the run is terminated."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    processes.kill_all()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Collect a test's garbage within the test, so that no other test gets its warnings."""
    yield
    gc.collect()
