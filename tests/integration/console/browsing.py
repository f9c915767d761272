"""A console as a process, and a tab of Chromium that records what must not happen."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

from tests.integration.servers.processes import Server
from tests.support.commands import REPUT

SCREENSHOTS = "CONSOLE_SCREENSHOTS"
DESKTOP, PHONE = (1280, 860), (360, 780)
_FAULTS = Path(__file__).with_name("faults.js")
_FAILED = "Failed to load resource"


class ConsoleServer:
    """`reput serve` on a free port."""

    def __init__(self, directory: Path, *arguments: object) -> None:
        command = [*REPUT, "serve", *map(str, arguments), "--port", "0", "--json"]
        self.server = Server("reput-serve", command, directory, {})
        self.url = ""

    def start(self) -> None:
        """Start it, and wait for its URL."""
        self.server.log.unlink(missing_ok=True)
        self.server.start()
        self.server.wait_until(self._has_url, "serving", 60)

    def stop(self) -> None:
        """Stop it as a user does; nothing happens if it was stopped."""
        if not self.server.is_running:
            return
        assert self.server.stop() == 0, self.server.tail()

    def page_url(self, broker: str, path: str = "") -> str:
        """Return the URL of a page of a broker; `path` is already encoded."""
        return f"{self.url}brokers/{quote(broker, safe='')}{path}"

    def _has_url(self) -> bool:
        lines = self.server.log.read_text("utf-8").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        self.url = next((e["url"] for e in events if e.get("event") == "serve"), "")
        return bool(self.url)


@dataclass
class Tab:
    """A tab; `problems` are errors and violations, `requests` all URLs that it asked for."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    is_refusal_expected: bool = False

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda e: self.problems.append(f"uncaught: {e}"))
        self.page.on("request", self._on_request)
        self.page.on("dialog", self._on_dialog)

    def open(self, url: str) -> Page:
        """Open a page, and wait until its scripts ran."""
        self.page.goto(url)
        self.page.wait_for_function("document.getElementById('zone').textContent !== 'UTC'")
        return self.page

    def check(self) -> None:
        """Assert that nothing happened that must not."""
        foreign = [url for url in self.requests if not url.startswith(self.base)]
        assert not self.problems, self.problems
        assert not foreign, foreign

    def has_no_sideways_scroll(self) -> bool:
        """Return whether the page fits the width of the window."""
        root = "document.documentElement"
        return bool(self.page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth"))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if not (self.is_refusal_expected and message.text.startswith(_FAILED)):
            self.problems.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _on_dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def open_tab(browser: Browser, base: str, **options: Any) -> Tab:
    """Open a tab in a context of its own; `options` are those of a browser context."""
    width, height = options.pop("size", DESKTOP)
    options = {"viewport": {"width": width, "height": height}, "timezone_id": "UTC"} | options
    return Tab(browser.new_context(**options).new_page(), base)


def screenshot(tab: Tab, name: str, default: Path) -> None:
    """Write a picture of the page to the directory of CONSOLE_SCREENSHOTS, else to `default`."""
    directory = Path(os.environ.get(SCREENSHOTS, default))
    directory.mkdir(parents=True, exist_ok=True)
    tab.page.screenshot(path=directory / f"{name}.png", full_page=True)


def texts(tab: Tab, selector: str) -> list[str]:
    """Return the visible texts of the elements of a selector."""
    return [text.strip() for text in tab.page.locator(selector).all_inner_texts()]


def faults_of(tab: Tab) -> Iterable[str]:
    """Return what makes a page hard to use: unlabelled inputs, weak contrast, bad headings."""
    return list(tab.page.evaluate(_FAULTS.read_text("utf-8")))
