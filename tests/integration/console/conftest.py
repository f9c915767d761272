"""A browser, and consoles of stores that the tests share."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.integration.console.browsing import ConsoleServer, Tab, open_tab
from tests.integration.console.stores import Shown, make_hostile, make_shop

# What a page shows is awaited, however busy the cores are.
expect.set_options(timeout=60_000)

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Chromium; skip the tests where there is none."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(_PROGRAMS)} is installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Return the store of a shop; tests only read it."""
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="session")
def shop_console(shop: Shown, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Serve the shop."""
    yield from _serve(tmp_path_factory.mktemp("console"), shop.store_root, "--output", shop.output)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Return a store of hostile content."""
    return make_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def hostile_console(
    hostile: Shown, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleServer]:
    """Serve the hostile store."""
    directory = tmp_path_factory.mktemp("console")
    yield from _serve(directory, hostile.store_root, "--output", hostile.output)


def _serve(directory: Path, *arguments: object) -> Iterator[ConsoleServer]:
    console = ConsoleServer(directory, *arguments)
    console.start()
    yield console
    console.stop()


@pytest.fixture
def new_console(tmp_path: Path) -> Iterator[Callable[..., ConsoleServer]]:
    """Start consoles with these arguments; they are stopped after the test's tabs are closed."""
    consoles: list[ConsoleServer] = []

    def started(*arguments: object) -> ConsoleServer:
        consoles.append(ConsoleServer(tmp_path, *arguments))
        consoles[-1].start()
        return consoles[-1]

    yield started
    for console in consoles:
        console.stop()


@pytest.fixture
def new_tab(
    browser: Browser, new_console: Callable[..., ConsoleServer]
) -> Iterator[Callable[..., Tab]]:
    """Open tabs; at the end of the test each one is closed, then checked."""
    assert new_console is not None  # stops its consoles later
    tabs: list[Tab] = []

    def opened(console: ConsoleServer, **options: Any) -> Tab:
        tabs.append(open_tab(browser, console.url, **options))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.page.context.close()
    for tab in tabs:
        tab.check()
