"""A store that grows: the tail shows what a writer appends, the overview moves."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from playwright.sync_api import Page, expect

from store.commitlog.record import NewMessage, make_properties
from tests.integration.console.browsing import ConsoleServer, Tab, screenshot, texts
from tests.integration.console.stores import ORDERS, Shown, make_shop, order

NewTab = Callable[..., Tab]
SHOP = "shop"


@pytest.fixture
def growing(tmp_path: Path) -> Shown:
    """Return a store that the test appends to."""
    return make_shop(tmp_path, orders=300)


@pytest.fixture
def console(growing: Shown, new_console: Callable[..., ConsoleServer]) -> ConsoleServer:
    """Serve it."""
    return new_console(growing.store_root, "--output", growing.output)


def wait_until_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_text("live")


def test_tail_shows_an_appended_message_within_a_second(
    console: ConsoleServer, growing: Shown, new_tab: NewTab, tmp_path: Path
) -> None:
    tab = new_tab(console)
    page = tab.open(console.page_url(SHOP, "/tail?n=5"))
    wait_until_live(page)
    expect(page.locator("#rows tr")).to_have_count(5)
    delays = []

    with growing.writer() as writer:
        for number in range(5000, 5005):
            began = time.monotonic()
            writer.append(order(number))
            page.wait_for_function(
                "key => document.querySelector('#rows .key')?.textContent === key",
                arg=f"order-{number}",
            )
            delays.append(time.monotonic() - began)

    assert median(delays) < 1.0  # one of them may find the cores busy
    screenshot(tab, "tail-live", tmp_path)


def test_tail_shows_only_what_its_conditions_select(
    console: ConsoleServer, growing: Shown, new_tab: NewTab
) -> None:
    tab = new_tab(console)
    page = tab.open(console.page_url(SHOP, "/tail"))
    page.locator("[name=topic]").first.fill(ORDERS)
    page.locator("#tag").fill("Paid")
    page.locator("#body").fill("wanted|needed")
    page.locator("#n").fill("0")
    page.get_by_role("button", name="Tail", exact=True).click()
    page.wait_for_url("**/tail?topic=OrderTopic&tag=Paid&body=*&n=0")
    wait_until_live(page)

    with growing.writer() as writer:
        for number in range(6000, 6009):
            writer.append(order(number, text="wanted" if number < 6006 else ""))
        writer.append(NewMessage("Other", 0, b"wanted", make_properties(tags="Paid")))

    expect(page.locator("#rows tr")).to_have_count(2)
    paid = [n for n in range(6000, 6006) if n % 3 == 1]
    assert [f"order-{n}" for n in reversed(paid)] == texts(tab, "#rows .key")


def test_paused_tail_holds_messages_back_until_it_resumes(
    console: ConsoleServer, growing: Shown, new_tab: NewTab
) -> None:
    page = new_tab(console).open(console.page_url(SHOP, "/tail?n=0"))
    wait_until_live(page)
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#connection")).to_have_text("paused")

    with growing.writer() as writer:
        for number in range(7000, 7010):
            writer.append(order(number))
    expect(page.locator("#said")).to_contain_text("10 arrived during the pause")
    expect(page.locator("#rows tr")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()

    expect(page.locator("#rows tr")).to_have_count(10)
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.locator("#rows tr")).to_have_count(0)


def test_tail_keeps_a_limited_number_of_rows(
    console: ConsoleServer, growing: Shown, new_tab: NewTab
) -> None:
    page = new_tab(console).open(console.page_url(SHOP, "/tail?n=0"))
    wait_until_live(page)

    with growing.writer() as writer:
        for number in range(8000, 8700):
            writer.append(order(number))

    expect(page.locator("#rows .key").first).to_have_text("order-8699")
    assert page.locator("#rows tr").count() <= 500


def test_tail_that_cannot_keep_up_says_how_much_it_left_out(
    console: ConsoleServer, growing: Shown, new_tab: NewTab
) -> None:
    page = new_tab(console).open(console.page_url(SHOP, "/tail?n=0"))
    wait_until_live(page)
    template = NewMessage(ORDERS, 0, b"number ########", make_properties(keys="k########"))

    with growing.writer() as writer:
        writer.append_many([template], 50_000)

    expect(page.locator("#rows .key").first).to_have_text("k00049999")
    expect(page.locator("#skipped")).to_contain_text("messages were left out")
    assert page.locator("#rows tr").count() <= 500


def test_tail_reconnects_to_a_restarted_console(
    console: ConsoleServer, growing: Shown, new_tab: NewTab
) -> None:
    tab = new_tab(console)
    page = tab.open(console.page_url(SHOP, "/tail?n=5"))
    wait_until_live(page)
    expect(page.locator("#rows tr")).to_have_count(5)
    tab.is_refusal_expected = True
    port = console.url.rstrip("/").rpartition(":")[2]
    console.stop()
    expect(page.locator("#connection")).to_have_text("reconnecting")

    console.server.command[console.server.command.index("--port") + 1] = port
    console.start()
    wait_until_live(page)

    with growing.writer() as writer:
        writer.append(order(9000))
    expect(page.locator("#rows .key").first).to_have_text("order-9000")
    expect(page.locator("#rows tr")).to_have_count(6)


def test_overview_moves_while_messages_arrive(
    console: ConsoleServer, growing: Shown, new_tab: NewTab, tmp_path: Path
) -> None:
    tab = new_tab(console)
    page = tab.open(console.page_url(SHOP))
    row = page.locator("#topics tr", has=page.get_by_text(ORDERS, exact=True))
    before = row.inner_text()
    backlog = page.locator("#figures dd").first
    expect(backlog).to_have_text("0 bytes")
    # Only what is appended after the console has begun to follow the log counts for the rate.
    page.wait_for_function(
        "url => fetch(url).then(r => r.json()).then(s => s.monitor_timestamp !== null)",
        arg=f"/api/brokers/{SHOP}/status",
    )

    with growing.writer() as writer:
        for number in range(9000, 9500):
            writer.append(order(number))
        expect(page.locator("#rate")).to_have_text(re.compile("[1-9].* per second"))
        expect(backlog).not_to_have_text("0 bytes")
        screenshot(tab, "overview-backlog", tmp_path)
        growing.dispatch()
        expect(backlog).to_have_text("0 bytes")

    expect(row).not_to_have_text(before)
    page.reload()
    expect(page.locator("#graphs")).to_be_visible()
    expect(page.locator("#second")).to_contain_text("bytes")


def test_page_reports_that_the_console_ended(console: ConsoleServer, new_tab: NewTab) -> None:
    tab = new_tab(console)
    tab.is_refusal_expected = True
    page = tab.open(console.page_url(SHOP))
    expect(page.locator("#state")).to_have_text("ok")

    console.stop()

    expect(page.locator("#state")).to_have_text("no answer")
