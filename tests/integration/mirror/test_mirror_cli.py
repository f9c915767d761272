"""``reput mirror`` as a whole: killed, stopped, on damage; with Spark."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from store.config import load_config
from tests.integration.mirror.mirroring import append, held, make_store, messages_of, record_of
from tests.integration.servers.kafka import KafkaServer
from tests.support.stores.rocksdb import make_rocksdb

KILLS = 3
COMMAND = [sys.executable, "-m", "reput", "mirror"]
TOPICS = "Orders", "_RETRY_g"


def start(kafka: KafkaServer, store: Path, name: str, *more: str) -> subprocess.Popen[str]:
    arguments = [
        str(store), "--kafka-bootstrap", kafka.bootstrap, "--name", name, "--topic-prefix",
        f"{name}.", "--create-topics", "--topic-config", "retention.ms=-1", "--json",
        "--master", "local[2]", *more,
    ]  # fmt: skip
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_progress(process: subprocess.Popen[str], messages: int = 1) -> dict[str, int]:
    """Return the first report that counts so many messages: what is appended may come in parts."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress" and event["messages"] >= messages:
            return dict(event)
    raise AssertionError(f"it ended: {process.communicate()}")


def assert_each_once(kafka: KafkaServer, store: Path, name: str) -> None:
    found = held(kafka.bootstrap, [f"{name}.{topic}" for topic in TOPICS])
    messages = messages_of(store, load_config(store))
    assert Counter(r for p in found.values() for r in p) == Counter(map(record_of, messages))
    for records in found.values():
        offsets = [int(dict(r.headers)["reput.commit_log_offset"]) for r in records]
        assert offsets == sorted(offsets)


def test_the_whole_command_killed(kafka: KafkaServer, tmp_path: Path) -> None:
    store, count = tmp_path / "store", 9_000
    make_store(store, count)
    randoms = random.Random(3)
    limits = "--max-bytes-per-trigger", "60k", "--max-bytes-per-transaction", "10k"
    for _ in range(KILLS):
        process = start(kafka, store, "cli", *limits)
        wait_for_progress(process)
        time.sleep(randoms.uniform(0, 1.5))
        process.kill()
        process.communicate()
        append(store, 500, count)
        count += 500
    process = start(kafka, store, "cli", "--available-now")
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    events = [json.loads(line) for line in said.splitlines()]
    assert [e["event"] for e in events if e["event"] != "progress"] == ["position", "stop"]
    assert events[0]["how"] == "resumes"
    assert events[0]["begin_offset"] > 0
    assert events[-1]["messages_ever"] == count
    assert_each_once(kafka, store, "cli")


def test_a_live_log_is_followed_until_a_signal_ends_it(kafka: KafkaServer, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, 300)
    process = start(kafka, store, "live")
    assert wait_for_progress(process, 300)["messages"] == 300
    append(store, 200, 300)
    assert wait_for_progress(process, 500)["messages"] == 500
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(said.splitlines()[-1])["messages"] == 500
    assert "Traceback" not in errors
    assert_each_once(kafka, store, "live")


def test_damage_ends_it_with_exit_3_after_what_lies_before(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    make_store(store, 3_000)
    messages = messages_of(store, load_config(store))
    victim = next(m for m in messages if m.commit_log_offset > 262_144 + 9_000)
    path = store / "commitlog" / f"{262_144:020d}"
    with path.open("r+b") as f:
        f.seek(victim.commit_log_offset - 262_144 + 4)
        f.write(b"\0\0\0\0")
    process = start(kafka, store, "damage")
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 3, (said, errors)
    (line,) = [x for x in errors.splitlines() if x.startswith("reput: ")]
    assert f"damaged: {path} at offset {victim.commit_log_offset}" in line
    assert "Traceback" not in errors
    before = sum(m.commit_log_offset < victim.commit_log_offset for m in messages)
    stop = json.loads(said.splitlines()[-1])
    assert (stop["event"], stop["messages"]) == ("stop", before)
    found = held(kafka.bootstrap, [f"damage.{topic}" for topic in TOPICS])
    assert sum(map(len, found.values())) == before


def test_a_broker_that_keeps_its_queues_in_rocksdb(kafka: KafkaServer, tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, 500)
    make_rocksdb(store / "consumequeue")
    process = start(kafka, store, "rocksdb", "--available-now")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert_each_once(kafka, store, "rocksdb")
