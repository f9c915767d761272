"""Every page, in light and dark and on a phone: it opens, is usable, and asks nobody else."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.conftest import ARCHIVES, archive_name, unpack
from tests.integration.console.browsing import (
    DESKTOP,
    PHONE,
    ConsoleServer,
    Tab,
    faults_of,
    screenshot,
    texts,
)
from tests.integration.console.stores import GROUP, ORDERS, Shown

NewTab = Callable[..., Tab]
VIEWS = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"size": PHONE, "is_mobile": True, "has_touch": True},
    "phone-dark": {"size": PHONE, "is_mobile": True, "color_scheme": "dark"},
}
PAGES = {
    "overview": "",
    "groups": "/groups",
    "group": f"/groups/{GROUP}",
    "topic": f"/topics/{ORDERS}",
    "dead-letters": f"/topics/{quote(f'%DLQ%{GROUP}', safe='')}",
    "messages": "/messages?topic=OrderTopic&tag=Paid&words=declined",
    "message": "/messages/0",
    "tail": "/tail?topic=OrderTopic",
    "pending": "/pending?state=all",
    "usage": "/usage?by=tag",
    "health": "/health",
    "error": "/topics/no-such-topic",
}
SHOP = "shop"
# A store of each version, and those whose messages are unusual.
_UNUSUAL = ("v-utf8-5.3.3", "v-properties-5.3.3", "g5")
_VERSIONED = [p for p in ARCHIVES if "-" in archive_name(p)]
_OF_EACH_VERSION = {archive_name(p).rpartition("-")[2]: p for p in _VERSIONED}
GOLDEN = sorted({*_OF_EACH_VERSION.values(), *(p for p in ARCHIVES if archive_name(p) in _UNUSUAL)})


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", PAGES)
def test_page_opens_without_error_and_is_usable(
    shop_console: ConsoleServer, new_tab: NewTab, tmp_path: Path, name: str, view: str
) -> None:
    tab = new_tab(shop_console, **VIEWS[view])
    tab.is_refusal_expected = name == "error"

    page = tab.open(shop_console.page_url(SHOP, PAGES[name]))
    if name == "overview":
        expect(page.locator("#graphs")).to_be_hidden()  # nothing runs on this store
    if name == "tail":
        expect(page.locator("#rows tr")).to_have_count(10)
    if name == "messages":
        expect(page.locator("#stop")).to_be_hidden()
    if name in {"pending", "usage"}:
        expect(page.locator(f"#{name} tbody tr").first).to_be_visible()
    expect(page.locator("#state")).to_be_visible()

    screenshot(tab, f"{name}-{view}", tmp_path)
    assert faults_of(tab) == []
    assert tab.has_no_sideways_scroll()
    assert len({link.bounding_box()["y"] for link in page.locator(".bar nav a").all()}) == 1
    assert all(key.bounding_box()["height"] < 30 for key in page.locator(".whole:visible").all())


def test_overview_shows_dispatch_topics_and_groups(
    shop_console: ConsoleServer, shop: Shown, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console)

    page = tab.open(shop_console.page_url(SHOP))

    expect(page.locator(".well")).to_contain_text("Everything in the log has been dispatched")
    row = page.locator("#topics tr", has=page.get_by_text(ORDERS, exact=True))
    expect(row).to_contain_text("2,0")  # 2,000 orders, and delivered reminders if any
    lag = page.locator("#groups tr", has_text="payment-service").first
    expect(lag).to_contain_text(ORDERS)
    assert str(shop.store_root) in texts(tab, ".head p")[0]


def test_topics_are_filtered_and_sorted_by_the_url(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console)
    page = tab.open(shop_console.page_url(SHOP))

    page.get_by_label("Topics whose name contains").fill("Payment")
    page.keyboard.press("Enter")
    page.wait_for_url("**/brokers/shop?filter=Payment")

    names = ["%DLQ%payment-service", "%RETRY%payment-service", "PaymentTopic"]
    assert texts(tab, "#topics tbody th a") == names
    page.goto(shop_console.page_url(SHOP, "?sort=messages"))
    assert texts(tab, "#topics tbody th a")[0] == ORDERS


def test_groups_show_the_lag_of_each_queue(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP, "/groups"))

    page.locator("summary", has_text="by queue").first.click()

    expect(page.locator("details[open] tbody tr")).to_have_count(4)
    page.get_by_role("link", name="dead letters").first.click()
    page.wait_for_url("**/messages?topic=%25DLQ%25payment-service")
    expect(page.locator("#rows tr")).to_have_count(1)


def test_message_leads_to_its_neighbours_and_its_body(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console)
    page = tab.open(shop_console.page_url(SHOP, "/messages/0"))

    expect(page.locator("pre.body").first).to_contain_text('"order": 0')
    page.get_by_text("Hex", exact=True).click()
    expect(page.locator("pre.hex")).to_contain_text("00000000  7b 22 6f 72")
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("Download")).click()
    assert Path(download.value.path()).read_bytes()[:11] == b'{"order": 0'
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".head p").first).to_contain_text("offset 1 ")
    page.get_by_role("link", name="Previous").click()
    expect(page.locator(".head p").first).to_contain_text("offset 0 ")


def test_pages_work_without_javascript(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    tab = new_tab(shop_console, java_script_enabled=False)
    page = tab.page
    for name, path in PAGES.items():
        tab.is_refusal_expected = name == "error"
        page.goto(shop_console.page_url(SHOP, path))
        expect(page.locator("h1")).to_be_visible()

    page.goto(shop_console.page_url(SHOP, "/messages"))
    page.get_by_label("Key", exact=True).fill("order-700")
    page.get_by_role("button", name="Search").click()

    assert {"order-700"} == set(texts(tab, "#rows .key"))
    assert texts(tab, "#zone")[0] == "UTC"


def test_times_are_local_and_name_utc(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    tab = new_tab(shop_console, timezone_id="Asia/Tokyo")

    page = tab.open(shop_console.page_url(SHOP, "/messages/0"))

    time = page.locator("time").first
    utc = time.get_attribute("datetime") or ""
    hour = (int(utc[11:13]) + 9) % 24
    assert f"{hour:02d}" == time.inner_text()[11:13]
    assert (time.get_attribute("title") or "").startswith(utc)


def test_keyboard_reaches_search_and_skips_navigation(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP))

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("a/b")
    expect(page.locator("#filter")).to_have_value("a/b")


def test_print_hides_navigation(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP))

    page.emulate_media(media="print")

    expect(page.locator(".bar nav")).to_be_hidden()
    expect(page.locator("#topics")).to_be_visible()


# --- stores of real brokers ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Serve stores of real brokers, all in one console."""
    directory = tmp_path_factory.mktemp("golden")
    stores = [unpack(path, directory) for path in GOLDEN]
    served = [f"{s.name}={s.store_root}:{s.expected}" for s in stores]
    console = ConsoleServer(directory, *served)
    console.start()
    yield console
    console.stop()


