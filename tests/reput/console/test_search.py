"""Searches of the console beside ``LogSearch``, in every format; limits; clients that leave."""

import csv
import io
import json
import logging
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from reput.console import search_endpoints
from reput.console.brokers import range_json
from reput.console.pages import LoggedRarely
from store.commitlog.message_json import message_json, message_summary
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Damage
from store.commitlog.writer import CommitLogWriter
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.reput.console.conftest import Made
from tests.support.consoles import console, source, wait_until
from tests.support.stores.written import corrupt, make_store, small_config

QUERIES: list[tuple[dict[str, Any], MessageFilter]] = [
    ({}, MessageFilter()),
    ({"topic": "TopicA"}, MessageFilter(topics=frozenset({"TopicA"}))),
    ({"topic": ["TopicA", "TopicB"], "tag": "TagB"}, MessageFilter(tags="TagB")),
    ({"tag": "TagA || TagB"}, MessageFilter(tags="TagA || TagB")),
    ({"key": ["k30", "k303"]}, MessageFilter(keys=frozenset({"k30", "k303"}))),
    ({"uniq_key": "U00000300"}, MessageFilter(keys=frozenset({"U00000300"}))),
    ({"queue_id": "1"}, MessageFilter(queue_id=1)),
    ({"property": "TAGS=TagA"}, MessageFilter(properties={"TAGS": "TagA"})),
    ({"body": "0000030[0-5]"}, MessageFilter(body="0000030[0-5]")),
    ({"words": "BODY 0000030"}, MessageFilter(words=("BODY", "0000030"))),
    ({"topic": "Nothing"}, MessageFilter(topics=frozenset({"Nothing"}))),
    ({"from_time": "-2d", "to_time": "now"}, MessageFilter()),
    ({"from_time": "2100-01-01T00:00:00Z"}, MessageFilter(topics=frozenset({"Nothing"}))),
]


def expected(made: Made, wanted: MessageFilter, order: str) -> list[Any]:
    found = LogSearch(made.store_root, made.config, wanted).messages(newest_first=order == "newest")
    return list(found)


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize(("params", "wanted"), QUERIES)
def test_every_format_has_the_matches_of_a_search(
    made: Made, params: dict[str, Any], wanted: MessageFilter, order: str
) -> None:
    messages = expected(made, wanted, order)
    how = {**params, "order": order}
    full = [{**message_json(m), "broker": "b"} for m in messages]
    found = made.console.api("b/messages", **how)
    assert full[:100] == found["messages"]
    assert (len(full) <= 100) == found["is_complete"] == (found["next"] is None) or len(full) == 100
    lines = made.console.get("/api/brokers/b/messages", format="jsonl", **how).text.splitlines()
    assert full == [json.loads(line) for line in lines]
    with made.console.events("b/messages", format="sse", **how) as events:
        received = list(events)
    summaries = [{**message_summary(m), "broker": "b"} for m in messages]
    assert summaries == [data for name, data in received if name == "message"]
    name, done = received[-1]
    assert (name, done["reason"], done["next"]) == ("done", "complete", None)
    assert (len(full), done["total_bytes"]) == (done["found"], done["searched_bytes"])
    rows = list(csv.DictReader(io.StringIO(_csv(made, how))))
    assert [m["commit_log_offset"] for m in full] == [int(row["commit_log_offset"]) for row in rows]
    assert [m["properties"] for m in full] == [json.loads(row["properties"]) for row in rows]


def _csv(made: Made, how: dict[str, Any]) -> str:
    response = made.console.get("/api/brokers/b/messages", format="csv", **how)
    assert response.headers["content-disposition"] == 'attachment; filename="b-messages.csv"'
    return response.text


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_next_goes_on_without_a_gap(made: Made, order: str) -> None:
    messages = expected(made, MessageFilter(tags="TagA"), order)
    how: dict[str, Any] = {"tag": "TagA", "order": order, "max": 301}
    found: list[int] = []
    while True:
        answer = made.console.api("b/messages", **how)
        found += [m["commit_log_offset"] for m in answer["messages"]]
        if answer["next"] is None:
            break
        how["next"] = answer["next"]
    assert [m.commit_log_offset for m in messages] == found


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_a_search_starts_at_a_place_in_a_queue(made: Made, order: str) -> None:
    how = {"topic": "TopicA", "queue_id": 1, "queue_offset": 500, "order": order, "max": 1000}
    found = [m["queue_offset"] for m in made.console.api("b/messages", **how)["messages"]]
    assert found == (list(range(500, 1000)) if order == "oldest" else list(range(500, -1, -1)))


