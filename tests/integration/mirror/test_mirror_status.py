"""``reput mirror --status``: position, lag and age, without disturbing a running mirror."""

import json
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from reput.cli import run
from store.commitlog.commit_log import CommitLog
from store.config import load_config
from streaming.queries.mirror_query import prepare_mirror
from tests.integration.mirror.mirroring import (
    append,
    held,
    make_store,
    mirror,
    options_for,
    run_here,
)
from tests.integration.servers.kafka import KafkaServer

HOUR = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(tmp_path / "store", 300)
    return tmp_path / "store"


def status(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path, name: str, *more: str
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON of a mirror's status."""
    arguments = ["--kafka-bootstrap", kafka.bootstrap, "--name", name, "--status", "--json"]
    code = run(["mirror", str(store), *arguments, *more])
    return code, json.loads(capsys.readouterr().out)


def test_a_mirror_without_backlog(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path
) -> None:
    position = mirror(store, options_for(kafka.bootstrap, "idle")).sink.position
    code, found = status(capsys, kafka, store, "idle")
    written = found.pop("progress_timestamp")
    assert position.last_record is not None
    assert written >= position.last_record.store_timestamp
    assert (code, found) == (
        0,
        {
            "name": "idle",
            "commit_log_offset": position.commit_log_offset,
            "waiting_timestamp": None,
            "stuck_ms": 0,
            "is_stuck": False,
            "behind_bytes": 0,
            "behind_ms": 0,
            "messages": 300,
            "oversized": 0,
        },
    )


def test_a_backlog_is_shown_and_becomes_stuck(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path
) -> None:
    position = mirror(store, options_for(kafka.bootstrap, "behind")).sink.position
    append(store, 30, 300)
    log = CommitLog([store / "commitlog"], load_config(store))
    waiting = log.message(position.commit_log_offset)
    code, found = status(capsys, kafka, store, "behind")
    assert (code, found["is_stuck"]) == (0, False)
    assert found["waiting_timestamp"] == waiting.store_timestamp
    assert found["behind_bytes"] == log.max_offset() - position.commit_log_offset
    code, found = status(capsys, kafka, store, "behind", "--stuck-after", "0")
    assert (code, found["is_stuck"]) == (1, True)
    assert found["behind_ms"] >= found["stuck_ms"] > 0
    arguments = ["--kafka-bootstrap", kafka.bootstrap, "--name", "behind", "--status"]
    assert run(["mirror", str(store), *arguments]) == 0
    line = capsys.readouterr().out
    assert f"mirror 'behind': mirrored to offset {position.commit_log_offset:,}; " in line
    assert " behind, a message has been waiting for " in line
    assert "; last transaction at " in line


def test_the_status_disturbs_no_running_mirror_and_waits_for_no_transaction(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path
) -> None:
    running = prepare_mirror(store, options_for(kafka.bootstrap, "running"))
    run_here(running)
    producer = running.sink._producer
    producer.begin()
    producer.send_position(running.options.position_topic, b"running", b"{}")
    producer.flush()
    code, found = status(capsys, kafka, store, "running")
    assert (code, found["messages"]) == (0, 300)
    producer.abort()
    append(store, 30, 300)
    run_here(running)
    running.close()
    assert running.sink.position.messages == 330


def test_a_mirror_that_has_not_begun_is_an_error_and_no_topic_is_created(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path
) -> None:
    for name, topic in (("new", "reput-mirror-offsets"), ("new", "no-such-topic")):
        code = run(
            ["mirror", str(store), "--kafka-bootstrap", kafka.bootstrap, "--name", name,
             "--position-topic", topic, "--status"]
        )  # fmt: skip
        assert (code, "has no position" in capsys.readouterr().err) == (2, True)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    assert "no-such-topic" not in admin.list_topics()
    admin.close()


def test_the_position_of_another_store_is_refused(
    capsys: pytest.CaptureFixture[str], kafka: KafkaServer, store: Path, tmp_path: Path
) -> None:
    mirror(store, options_for(kafka.bootstrap, "another"))
    make_store(tmp_path / "other", 500)
    arguments = ["--kafka-bootstrap", kafka.bootstrap, "--name", "another", "--status"]
    code = run(["mirror", str(tmp_path / "other"), *arguments])
    assert (code, "belongs to " in capsys.readouterr().err) == (2, True)


def test_a_position_of_version_1_is_resumed_from(kafka: KafkaServer, store: Path) -> None:
    half = mirror(store, options_for(kafka.bootstrap, "half"), max_bytes=20_000).sink.position
    append(store, 200, 300)
    last = half.last_record
    assert last is not None
    written_before = (
        f'{{"commit_log_offset": {half.commit_log_offset}, "last_record": {{"body_crc": '
        f'{last.body_crc}, "offset": {last.offset}, "record_crc": {last.record_crc}, "size": '
        f'{last.size}, "store_timestamp": {last.store_timestamp}}}, "lost_to": 0, "messages": 300, '
        f'"store": "{store.resolve()}", "version": 1}}'
    )
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    producer.send("reput-mirror-offsets", written_before.encode(), b"old").get(30)
    producer.close()
    done = mirror(store, options_for(kafka.bootstrap, "old"))
    assert (done.begin, done.is_new) == (half.commit_log_offset, False)
    assert done.sink.position.messages == 500
    found = held(kafka.bootstrap, ["old.Orders", "old._RETRY_g"])
    assert sum(map(len, found.values())) == 200
