"""Access: a console with a token, and brokers whose names need encoding."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import expect

from tests.integration.console.browsing import ConsoleServer, Tab
from tests.integration.console.stores import ORDERS, Shown

NewTab = Callable[..., Tab]
NewConsole = Callable[..., ConsoleServer]
TOKEN = "a token of more than 16 characters"
PAGES = ("Groups", "Messages", "Tail", "Health", "Overview")


def test_pages_searches_and_tails_work_with_a_token(
    shop: Shown, new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    console = new_console(shop.store_root, "--output", shop.output, "--token-file", file)
    assert httpx.get(console.url).status_code == 401
    tab = new_tab(console, http_credentials={"username": "any", "password": TOKEN})
    tab.is_refusal_expected = True  # the browser sends its credentials when it is asked to

    page = tab.open(console.page_url("shop", "/messages?key=order-10"))

    expect(page.locator("#rows tr")).not_to_have_count(0)
    expect(page.locator("#state")).to_have_text("ok")
    page.get_by_role("link", name="Tail").click()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#rows tr")).not_to_have_count(0)
    assert TOKEN not in "".join(tab.requests)


@pytest.mark.parametrize("name", ["a b", "50%", "%2e%2e", "q?a&c#d", "Größe", "<b>\"'"])
def test_links_lead_to_a_broker_of_any_name(
    shop: Shown, new_console: NewConsole, new_tab: NewTab, name: str
) -> None:
    console = new_console(f"{name}={shop.store_root}:{shop.output}")
    tab = new_tab(console)
    page = tab.open(console.url)
    assert page.url == console.page_url(name)

    for title in PAGES:
        page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
        expect(page.locator(".bar nav a[aria-current]")).to_have_text(title)
        expect(page.locator(".brand")).to_contain_text(name)
        expect(page.locator("#state")).to_have_text("ok")
    page.get_by_role("link", name=ORDERS, exact=True).first.click()
    expect(page.locator("h1")).to_have_text(ORDERS)
    page.locator("#rows a").first.click()
    expect(page.locator("#position-title")).to_be_visible()
    assert quote(name, safe="") in page.url