def test_one_message_by_offset_or_id(made: Made) -> None:
    message = expected(made, MessageFilter(), "oldest")[7]
    fields = {**message_json(message), "broker": "b"}
    host = fields["msg_id"]
    for how in ({"commit_log_offset": message.commit_log_offset}, {"msg_id": host}):
        assert [fields] == made.console.api("b/messages", **how)["messages"]
    other = "0A" + host[2:]  # the offset of the message, and another broker's address
    assert made.console.api("b/messages", msg_id=other)["messages"] == []


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"body": "("}, "body"),
        ({"tag": "||"}, "tag"),
        ({"from_time": "x"}, "from_time"),
        ({"from_time": "now", "to_time": "-1h"}, "to_time"),
        ({"queue_id": "-1"}, "queue_id"),
        ({"queue_id": "99999999999"}, "queue_id"),
        ({"queue_offset": "1"}, "queue_offset"),
        ({"topic": ["a", "b"], "queue_id": 1, "queue_offset": 1}, "queue_offset"),
        ({"topic": "TopicA", "queue_id": 1, "queue_offset": 99999}, "queue_offset"),
        ({"property": "x"}, "property"),
        ({"property": ["x=1", "x=2"]}, "property"),
        ({"max": "0"}, "max"),
        ({"msg_id": "xyz"}, "msg_id"),
        ({"order": "up"}, "order"),
        ({"format": "xml"}, "format"),
        ({"next": "-5"}, "next"),
        ({"body": ["a", "b"]}, "body"),
        ({"commit_log_offset": "1.5"}, "commit_log_offset"),
    ],
)
def test_a_malformed_parameter_is_named(made: Made, params: dict[str, Any], parameter: str) -> None:
    response = made.console.get("/api/brokers/b/messages", **params)
    assert (400, parameter) == (response.status_code, response.json()["parameter"])
    assert made.console.get("/brokers/b/messages", run=1, **params).status_code == 400 or (
        parameter == "format"
    )


def test_cells_that_a_spreadsheet_would_compute_get_an_apostrophe(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "plain"]
    make_store(tmp_path, 0)
    with CommitLogWriter(tmp_path, small_config()) as writer:
        for text in texts:
            writer.append(NewMessage("T", 0, text.encode(), make_properties(keys=text)))
    with console(source(tmp_path)) as c:
        content = c.get("/api/brokers/b/messages", format="csv", order="oldest").content.decode()
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert [t if t == "plain" else f"'{t}" for t in texts] == [row["body"] for row in rows]
    assert [t if t == "plain" else f"'{t}" for t in texts] == [row["keys"] for row in rows]


def test_more_searches_than_the_limits_are_refused(tmp_path: Path) -> None:
    make_store(tmp_path, 3000)
    how = {"format": "jsonl"}
    with console(source(tmp_path), searches_max=3, client_searches_max=2) as c:
        with c.events("b/messages", format="sse"):
            pass
        wait_until(lambda: not c.app.state.searches.running)
        c.app.state.searches.take("127.0.0.1")
        c.app.state.searches.take("127.0.0.1")
        response = c.get("/api/brokers/b/messages", **how)
        assert (response.status_code, "of this client" in response.json()["error"]) == (429, True)
        c.app.state.searches.take("10.0.0.1")
        response = c.get("/api/brokers/b/messages", **how)
        assert (response.status_code, "3 searches" in response.json()["error"]) == (429, True)
        for client in ("127.0.0.1", "127.0.0.1", "10.0.0.1"):
            c.app.state.searches.release(client)
        assert c.get("/api/brokers/b/messages", **how).status_code == 200
        wait_until(lambda: not c.app.state.searches.running)


