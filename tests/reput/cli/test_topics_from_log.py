"""``reput topics --write-topics-json``: a broker's topics, from its log."""

import json
import os
from pathlib import Path

import pytest

from store.broker_files import TopicConfig, read_topic_configs
from tests.logs.build import Message
from tests.support.exporting import BEGIN, make_store, reput_here
from tests.support.verify_stores import flip

QUEUES = [("T", 0), ("T", 2), ("%RETRY%g", 0), ("SCHEDULE_TOPIC_XXXX", 3), ("%LMQ%a", 0)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a log without queues and without topics.json."""
    sent = [
        Message(topic, queue_id=queue_id, queue_offset=n, store_timestamp=BEGIN + n)
        for n in range(20)
        for topic, queue_id in QUEUES
    ]
    return make_store(tmp_path, sent)


def test_topics_and_queue_counts_come_from_the_log_and_the_queues(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = store / "consumequeue/Expired/1"
    queue.mkdir(parents=True)
    (queue / f"{0:020d}").write_bytes(bytes(400))
    target = store / "config/topics.json"
    code, out, err = reput_here(capsys, "topics", store, "--write-topics-json", target, "--json")
    counts = {"%RETRY%g": 1, "Expired": 2, "T": 3}
    assert (code, err) == (0, "")
    assert json.loads(out) == {"to": str(target), "topics": counts}
    expected = {topic: TopicConfig(count, count, 6, {}) for topic, count in counts.items()}
    assert read_topic_configs(store).content == expected


def test_no_file_is_replaced(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = store / "config/topics.json"
    target.parent.mkdir()
    target.write_text("{}")
    for path, reason in ((target, "exists"), (store / "commitlog/t", "inside the commit log")):
        code, _, err = reput_here(capsys, "topics", store, "--write-topics-json", path)
        assert (code, reason in err) == (2, True), err
    assert target.read_text() == "{}"
    assert not (store / "commitlog/t").exists()


def test_files_with_similar_names_are_kept(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "topics.json"
    kept = [tmp_path / f"topics.json{suffix}" for suffix in (".tmp", f".{os.getpid()}.tmp", "~")]
    for path in kept:
        path.write_text("precious")
    before = set(tmp_path.iterdir())
    code, _, err = reput_here(capsys, "topics", store, "--write-topics-json", target)
    assert code == 0, err
    assert [path.read_text() for path in kept] == ["precious"] * len(kept)
    assert set(tmp_path.iterdir()) == before | {target}


def test_damage_is_passed_and_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = min((store / "commitlog").iterdir())
    flip(log, 4)
    code, out, err = reput_here(capsys, "topics", store, "--write-topics-json", tmp_path / "t")
    assert code == 0, err
    assert "skipped: offsets 0 to" in err
    assert "T: 3 queues" in out


def test_a_log_without_topics_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path, [Message("SCHEDULE_TOPIC_XXXX", store_timestamp=BEGIN)])
    code, _, err = reput_here(capsys, "topics", store, "--write-topics-json", tmp_path / "t")
    assert (code, "the log has none" in err) == (1, True), err
    assert not (tmp_path / "t").exists()
