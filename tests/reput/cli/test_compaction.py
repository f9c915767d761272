"""Compaction topics: not read by queue offset; their queues, index and log are as any other's."""

import json
import os
from pathlib import Path

import pytest

from reput.cli import run
from store import MessageStore
from store.errors import UnsupportedFormatError
from tests.support.consoles import console, source
from tests.support.rebuilding import rebuild_all
from tests.support.stores.written import make_store

GET = ["get", "--topic", "TopicA", "--queue", "0", "--offset", "0"]


def write_topics(store_root: Path, **attributes: str) -> None:
    """Write a topics.json in which TopicA has these attributes."""
    topics = {
        name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        for name in ("TopicA", "TopicB")
    }
    named = {key.replace("_", "."): value for key, value in attributes.items()}
    table = {"topicConfigTable": {**topics, "TopicA": {**topics["TopicA"], "attributes": named}}}
    (store_root / "config").mkdir(exist_ok=True)
    written = store_root / "config" / "topics.json.tmp"
    written.write_text(json.dumps(table))
    os.replace(written, store_root / "config" / "topics.json")


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """Return an OUTPUT that was rebuilt in place, in which a broker compacts TopicA."""
    rebuild_all(tmp_path, tmp_path, make_store(tmp_path, 30))
    write_topics(tmp_path, cleanup_policy="COMPACTION")
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--wait", "5"], ["--json"]], ids=str)
def test_get_refuses_it_and_names_the_commands_that_read_the_log(
    store_root: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert run([GET[0], str(store_root), *GET[1:], *more]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert "topic 'TopicA' has cleanup.policy=COMPACTION" in err
    assert all(name in err for name in ("reput search", "reput export", "SQL"))


@pytest.mark.parametrize(
    "command",
    [
        ["verify"],
        ["offset", "--topic", "TopicA", "--queue", "0", "--time", "0"],
        ["query", "--topic", "TopicA", "--key", "a"],
        ["search", "--topic", "TopicA"],
        ["topics"],
        ["get", "--topic", "TopicB", "--queue", "0", "--offset", "0"],
    ],
    ids=" ".join,
)
def test_all_else_is_answered(store_root: Path, command: list[str]) -> None:
    first, *rest = command
    assert run([first, str(store_root), *rest]) == 0


@pytest.mark.parametrize(
    ("conf", "version"), [("enableCompaction=false\n", "5.3.3"), ("", "5.0.0"), ("", "4.9.4")]
)
def test_a_broker_that_does_not_compact_answers_from_the_queue(
    tmp_path: Path, conf: str, version: str
) -> None:
    make_store(tmp_path, 30)
    with (tmp_path / "broker.conf").open("a") as file:
        file.write(conf)
    write_topics(tmp_path, cleanup_policy="COMPACTION")
    (tmp_path / "consumequeue").mkdir()
    with MessageStore.open(tmp_path, broker_version=version) as store:
        assert store.get_message("TopicA", 0, 0).messages == ()


def test_enable_compaction_counts_on_a_dispatched_output_too(store_root: Path) -> None:
    with (store_root / "broker.conf").open("a") as file:
        file.write("enableCompaction=false\n")
    with MessageStore.open(store_root) as store:
        assert len(store.get_message("TopicA", 0, 0).messages) == 10


def test_an_open_store_follows_topics_json(store_root: Path) -> None:
    (store_root / "config" / "topics.json").unlink()
    with MessageStore.open(store_root) as store:
        assert store.get_message("TopicA", 0, 0).messages
        write_topics(store_root, cleanup_policy="COMPACTION")
        for read in (store.get_message, store.read_arrow):
            with pytest.raises(UnsupportedFormatError, match="compacted store"):
                read("TopicA", 0, 0)
        assert store.max_offset_in_queue("TopicA", 0) == 10
        write_topics(store_root, cleanup_policy="DELETE")
        assert store.get_message("TopicA", 0, 0).messages
        assert store.read_arrow("TopicA", 0, 0).read_all().num_rows == 10


def test_the_console_says_why_it_shows_no_message_by_queue_offset(store_root: Path) -> None:
    with console(source(store_root)) as c:
        page = c.get("/brokers/b/topics/TopicA")
        assert page.status_code == 200
        started = c.get("/brokers/b/messages?topic=TopicA&queue_id=0&queue_offset=0&run=1")
        found = c.api("b/messages", topic="TopicA", max=500)["messages"]
    assert "A compaction topic is not read by queue offset" in page.text
    assert "cleanup.policy=COMPACTION" in started.text
    assert len(found) == 20
