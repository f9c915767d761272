"""Messages: a search in the browser finds what the log holds, stops, and can be downloaded."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from store.commitlog.record import NewMessage, make_properties
from tests.integration.console.browsing import ConsoleServer, Tab, screenshot, texts
from tests.integration.console.stores import CONF, ORDERS, Shown, make_shown

NewTab = Callable[..., Tab]
SHOP = "shop"


def search(page: Page, **conditions: str) -> None:
    """Fill the form by the names of its fields, and search."""
    for name, value in conditions.items():
        field = page.locator(f"[name={name}]").first
        if not field.is_visible():
            page.get_by_text("More conditions").click()
        field.fill(value)
    page.get_by_role("button", name="Search", exact=True).click()


def finished(page: Page) -> str:
    """Wait until the search has ended; return what the page says about it."""
    expect(page.locator("#said")).to_contain_text("found")
    expect(page.locator("#stop")).to_be_hidden()
    return page.locator("#said").inner_text()


def test_search_by_key_tag_and_words_shows_matches_and_keeps_them_in_the_url(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console)
    page = tab.open(shop_console.page_url(SHOP, "/messages"))

    search(page, topic=ORDERS, key="order-700", tag="Paid || Created", words="DECLINED order")

    page.wait_for_url("**/messages?topic=OrderTopic&key=order-700&tag=*&words=*")
    assert finished(page).startswith("1 found")
    assert texts(tab, "#rows .key") == ["order-700"]
    page.reload()
    assert finished(page).startswith("1 found")
    page.locator("#rows a").click()
    expect(page.locator("h1")).to_have_text(ORDERS)


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        ({"property": "region=us", "topic": ORDERS, "max": "1000000"}, 1000),
        ({"body": '"cents": 99[0-9]{2}[,}]', "key": "order-270"}, 1),
        ({"queue_id": "1", "topic": "PaymentTopic", "max": "7"}, 7),
        ({"commit_log_offset": "0"}, 1),
        ({"from_time": "-1h", "to_time": "now", "topic": ORDERS, "max": "12"}, 12),
        ({"uniq_key": f"7F0000011A2B18B4AAC2{5:012X}", "topic": ORDERS}, 1),
    ],
)
def test_each_condition_narrows_the_search(
    shop_console: ConsoleServer, new_tab: NewTab, conditions: dict[str, str], count: int
) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP, "/messages"))

    search(page, **conditions)

    page.wait_for_url("**/messages?*")
    assert finished(page).startswith(f"{count:,} found")
    expect(page.locator("#rows tr")).to_have_count(count)


def test_search_without_result_says_so(
    shop_console: ConsoleServer, new_tab: NewTab, tmp_path: Path
) -> None:
    tab = new_tab(shop_console)
    page = tab.open(shop_console.page_url(SHOP, "/messages?key=no-such-key"))

    expect(page.locator("#none")).to_have_text("No message matches.")
    assert finished(page).startswith("0 found")
    expect(page.locator("#found")).to_be_hidden()
    screenshot(tab, "messages-none", tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("body", "("), ("from_time", "yesterday"), ("max", "many"), ("queue_id", "-1")],
)
@pytest.mark.parametrize("with_javascript", [True, False])
def test_error_stands_beside_the_field_that_it_names(
    shop_console: ConsoleServer,
    new_tab: NewTab,
    field: str,
    value: str,
    *,
    with_javascript: bool,
) -> None:
    tab = new_tab(shop_console, java_script_enabled=with_javascript)
    tab.is_refusal_expected = True
    page = tab.page
    page.goto(shop_console.page_url(SHOP, "/messages"))

    search(page, **{field: value})

    error = page.locator(f'[data-error-of="{field}"]')
    expect(error).to_be_visible()
    expect(error).to_contain_text(value)
    expect(page.locator(f"#{field}")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(f"#{field}")).to_have_value(value)


def test_search_goes_on_after_the_wanted_number(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console)
    page = tab.open(shop_console.page_url(SHOP, "/messages?topic=OrderTopic&tag=Paid&max=30"))
    assert finished(page).startswith("30 found")

    page.get_by_role("link", name="Continue").click()

    expect(page.locator("#rows tr")).to_have_count(60)
    keys = texts(tab, "#rows tr")
    assert len(keys) == len(set(keys))


def test_back_returns_to_the_search_before(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP, "/messages?key=order-10"))
    count = page.locator("#rows tr").count
    finished(page)
    before = count()
    search(page, key="no-such-key")
    expect(page.locator("#none")).to_be_visible()

    page.go_back()

    expect(page.locator("#key")).to_have_value("order-10")
    expect(page.locator("#rows tr")).to_have_count(before)


def test_results_are_downloaded_as_json_lines_and_csv(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    page = new_tab(shop_console).open(
        shop_console.page_url(SHOP, "/messages?topic=OrderTopic&tag=Shipped&max=5")
    )
    finished(page)

    with page.expect_download() as lines:
        page.get_by_role("link", name="JSON lines").click()
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV").click()

    found = [json.loads(line) for line in Path(lines.value.path()).read_text().splitlines()]
    rows = list(csv.DictReader(io.StringIO(Path(table.value.path()).read_text())))
    expected = {f"order-{n}" for n in range(2000) if n % 3 == 2}
    assert expected == {message["keys"] for message in found}
    assert expected == {row["keys"] for row in rows}
    assert lines.value.suggested_filename.endswith(".jsonl")
    assert table.value.suggested_filename.endswith(".csv")


def test_a_time_as_the_page_shows_it_can_be_searched_for(
    shop_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(shop_console, timezone_id="Asia/Tokyo")
    page = tab.open(shop_console.page_url(SHOP, "/messages/0"))
    shown = page.locator("time").first.inner_text()
    tab.open(shop_console.page_url(SHOP, "/messages?order=oldest"))

    search(page, from_time=shown, to_time=shown)

    page.wait_for_url("**/messages?from_time=*Z&to_time=*Z&order=oldest")
    finished(page)
    assert set(texts(tab, "#rows time")) == {shown}


def test_topics_are_suggested_while_typing(shop_console: ConsoleServer, new_tab: NewTab) -> None:
    page = new_tab(shop_console).open(shop_console.page_url(SHOP, "/messages"))
    finished(page)

    page.locator("#topic").press_sequentially("PaymentT")

    expect(page.locator("#topics option")).to_have_count(1)
    expect(page.locator("#topics option")).to_have_attribute("value", "PaymentTopic")


# --- a search that takes long --------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Serve a log whose bodies take seconds to search."""
    directory = tmp_path_factory.mktemp("long")
    shown = make_long(directory)
    console = ConsoleServer(directory, shown.store_root)
    console.start()
    yield console
    console.stop()


