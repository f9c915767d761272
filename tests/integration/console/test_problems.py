"""Stores with a problem: it stands first, with what to do, and the other pages still work."""

import os
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.integration.console.browsing import ConsoleServer, Tab, faults_of, screenshot
from tests.integration.console.stores import ORDERS, make_hostile, make_shop, order
from tests.support.stores.written import corrupt

NewTab = Callable[..., Tab]
NewConsole = Callable[..., ConsoleServer]
SHOP = "shop"


def test_stuck_dispatch_stands_first(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, orders=300)
    with shop.writer() as writer:
        writer.append(order(9000))
    console = new_console(shop.store_root, "--output", shop.output, "--stuck-after", "1")
    tab = new_tab(console)

    page = tab.open(console.page_url(SHOP))

    expect(page.locator(".alert strong").first).to_contain_text("stuck")
    expect(page.locator("#state")).to_have_text("stuck")
    expect(page).to_have_title("stuck: shop – reput")
    screenshot(tab, "overview-stuck", tmp_path)


def test_damaged_queue_stands_first_and_health_shows_what_to_do(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, orders=300)
    file = shop.output / "consumequeue" / ORDERS / "1" / ("0" * 20)
    os.truncate(file, 393)
    console = new_console(shop.store_root, "--output", shop.output)
    tab = new_tab(console)

    page = tab.open(console.page_url(SHOP))

    expect(page.locator(".alert strong").first).to_have_text("Damaged")
    expect(page.locator(".alert").first).to_contain_text(str(file))
    expect(page.locator("#state")).to_have_text("damaged")
    screenshot(tab, "overview-damaged", tmp_path)
    page.get_by_role("link", name="Health").last.click()
    expect(page.locator(".alert").first).to_contain_text(str(file))
    expect(page.locator("#what")).to_contain_text(
        f"reput rebuild {shop.store_root} --output {shop.output}"
    )
    screenshot(tab, "health-damaged", tmp_path)
    assert faults_of(tab) == []
    tab.open(console.page_url(SHOP, f"/topics/{ORDERS}"))
    expect(page.locator("#queues td.bad")).to_contain_text("393 bytes")
    screenshot(tab, "topic-damaged", tmp_path)


def test_search_lists_the_damage_of_the_log_and_what_lies_behind_it(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, orders=300)
    log = shop.store_root / "commitlog" / ("0" * 20)
    corrupt(log, 4)
    console = new_console(shop.store_root, "--output", shop.output)
    tab = new_tab(console)
    tab.is_refusal_expected = True

    page = tab.open(console.page_url(SHOP, "/messages?order=oldest"))

    expect(page.locator("#damage")).to_contain_text(f"{log} at offset 0: ")
    expect(page.locator("#rows tr")).not_to_have_count(0)
    expect(page.locator("#failed")).to_be_hidden()
    screenshot(tab, "messages-damaged", tmp_path)
    tab.open(console.page_url(SHOP, "/messages/0"))
    expect(page.locator(".alert")).to_contain_text("offset 0")


def test_log_is_shown_while_output_does_not_exist(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, orders=300)
    console = new_console(shop.store_root, "--output", tmp_path / "none")
    tab = new_tab(console)
    tab.is_refusal_expected = True

    page = tab.open(console.page_url(SHOP))
    expect(page.locator("h1")).to_have_text(SHOP)
    screenshot(tab, "overview-no-output", tmp_path)
    tab.open(console.page_url(SHOP, "/messages?key=order-10"))
    expect(page.locator("#rows tr")).not_to_have_count(0)
    page.locator("#rows a").first.click()
    expect(page.locator("#position-title")).to_be_visible()
    screenshot(tab, "message-no-output", tmp_path)
    tab.open(console.page_url(SHOP, "/health"))
    screenshot(tab, "health-no-output", tmp_path)


def test_hostile_message_in_a_live_tail_is_shown_as_text(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    hostile = make_hostile(tmp_path)
    console = new_console(hostile.store_root, "--output", hostile.output)
    tab = new_tab(console)
    page = tab.open(console.page_url(SHOP, "/tail?n=0&topic=OrderTopic"))
    expect(page.locator("#connection")).to_have_text("live")

    with hostile.writer() as writer:
        writer.append(order(1, text="<script>alert(1)</script>"))

    expect(page.locator("#rows .head-of-body")).to_contain_text("<script>alert(1)</script>")


def test_log_without_queues_is_said_without_alarm(
    new_console: NewConsole, new_tab: NewTab, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path, orders=300)
    (tmp_path / "empty").mkdir()
    console = new_console(shop.store_root, "--output", tmp_path / "empty")
    tab = new_tab(console)

    page = tab.open(console.page_url(SHOP))

    expect(page.locator("#state")).to_have_text("no queues")
    expect(page).to_have_title("shop – reput")
    expect(page.locator(".alert")).to_contain_text(f"--output {tmp_path / 'empty'}")
    expect(page.locator(".bad")).to_have_count(0)
    screenshot(tab, "overview-no-queues", tmp_path)
    assert faults_of(tab) == []
