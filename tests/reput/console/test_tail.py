"""Live tails of a log that a writer appends to, many at once, slow ones among them."""

import os
import shutil
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from reput.console import server, tail
from reput.console.tails import matching, tail_queue
from store.commitlog.record import NewMessage
from store.commitlog.writer import CommitLogWriter
from store.layout import SYS_COMPRESSED
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.support.bulk_writer import BulkWriter
from tests.support.consoles import Console, console, source, wait_until
from tests.support.stores.written import TEMPLATES, corrupt, make_store, small_config

CONFIG = small_config()


def append(store_root: Path, count: int, first: int) -> None:
    with BulkWriter(store_root, CONFIG) as writer:
        writer.append_many(TEMPLATES, count, first=first)


def take(events: Iterator[tuple[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the data of the next messages; no other event may come."""
    found = []
    for name, data in events:
        assert name == "message", (name, data)
        found.append(data)
        if len(found) == count:
            break
    return found


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    return [m["commit_log_offset"] for m in messages]


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Console]:
    make_store(tmp_path, 300)
    with console(source(tmp_path)) as c:
        yield c


def test_a_tail_has_the_newest_messages_and_then_each_new_one_once(
    tmp_path: Path, shown: Console
) -> None:
    with shown.events("b/tail", n=7) as events:
        found = take(events, 7)
        for part in range(1, 6):
            append(tmp_path, 30, 300 * part)
            began = time.monotonic()
            found += take(events, 30)
            assert time.monotonic() - began < 2.0
    everything = shown.api("b/messages", order="oldest", max=10_000)["messages"]
    assert [m["commit_log_offset"] for m in everything][300 - 7 :] == offsets(found)
    assert {m["broker"] for m in found} == {"b"}
    assert all(set(m) >= {"body_head", "topic", "store_timestamp"} for m in found)


@pytest.mark.parametrize(
    "how",
    [
        {"topic": "TopicB"},
        {"topic": ["TopicA", "TopicB"], "tag": "TagA || TagB"},
        {"body": "^z$"},
        {"words": "BODY"},
        {"property": "TAGS=TagA"},
        {"key": "a"},
    ],
)
def test_a_tail_selects_as_a_search_does(
    tmp_path: Path, shown: Console, how: dict[str, Any]
) -> None:
    with shown.events("b/tail", n=0, **how) as events:
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) > 0)
        append(tmp_path, 90, 300)
        expected = shown.api("b/messages", order="oldest", max=10_000, **how)["messages"]
        new = [m for m in offsets(expected) if m >= _begin(shown)]
        assert new == offsets(take(events, len(new)))


def _begin(shown: Console) -> int:
    (found,) = shown.brokers["b"].monitor.tails.feeds()
    return found.begin


@pytest.mark.parametrize("how", [{"body": "("}, {"tag": "||"}, {"n": "x"}, {"n": "99999"}])
def test_a_malformed_condition_is_named(shown: Console, how: dict[str, str]) -> None:
    for path in ("/api/brokers/b/tail", "/brokers/b/tail"):
        assert shown.get(path, **how).status_code == 400
    error = shown.get("/api/brokers/b/tail", **how).json()
    assert error["parameter"] == next(iter(how))


def test_counts_and_rates_are_those_of_what_arrives(tmp_path: Path, shown: Console) -> None:
    watched = shown.brokers["b"].monitor
    wait_until(lambda: shown.api("b/status")["monitor_timestamp"] is not None)
    for part in range(1, 4):
        append(tmp_path, 300, 300 * part)
    wait_until(lambda: shown.api("b/status")["messages_in"] == 900)
    everything = shown.api("b/messages", order="oldest", max=10_000)["messages"][300:]
    assert sum(m["size"] for m in everything) == shown.api("b/status")["bytes_in"]
    totals = watched.totals()
    for topic in ("TopicA", "TopicB"):
        sizes = [m["size"] for m in everything if m["topic"] == topic]
        assert (len(sizes), sum(sizes)) == totals[topic]
    assert watched.rates()["TopicA"] == pytest.approx(2 * watched.rates()["TopicB"])


def test_expired_files_do_not_disturb_a_tail(tmp_path: Path, shown: Console) -> None:
    with shown.events("b/tail", n=0, topic="TopicB") as events:
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) > 0)
        for part in range(1, 30):
            append(tmp_path, 90, 300 + 90 * part)
            assert len(take(events, 30)) == 30
            for old in sorted((tmp_path / "commitlog").iterdir())[:-2]:
                old.unlink()


def test_a_log_that_its_broker_truncates_is_followed_on(tmp_path: Path) -> None:
    """The restarted broker writes other records over the end of the log."""
    make_store(tmp_path, 300)
    short = tmp_path.with_name("short")
    shutil.copytree(tmp_path, short)
    append(short, 1, 7)
    with console(source(tmp_path)) as c, c.events("b/tail", n=0) as events:
        wait_until(lambda: bool(c.brokers["b"].monitor.tails))
        append(tmp_path, 50, 300)
        append(tmp_path, 50, 400)
        take(events, 100)
        for name in os.listdir(short / "commitlog"):
            with (tmp_path / "commitlog" / name).open("r+b") as f:
                f.write((short / "commitlog" / name).read_bytes())
        append(tmp_path, 60, 500)
        expected = offsets(c.api("b/messages", order="oldest", max=1000)["messages"])
        found = offsets(take(events, 61))
        assert expected[300:] == found


def test_damage_is_reported_and_the_tail_goes_on(tmp_path: Path, shown: Console) -> None:
    log = max((tmp_path / "commitlog").iterdir())
    with shown.events("b/tail", n=0) as events:
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) > 0)
        with log.open("r+b") as f:
            f.truncate(100)
        name, data = next(events)
        assert (name, "100 bytes" in data["error"]) == ("failed", True)
        assert any("100 bytes" in text for text in shown.api("b/status")["damage"])


def test_damage_in_older_messages_does_not_end_a_tail(tmp_path: Path) -> None:
    make_store(tmp_path, 900)
    message = next(LogSearch(tmp_path, CONFIG, MessageFilter()).messages())
    with BulkWriter(tmp_path, CONFIG) as writer:
        corrupt(Path(message.path), message.spans.body_at)
        with console(source(tmp_path)) as c, c.events("b/tail", n=1000) as events:
            assert len(take(events, 899)) == 899
            name, data = next(events)
            assert (name, data["begin"], data["end"]) == ("damage", 0, message.size)
            writer.append_many(TEMPLATES, 45, first=900)
            assert len(take(events, 45)) == 45


def test_200_tails_and_slow_ones_do_no_harm(
    tmp_path: Path, shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the clients read nothing; the others get everything, and pages answer."""
    monkeypatch.setattr(server, "_SLOW_SECONDS", 3.0)
    watched = shown.brokers["b"].monitor
    with ExitStack() as stack:
        streams = [stack.enter_context(shown.events("b/tail", n=0)) for _ in range(200)]
        wait_until(lambda: len(watched.tails) == 200)
        assert shown.get("/api/brokers/b/tail").status_code == 429
        reading, slowest = [s for i, s in enumerate(streams) if i % 5 < 4], 0.0
        with ThreadPoolExecutor(len(reading)) as pool:
            for part in range(10):
                append(tmp_path, 60, 300 + 60 * part)
                received = [pool.submit(take, stream, 60) for stream in reading]
                began = time.monotonic()
                assert shown.get("/brokers/b").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                assert [len(r.result()) for r in received] == [60] * 160
        assert slowest < 5.0
    wait_until(lambda: not len(watched.tails))
    wait_until(lambda: shown.app.state.tails._free == 200)


def test_a_slow_client_loses_messages_and_is_told_how_many(
    tmp_path: Path, shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_queue, "_PENDING_MAX", 50)
    monkeypatch.setattr(tail, "_PAUSE_SECONDS", 1.0)
    with shown.events("b/tail", n=0) as events:
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) > 0)
        append(tmp_path, 150, 300)
        received, skipped = 0, 0
        for name, data in events:
            received += name == "message"
            skipped += data["count"] if name == "skipped" else 0
            if received + skipped == 150:
                break
        assert skipped > 0


def test_a_fast_log_skips_the_oldest_messages_of_a_poll(tmp_path: Path, shown: Console) -> None:
    with shown.events("b/tail", n=0) as events:
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) > 0)
        append(tmp_path, 3000, 300)
        received, skipped = [], 0
        for name, data in events:
            if name == "message":
                received.append(data["commit_log_offset"])
            skipped += data["count"] if name == "skipped" else 0
            if len(received) + skipped == 3000:
                break
    assert skipped > 0
    assert sorted(received) == received
    last = shown.api("b/messages", max=1)["messages"][0]["commit_log_offset"]
    assert received[-1] == last