@pytest.mark.parametrize("store", [archive_name(p) for p in GOLDEN])
def test_pages_of_a_real_brokers_store_open(
    golden_console: ConsoleServer, new_tab: NewTab, tmp_path: Path, store: str
) -> None:
    tab = new_tab(golden_console, size=DESKTOP)
    page = tab.open(golden_console.page_url(store))
    expect(page.locator("#topics tbody tr")).not_to_have_count(0)
    screenshot(tab, f"golden-{store}", tmp_path)
    links = [link.get_attribute("href") for link in page.locator("#topics tbody th a").all()[:3]]

    for path in ("/groups", "/health", "/tail"):
        tab.open(golden_console.page_url(store, path))
    for link in links:
        tab.open(golden_console.url.rstrip("/") + str(link))
    tab.open(golden_console.page_url(store, "/messages?max=20"))
    expect(page.locator("#stop")).to_be_hidden()
    expect(page.locator("#rows tr")).not_to_have_count(0)
    for row in page.locator("#rows tr").all()[:3]:
        message = golden_console.url.rstrip("/") + str(row.locator("a").get_attribute("href"))
        opened = new_tab(golden_console).open(message)
        expect(opened.locator("#position-title")).to_be_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_several_brokers_are_listed(
    golden_console: ConsoleServer, new_tab: NewTab, tmp_path: Path, view: str
) -> None:
    tab = new_tab(golden_console, **VIEWS[view])

    tab.open(golden_console.url)

    screenshot(tab, f"brokers-{view}", tmp_path)
    assert faults_of(tab) == []
    assert tab.has_no_sideways_scroll()

    assert sorted(map(archive_name, GOLDEN)) == sorted(texts(tab, "#brokers tbody th a"))