def make_long(directory: Path) -> Shown:
    """Write two million messages."""
    size = "mappedFileSizeCommitLog"
    shown = make_shown(directory, conf=CONF.replace(f"{size}=1048576", f"{size}=67108864"))
    template = NewMessage("T", 0, b"number ########" + b" a" * 60, make_properties(keys="k"))
    with shown.writer() as writer:
        writer.append_many([template], 2_000_000)
    return shown


# The search takes about a second, so the page itself presses Stop: at the first result.
STOP_ONCE = """
const observer = new MutationObserver(() => {
  const stop = document.getElementById("stop");
  if (!stop || stop.hidden || !document.querySelector("#rows tr")) return;
  observer.disconnect();
  stop.click();
});
observer.observe(document, { childList: true, subtree: true });
"""


# What the page shows whenever it changes while a search runs.
RECORD = """
window.seen = [];
new MutationObserver(() => {
  const [said, bar, stop] = ["said", "progress", "stop"].map((id) => document.getElementById(id));
  if (!stop || stop.hidden) return;
  const rows = document.querySelectorAll("#rows tr").length;
  const value = bar.getAttribute("value");
  const is_full = value !== null && Number(value) >= bar.max;
  window.seen.push({ rows, said: said.textContent, is_full });
}).observe(document, { childList: true, subtree: true, characterData: true, attributes: true });
"""


def test_what_a_running_search_says_agrees_with_its_rows_and_its_bar(
    long_console: ConsoleServer, new_tab: NewTab
) -> None:
    tab = new_tab(long_console)
    tab.page.add_init_script(RECORD)
    page = tab.open(long_console.page_url(SHOP, "/messages?body=9999( a)%2BX?&max=100000"))
    finished(page)
    seen = page.evaluate("window.seen")
    assert seen
    for now in seen:
        assert not now["is_full"] or " of " in now["said"], now
        if now["rows"]:
            assert not now["said"].startswith(("0 found", "Searching")), now
            assert "0 bytes of" not in now["said"].replace(",", ""), now


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_results_appear_while_the_search_runs_and_it_goes_on_after_a_stop(
    long_console: ConsoleServer, new_tab: NewTab, tmp_path: Path, order: str
) -> None:
    tab = new_tab(long_console)
    tab.page.add_init_script(STOP_ONCE)
    query = f"body=9999( a)%2BX?&max=100000&order={order}"
    page = tab.open(long_console.page_url(SHOP, f"/messages?{query}"))

    expect(page.locator("#said")).to_contain_text("Stopped")
    screenshot(tab, "messages-stopped", tmp_path)
    assert 0 < page.locator("#rows tr").count() < 200
    page.get_by_role("link", name="Continue").click()
    finished(page)
    offsets = [int(text.replace(",", "")) for text in texts(tab, "#rows td:nth-child(4)")]
    expected = range(9999, 2_000_000, 10_000)
    assert offsets == list(expected if order == "oldest" else reversed(expected))