def test_no_tail_loses_a_message_that_is_larger_than_what_may_wait(
    tmp_path: Path, shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "_WAITING_BYTES_MAX", 10)
    with ExitStack() as stack:
        tails = [
            stack.enter_context(shown.events("b/tail", n=0, words=words))
            for words in ("body", "bod", "bo")
        ]
        wait_until(lambda: len(shown.brokers["b"].monitor.tails) == 3)
        append(tmp_path, 1, 300)
        assert len({take(events, 1)[0]["commit_log_offset"] for events in tails}) == 1
    assert shown.brokers["b"].monitor.error() is None


def test_a_body_beyond_the_limit_costs_a_tail_no_other_message(tmp_path: Path) -> None:
    texts = [b"hello", zlib.compress(b"hello" * 1000), b"hello"]
    make_store(tmp_path, 3)
    with (
        console(source(tmp_path), max_body_bytes=1000) as c,
        c.events("b/tail", n=0, words="hello") as events,
    ):
        wait_until(lambda: len(c.brokers["b"].monitor.tails) > 0)
        with CommitLogWriter(tmp_path, CONFIG) as writer:
            for n, body in enumerate(texts):
                writer.append(NewMessage("T", 0, body, sys_flag=SYS_COMPRESSED * (n == 1)))
        got = [next(events) for _ in range(4)]
    assert sorted(name for name, _ in got) == ["failed", "message", "message", "skipped"]
    (failed,) = (data for name, data in got if name == "failed")
    assert "the body has more than 1000 bytes" in str(failed)


def test_a_heartbeat_keeps_an_idle_tail(shown: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_HEARTBEAT_SECONDS", 0.05)
    with shown.client.stream("GET", "/api/brokers/b/tail", params={"n": 0}) as response:
        lines = response.iter_lines()
        assert [line[:1] for line in _some(lines, 3)] == [":", ":", ":"]


def _some(lines: Iterator[str], count: int) -> list[str]:
    return [line for line, _ in zip((line for line in lines if line), range(count), strict=False)]


def test_a_tail_of_an_empty_log_begins_with_the_first_message(tmp_path: Path) -> None:
    make_store(tmp_path, 0)
    (tmp_path / "commitlog").mkdir(exist_ok=True)
    with console(source(tmp_path)) as c, c.events("b/tail") as events:
        wait_until(lambda: bool(c.brokers["b"].monitor.tails))
        append(tmp_path, 3, 0)
        assert offsets(take(events, 3))[:1] == [0]


def test_the_server_ends_at_once_with_open_tails(tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    with console(source(tmp_path)) as c:
        response = httpx.Client(base_url=c.url).stream("GET", "/api/brokers/b/tail")
        assert response.__enter__().status_code == 200
        began = time.monotonic()
    assert time.monotonic() - began < 3.0
