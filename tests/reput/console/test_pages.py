"""Every page and its JSON twin, on the stores of real brokers, beside what the commands print."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from reput.cli import run
from reput.console.brokers import BrokerSource
from store.reads.message_store import MessageStore
from tests.conftest import Golden
from tests.support.consoles import SECONDS, Console, console, source, wait_until
from tests.support.stores.golden import WITH_UNKNOWN_MAGIC, golden_slice

pytestmark = golden_slice


@pytest.fixture
def shown(golden: Golden) -> Iterator[Console]:
    with console(_source(golden)) as c:
        yield c


def _source(golden: Golden) -> BrokerSource:
    return source(golden.store_root, golden.expected, broker_version=golden.version)


def printed(
    capsys: pytest.CaptureFixture[str], golden: Golden, command: str, *options: str
) -> list[dict[str, Any]]:
    """Return the objects that a command prints with --json."""
    how = ["--broker-version", golden.version, "--json", *options]
    capsys.readouterr()
    run([command, str(golden.store_root), *how])
    return [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]


def settle(shown: Console) -> None:
    """Wait until queues are listed and their bytes are summed."""
    broker = shown.brokers["b"]
    broker.overview.get(SECONDS)
    wait_until(lambda: not broker.overview.is_running)


def test_topics_groups_and_queues_are_those_of_the_command(
    golden: Golden, shown: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = printed(capsys, golden, "topics", "--output", str(golden.expected))
    kinds = {kind: [r for r in rows if r["row"] == kind] for kind in {r["row"] for r in rows}}
    settle(shown)
    found = shown.api("b", system=1)
    assert [r["topic"] for r in kinds["topic"]] == [t["topic"] for t in found["topics"]]
    assert [r["config"] for r in kinds["topic"]] == [t["config"] for t in found["topics"]]
    queues = [
        q for t in kinds["topic"] for q in shown.api(f"b/topics/{_url(t['topic'])}")["queues"]
    ]
    assert all(q.pop("bytes") is not None or "damage" in q for q in queues)
    assert [_plain(r) for r in kinds.get("queue", [])] == queues
    by_queue = {
        (g["group"], row["topic"], row["queue_id"]): row
        for g in shown.api("b/groups")["groups"]
        for row in g["by_queue"]
    }
    for group in {group for group, _, _ in by_queue}:
        rows = [row for key, row in by_queue.items() if key[0] == group]
        assert rows == shown.api(f"b/groups/{_url(group)}")["queues"]
        assert shown.get(f"/brokers/b/groups/{_url(group)}").status_code == 200
    groups = {(r["group"], r["topic"], r["queue_id"]): _plain(r) for r in kinds.get("group", [])}
    assert {key: {**row, "group": key[0]} for key, row in by_queue.items()} == groups
    assert [_plain(r) for r in kinds.get("delay_level", [])] == found["delay_levels"]
    assert [_plain(r) for r in kinds["config_file"]] == found["config_files"]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "row"}


def _url(topic: str) -> str:
    return quote(topic, safe="")


def test_bytes_of_queues_are_the_sizes_of_their_messages(golden: Golden, shown: Console) -> None:
    settle(shown)
    with MessageStore.open(golden.store_root, golden.expected, None, golden.version) as s:
        for topic in s.topics():
            for queue_id in s.queue_ids(topic):
                at, size = s.min_offset_in_queue(topic, queue_id), 0
                while at < s.max_offset_in_queue(topic, queue_id):
                    result = s.get_message(topic, queue_id, at)
                    size += sum(m.size for m in result.messages)
                    at = result.next_begin_offset
                assert size == shown.brokers["b"].overview.queue_bytes(topic, queue_id)


def test_messages_are_those_of_the_command(
    golden: Golden, shown: Console, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = printed(capsys, golden, "search")
    if golden.name == WITH_UNKNOWN_MAGIC:
        return  # the log is damaged: other tests look at that
    response = shown.get("/api/brokers/b/messages", format="jsonl", order="oldest")
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    assert [{**m, "broker": "b"} for m in expected] == lines
    newest = shown.api("b/messages", max=7)
    assert [{**m, "broker": "b"} for m in expected[::-1][:7]] == newest["messages"]


def test_each_message_has_its_place_and_its_neighbours(golden: Golden, shown: Console) -> None:
    """Every message of the queues is found at the unit that a read by queue offset uses."""
    with MessageStore.open(golden.store_root, golden.expected, None, golden.version) as s:
        places = [
            (topic, queue_id, offset, message.commit_log_offset)
            for topic in s.topics()
            for queue_id in s.queue_ids(topic)
            for offset, message in _messages(s, topic, queue_id)
            if message.topic == topic
        ]
    for _, queue in groupby(places, key=lambda p: p[:2]):
        rows = list(queue)
        for n, (topic, queue_id, queue_offset, offset) in list(enumerate(rows))[
            :: len(rows) // 3 + 1
        ]:
            found = shown.api(f"b/messages/{offset}")
            place = found["position"]["queue"]
            assert (topic, queue_id, queue_offset) == (
                place["topic"], place["queue_id"], place["queue_offset"],
            )  # fmt: skip
            unit = Path(place["path"]).read_bytes()[place["position"] :][:8]
            assert offset == int.from_bytes(unit)
            assert found["neighbours"] == {
                "previous": rows[n - 1][3] if n else None,
                "next": rows[n + 1][3] if n + 1 < len(rows) else None,
            }


def _messages(s: MessageStore, topic: str, queue_id: int) -> Iterator[tuple[int, Any]]:
    at = s.min_offset_in_queue(topic, queue_id)
    while at < s.max_offset_in_queue(topic, queue_id):
        result = s.get_message(topic, queue_id, at)
        yield from zip(result.message_queue_offsets, result.messages, strict=True)
        at = result.next_begin_offset


def test_every_page_and_its_twin_answer(golden: Golden, shown: Console) -> None:
    settle(shown)
    found = shown.api("b/messages", max=1, order="oldest")["messages"]
    offset = found[0]["commit_log_offset"]
    for page in (
        "",
        "/groups",
        "/health",
        "/pending",
        f"/topics/{_url(found[0]['topic'])}",
        f"/messages/{offset}",
    ):
        assert shown.get(f"/brokers/b{page}").status_code in (200, 404)
        twin = shown.get(f"/api/brokers/b{page}")
        assert "broker" in twin.json() or twin.status_code == 404
    for page in ("messages", "tail", "messages?run=1"):  # a search passes damage, and lists it
        assert shown.get(f"/brokers/b/{page}").status_code == 200
    body = shown.get(f"/brokers/b/messages/{offset}/body")
    with MessageStore.open(golden.store_root, golden.expected, None, golden.version) as s:
        message = s.look_message_by_offset(offset)
    assert message is not None
    assert message.body == body.content
    assert body.headers["content-type"] == "application/octet-stream"
    assert body.headers["content-disposition"] == f'attachment; filename="b-{offset}.bin"'
    assert shown.get("/brokers/b/status").status_code == 404
    assert shown.api("b/status")["log_max_offset"] > offset
    assert shown.get("/api/brokers").json()["brokers"][0]["broker"] == "b"