@pytest.mark.parametrize("how", [{}, {"topic": "Nothing"}, {"body": "nothing"}])
@pytest.mark.parametrize("form", ["sse", "jsonl", "json"])
def test_a_client_that_leaves_ends_its_search(
    tmp_path: Path, form: str, how: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search is endless: each time it ends, it begins again."""
    make_store(tmp_path, 300)
    messages = LogSearch.messages

    def endless(self: LogSearch, **options: Any) -> Any:
        while not self.stop.is_set():
            yield from messages(self, **options)

    monkeypatch.setattr(LogSearch, "messages", endless)
    monkeypatch.setattr(search_endpoints, "_JSON_BYTES_MAX", 1 << 40)
    with console(source(tmp_path)) as c:
        params = {"format": form, "max": 10**9, **how}
        with httpx.Client(base_url=c.url) as client:
            try:
                with client.stream(
                    "GET", "/api/brokers/b/messages", params=params, timeout=0.5
                ) as r:
                    next(r.iter_raw(), None)
            except httpx.ReadTimeout:
                pass
        wait_until(lambda: not c.app.state.searches.running)


def test_the_server_ends_at_once_with_open_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path, 300)
    messages = LogSearch.messages

    def endless(self: LogSearch, **options: Any) -> Any:
        while not self.stop.is_set():
            yield from messages(self, **options)

    monkeypatch.setattr(LogSearch, "messages", endless)
    with console(source(tmp_path)) as c:
        stream = c.client.stream("GET", "/api/brokers/b/messages", params={"format": "sse"})
        response = stream.__enter__()
        assert response.status_code == 200


def test_damage_is_listed_and_passed(tmp_path: Path) -> None:
    config = make_store(tmp_path, 3000)
    everything = list(LogSearch(tmp_path, config, MessageFilter()).messages())
    message = everything[200]
    expected = [m.commit_log_offset for m in everything if m is not message]
    corrupt(Path(message.path), message.commit_log_offset + message.spans.body_at)
    with console(source(tmp_path)) as c:
        assert c.api("b/status")["damage"] == []
        for order in ("oldest", "newest"):
            answer = c.api("b/messages", order=order, max=3000)
            found = [m["commit_log_offset"] for m in answer["messages"]]
            assert found == (expected if order == "oldest" else expected[::-1])
            (damage,) = answer["damage"]
            assert (damage["begin"], damage["end"]) == (
                message.commit_log_offset,
                message.commit_log_offset + message.size,
            )
        with c.events("b/messages", format="sse", order="oldest") as events:
            received = list(events)
        assert [data["begin"] for name, data in received if name == "damage"] == [damage["begin"]]
        assert received[-1][0] == "done"
        with pytest.raises(httpx.RemoteProtocolError):
            c.get("/api/brokers/b/messages", format="jsonl", order="oldest")
        assert str(damage["begin"]) in c.api("b/status")["damage"][0]  # until the file changes
        assert len(c.api("b/health")["damage"]) == 1
        corrupt(Path(message.path), message.commit_log_offset + message.spans.body_at)
        os.utime(message.path)
        assert c.api("b/status")["damage"] == []


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_what_was_searched_reaches_to_the_last_match(made: Made, order: str) -> None:
    answer = made.console.api("b/messages", order=order, max=5)
    assert answer["searched_bytes"] == sum(m["size"] for m in answer["messages"])
    assert answer["searched_bytes"] < answer["total_bytes"]
    page = made.console.get("/brokers/b/messages", run=1, order=order, max=5).text
    assert f'max="{answer["total_bytes"]}" value="{answer["searched_bytes"]}"' in page


def test_broken_downloads_log_a_limited_number_of_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_store(tmp_path, 30)
    message = list(LogSearch(tmp_path, config, MessageFilter()).messages())[20]
    corrupt(Path(message.path), message.commit_log_offset + message.spans.body_at)
    with console(source(tmp_path)) as c:
        for _ in range(30):
            with pytest.raises(httpx.RemoteProtocolError):
                c.get("/api/brokers/b/messages", format="jsonl")
    lines = [r.getMessage() for r in caplog.records if "aborted" in r.getMessage()]
    assert 0 < len(lines) <= 20


def test_the_next_line_counts_those_that_were_left_out() -> None:
    limit = LoggedRarely(count=2, seconds=0.0)
    limit._seconds = 3600.0
    records = [logging.makeLogRecord({"msg": "error %s", "args": (n,)}) for n in range(6)]
    assert [limit.filter(record) for record in records[:5]] == [True, True, False, False, False]
    limit._seconds = 0.0
    assert limit.filter(records[5])
    assert records[5].getMessage() == "error 5 (3 more such errors were not logged)"


def test_an_unknown_parameter_is_refused(made: Made) -> None:
    for path in ("messages", "tail", "topics/TopicA", "health", "status"):
        response = made.console.get(f"/api/brokers/b/{path}", tpoic="TopicA")
        assert response.status_code == 400
        assert response.json()["parameter"] == "tpoic"


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [5000, 10_000, 31_337])
def test_a_json_answer_has_at_most_the_documented_bytes(
    made: Made, monkeypatch: pytest.MonkeyPatch, limit: int, order: str
) -> None:
    """What the limit leaves out follows in the next answer, without a gap."""
    monkeypatch.setattr(search_endpoints, "_JSON_BYTES_MAX", limit)
    monkeypatch.setattr(search_endpoints, "_ENVELOPE_BYTES", 300)
    found: list[Any] = []
    how: dict[str, Any] = {"max": 1000, "order": order}
    for _ in range(4):
        response = made.console.get("/api/brokers/b/messages", **how)
        assert limit - 1500 < len(response.content) <= limit
        answer = response.json()
        assert not answer["is_complete"]
        found += answer["messages"]
        how["next"] = answer["next"]
    messages = expected(made, MessageFilter(), order)[: len(found)]
    assert [{**message_json(m), "broker": "b"} for m in messages] == found


def test_a_message_beyond_the_limit_has_no_body(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_endpoints, "_JSON_BYTES_MAX", 800)
    monkeypatch.setattr(search_endpoints, "_ENVELOPE_BYTES", 400)
    answer = made.console.api("b/messages", max=2)
    (message,) = answer["messages"]
    assert message["body"] is None
    assert "download it" in message["body_error"]
    assert answer["next"] == message["commit_log_offset"]


def test_damage_beyond_the_limit_of_a_json_answer_is_one_range() -> None:
    damages = [Damage(10 * n, 10 * n + 5, "log", "broken") for n in range(250)]
    assert search_endpoints._ranges(damages[:100]) == [
        range_json(damage) for damage in damages[:100]
    ]
    ranges = search_endpoints._ranges(damages)
    assert (len(ranges), ranges[-1]["begin"], ranges[-1]["end"]) == (100, 990, 2495)
    assert ranges[-1]["reason"] == "151 ranges; the first one: broken"
