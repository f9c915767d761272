"""Hostile content: scripts and control characters in every text of a store are shown, never run."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from tests.integration.console.browsing import PHONE, ConsoleServer, Tab, screenshot, texts
from tests.integration.console.stores import BIDI, IMAGE, QUOTES, SCRIPT, Shown

NewTab = Callable[..., Tab]
SHOP = "shop"
QUERY = urlencode({"topic": IMAGE, "key": QUOTES, "tag": SCRIPT, "words": "<b>"})
OURS = "/static/"


def assert_harmless(tab: Tab) -> None:
    """Assert that the store's texts made no element, no attribute and no request."""
    page = tab.page
    scripts = [s.get_attribute("src") or "inline" for s in page.locator("script").all()]
    assert [s for s in scripts if not s.startswith(OURS)] == []
    assert page.locator("img, svg, iframe, object, style, [onerror], [onload]").count() == 0
    assert "\u202e" not in page.inner_text("body")
    assert tab.has_no_sideways_scroll()


@pytest.mark.parametrize("size", [(1280, 860), PHONE])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/groups",
        "/health",
        "/messages",
        f"/messages?{QUERY}",
        "/messages/0",
        "/tail?n=50",
        f"/topics/{quote(IMAGE, safe='')}",
        f"/topics/{quote(BIDI, safe='')}",
        f"/topics/{quote('..%2f', safe='')}",
        f"?filter={quote(SCRIPT)}",
    ],
)
def test_hostile_texts_are_shown_as_text(
    hostile_console: ConsoleServer,
    new_tab: NewTab,
    tmp_path: Path,
    path: str,
    size: tuple[int, int],
) -> None:
    tab = new_tab(hostile_console, size=size)
    page = tab.open(hostile_console.page_url(SHOP, path))
    if path.startswith("/messages") and path != "/messages/0":
        expect(page.locator("#said")).to_contain_text("found")
        expect(page.locator("#stop")).to_be_hidden()
    if path.startswith("/tail"):
        expect(page.locator("#rows tr")).to_have_count(7)

    assert_harmless(tab)

    name = path.strip("/").partition("?")[0].partition("/")[0] or "overview"
    screenshot(tab, f"hostile-{name}-{size[0]}", tmp_path)


def test_every_hostile_text_of_a_message_is_readable(
    hostile_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(hostile_console)

    page = tab.open(hostile_console.page_url(SHOP, "/messages/0"))

    text = page.inner_text("body")
    for content in (SCRIPT, IMAGE, QUOTES, "evil\\u202etxt.exe", "\\x1b[31m"):
        assert content in text


def test_results_of_a_search_are_readable(hostile_console: ConsoleServer, new_tab: NewTab) -> None:
    tab = new_tab(hostile_console)

    page = tab.open(hostile_console.page_url(SHOP, "/messages"))

    expect(page.locator("#rows tr")).to_have_count(7)
    text = page.inner_text("#rows")
    for content in (SCRIPT, IMAGE, "evil\\u202etxt.exe", "line\\nnext\\t\\x1b[31mred\\x07"):
        assert content in text


def test_links_of_hostile_topics_lead_to_them(
    hostile_console: ConsoleServer, hostile: Shown, new_tab: NewTab
) -> None:
    tab = new_tab(hostile_console)
    page = tab.open(hostile_console.page_url(SHOP))
    shown = texts(tab, "#topics tbody th a")
    assert len(list((hostile.output / "consumequeue").iterdir())) == len(shown)

    for number, name in enumerate(shown):
        page.locator("#topics tbody th a").nth(number).click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("#rows tr").first).to_be_visible()
        page.go_back()


def test_a_hostile_topic_is_found_by_its_link_to_search(
    hostile_console: ConsoleServer, new_tab: NewTab
) -> None:
    page = new_tab(hostile_console).open(
        hostile_console.page_url(SHOP, f"/topics/{quote('..%2f', safe='')}")
    )

    page.get_by_role("link", name="Search messages").click()

    expect(page.locator("#rows tr")).to_have_count(1)


def test_unknown_page_and_broker_are_errors_without_content_of_the_url(
    hostile_console: ConsoleServer, new_tab: NewTab
) -> None:
    for path in ("brokers/<script>alert(1)</script>", "brokers/shop/topics/%3Cscript%3E", "x"):
        tab = new_tab(hostile_console)
        tab.is_refusal_expected = True
        tab.open(hostile_console.url + path)
        expect(tab.page.locator("h1")).to_have_text("Not found")
        assert_harmless(tab)
