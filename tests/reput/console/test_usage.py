"""The page of what fills the log and its twin show what ``reput usage`` prints."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.cli import run
from reput.console.scans import background
from store.commitlog.record import NewMessage
from store.errors import StoreError
from tests.support.bulk_writer import BulkWriter
from tests.support.consoles import SECONDS, Console, console, source, wait_until
from tests.support.stores.written import TEMPLATES, corrupt, make_store, small_config

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store_root = tmp_path_factory.mktemp("usage")
    with BulkWriter(store_root, small_config()) as writer:
        writer.append_many(TEMPLATES, 900)
        for n in range(150):
            writer.append(NewMessage(f"Many{n}", 0, b"x", {"TAGS": HOSTILE}))
    make_store(store_root, 0)
    return store_root


@pytest.fixture(scope="module")
def shown(store: Path) -> Iterator[Console]:
    with console(source(store)) as c:
        for scan in c.brokers["b"].usage.values():
            assert scan.get(SECONDS) is not None
        yield c


@pytest.mark.parametrize("by", ["topic", "day", "queue", "tag", "host"])
def test_counts_are_those_of_the_command(
    store: Path, shown: Console, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    found = shown.api("b/usage", by=by)
    rows = list(found["rows"])
    for page in range(2, found["pages"] + 1):
        rows += shown.api("b/usage", by=by, page=str(page))["rows"]
    assert run(["usage", str(store), "--by", by, "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected: dict[str, list[dict[str, object]]] = {"kind": [], "expiry": [], by: []}
    for row in printed:
        expected[row.pop("row")].append(row)
    assert rows == expected[by]
    assert (found["kinds"], found["expiries"]) == (expected["kind"], expected["expiry"])
    assert (found["messages"], found["total"]) == (1_050, len(rows))
    assert expected["expiry"], "the log has files that expire"


def test_the_page_shows_the_rows_as_text(shown: Console) -> None:
    html = shown.get("/brokers/b/usage", by="tag").text
    assert "1,050 messages" in html
    assert HOSTILE not in html
    assert "&lt;script&gt;" in html
    second = shown.get("/brokers/b/usage", by="queue", page="2")
    assert (second.status_code, "page 2 of 2" in second.text) == (200, True)


@pytest.mark.parametrize("params", [{"by": "x"}, {"page": "0"}, {"topic": "T"}])
def test_a_malformed_parameter_is_refused(shown: Console, params: dict[str, str]) -> None:
    response = shown.get("/api/brokers/b/usage", **params)
    assert (400, next(iter(params))) == (response.status_code, response.json()["parameter"])


def test_an_empty_log_and_damage(tmp_path: Path) -> None:
    empty, damaged = tmp_path / "empty", tmp_path / "damaged"
    make_store(empty, 0)
    (empty / "commitlog").mkdir(exist_ok=True)
    make_store(damaged, 30)
    corrupt(damaged / "commitlog" / f"{0:020d}", 4)
    with console(source(empty, name="e"), source(damaged, name="d")) as c:
        for broker in c.brokers.values():
            assert broker.usage["topic"].get(SECONDS) is not None
        assert c.api("e/usage")["rows"] == []
        assert "The log has no message" in c.get("/brokers/e/usage").text
        (damage,) = c.api("d/usage")["damage"]
        assert "at offset 0" in damage


def test_a_result_that_no_page_wants_any_more_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_KEPT_SECONDS", 0.1)
    kept = background.BackgroundCache(lambda _now, _stop: "answer", "x", age=(0.05, 20.0))
    found = kept.get(SECONDS)
    assert found is not None
    assert found.answer == "answer"
    wait_until(lambda: kept.last is None)
    assert kept.get(SECONDS) is not None


def test_one_scan_runs_at_a_time() -> None:
    running, most = 0, 0

    def scan(_now: int, _stop: threading.Event) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return most

    caches = [background.BackgroundCache(scan, "x") for _ in range(4)]
    for each in caches:
        each.get(0)
    wait_until(lambda: not any(each.is_running for each in caches))
    assert most == 1


def test_an_error_is_soon_followed_by_another_attempt() -> None:
    attempts: list[int] = []

    def scan(now: int, _stop: threading.Event) -> int:
        attempts.append(now)
        time.sleep(0.2)
        if len(attempts) == 1:
            raise StoreError("once")
        return len(attempts)

    cache = background.BackgroundCache(scan, "x", age=(0.05, 20.0))
    failed = cache.get(SECONDS)
    assert failed is not None
    assert str(failed.error) == "once"
    wait_until(lambda: cache.get(0) != failed)  # it would be old after 4 s if it were an answer
    found = cache.get(0)
    assert found is not None
    assert found.answer == 2
    assert found.as_of_ms - failed.as_of_ms < 2000
