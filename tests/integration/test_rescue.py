"""docs/rescue.md: a real broker starts on what the page's commands make of each disaster.

One broker writes a store; each test gets a copy of it, breaks it, and runs the page's own blocks.
"""

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.broker_files import read_topic_configs
from tests.integration.live import SIZES
from tests.integration.rescue_page import PAGE, Rescue, sections
from tests.integration.servers import remoting
from tests.integration.servers.processes import wait_for
from tests.integration.servers.reput import open_store
from tests.integration.servers.rocketmq import BROKER_NAME, QUEUES, RocketMq
from tests.integration.traffic import (
    Sent,
    consume,
    delivered,
    max_offsets,
    produce,
    wait_for_delivery,
)
from tests.support.verify_stores import flip

TOPIC = "TopicA"
TOPICS = [TOPIC, "TopicB"]
GROUP = "Billing"
FIRST, LATER = 500, 100
LOG_FILE_SIZE = int(SIZES["mappedFileSizeCommitLog"])
ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
OLD_SECONDS = 100 * 24 * 3600
CLEAN_SECONDS = (
    150.0  # a broker looks for expired files one minute after its start, then every 10 s
)


@dataclass
class Made:
    """A broker's stores: stopped cleanly, and copied while it ran; ``GROUP`` consumed ``first``."""

    mq: RocketMq
    clean: Path
    live: Path
    first: list[Sent]
    later: list[Sent]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Let a broker write a log of several files, and stop it."""
    directory = tmp_path_factory.mktemp("rescue")
    mq = RocketMq(directory, options=SIZES, topics=TOPICS)
    try:
        mq.start()
        first = produce(mq, TOPICS, FIRST)
        wait_for_delivery(mq, first)
        consume(mq, TOPIC, GROUP, delivered(first)[TOPIC])
        later = produce(mq, TOPICS, LATER, first=FIRST)
        wait_for_delivery(mq, [*first, *later])
        shutil.copytree(mq.store, directory / "live")
        mq.stop_broker()
        mq.store.rename(directory / "clean")
        yield Made(mq, directory / "clean", directory / "live", first, later)
    finally:
        mq.kill()


@pytest.fixture
def rescue(made: Made, tmp_path: Path) -> Iterator[Rescue]:
    """Copy the clean store to the broker's path; afterwards stop what runs, and remove it."""
    shutil.copytree(made.clean, made.mq.store)
    rescue = Rescue(made.mq, tmp_path)
    try:
        yield rescue
    finally:
        rescue.stop_broker(signal.SIGKILL)
        made.mq.broker.kill()
        wait_for(lambda: not is_routable(made.mq), "forgotten by the name server")
        for path in made.mq.store.parent.glob(f"{made.mq.store.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_routable(mq: RocketMq) -> bool:
    return remoting.is_routable(mq.name_address, TOPIC, BROKER_NAME)


def body_bytes(row: dict[str, str]) -> bytes:
    body = row["body"]
    return body.encode() if row["body_encoding"] == "utf-8" else bytes.fromhex(body)


def log_files(store: Path) -> list[Path]:
    return sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())


def plain_message_at(made: Made, begin: int) -> int:
    """Return the commit log offset of the first plain message of the topic from an offset on."""
    with open_store(made.mq, made.mq.store) as store:
        plain = (s for s in made.first if (s.topic, s.kind) == (TOPIC, "plain"))
        found = (store.get_message(TOPIC, s.queue_id, s.queue_offset).messages[0] for s in plain)
        return min(m.commit_log_offset for m in found if m.commit_log_offset >= begin)


def assert_consumed(mq: RocketMq, sent: list[Sent], *, lost: int = 0) -> None:
    """Assert that a new group reads what was sent to the topic; at most ``lost`` are missing.

    Delayed messages may be delivered again.
    """
    count = delivered(sent)[TOPIC] - lost
    received = consume(mq, TOPIC, f"New{time.monotonic_ns()}", count)
    assert len(received) >= count
    expected = Counter(
        (s.queue_id, s.queue_offset, s.body) for s in sent if s.topic == TOPIC and s.is_in_its_queue
    )
    missing = expected - Counter((m.queue_id, m.queue_offset, m.body) for m in received)
    assert missing.total() <= lost, missing


def test_lost_queues(made: Made, rescue: Rescue) -> None:
    for kind in ("consumequeue", "index"):
        shutil.rmtree(made.mq.store / kind)
    rescue.run("Lost queues")
    rescue.run("Hand over the files")
    rescue.start_broker()
    assert_consumed(made.mq, [*made.first, *made.later])


def damage_and_lose_queues(made: Made) -> tuple[int, int]:
    """Damage a message in the middle of the log, and delete queues and index.

    Return the message's commit log offset and the number of the log file that holds it.
    """
    files = log_files(made.mq.store)
    number = len(files) // 2
    assert 0 < number < len(files) - 1
    victim = plain_message_at(made, number * LOG_FILE_SIZE + LOG_FILE_SIZE // 2)
    assert victim // LOG_FILE_SIZE == number
    flip(files[number], victim % LOG_FILE_SIZE + 4)
    for kind in ("consumequeue", "index"):
        shutil.rmtree(made.mq.store / kind)
    return victim, number


def test_damage_in_the_middle_of_the_log(made: Made, rescue: Rescue) -> None:
    files = log_files(made.mq.store)
    victim, _ = damage_and_lose_queues(made)
    printed = rescue.run("Damage in the middle of the log")
    assert f"lost begin={victim} " in printed, printed
    assert f"rules queue={TOPIC}/" in printed
    rescue.run("Hand over the files")
    rescue.start_broker()
    assert log_files(made.mq.store)[: len(files)] == files
    assert_consumed(made.mq, [*made.first, *made.later], lost=1)


def test_without_queues_a_broker_truncates_a_damaged_log(made: Made, rescue: Rescue) -> None:
    """Show what the page warns of."""
    files = log_files(made.mq.store)
    _, number = damage_and_lose_queues(made)
    contents = [path.read_bytes() for path in files[number + 1 :]]
    rescue.run("Start the broker")
    rescue.wait_until_listening()
    # The broker may preallocate an empty file of the same name.
    left = [path.read_bytes() if path.exists() else b"" for path in files[number + 1 :]]
    assert not any(old == new for old, new in zip(contents, left, strict=True))


def test_a_disk_copied_without_a_clean_stop(made: Made, rescue: Rescue) -> None:
    mq = made.mq
    shutil.rmtree(mq.store)
    shutil.copytree(made.live, mq.store)
    assert (mq.store / "abort").exists()
    with open_store(mq, mq.store) as store:
        end = store.max_phy_offset()
    number, last = divmod(end - 1, LOG_FILE_SIZE)
    with log_files(mq.store)[number].open("r+b") as log:
        log.seek(last - 9)
        log.write(bytes(10))  # the end of the last record has not reached the disk
    shutil.rmtree(next((mq.store / "consumequeue" / TOPIC).iterdir()))
    rescue.run("A disk copied without a clean stop")
    rescue.run("Hand over the files")
    rescue.start_broker()
    # The torn record is one of the topic, or another one.
    assert_consumed(mq, [*made.first, *made.later], lost=1)


def test_an_old_copy(made: Made, rescue: Rescue, tmp_path: Path) -> None:
    """Run the same copy twice: as it was configured, and as the page configures it."""
    mq = made.mq
    other = RocketMq(tmp_path / "other", options=SIZES | {"deleteWhen": ALL_HOURS})
    mq.set_options({"deleteWhen": ALL_HOURS})
    files = log_files(mq.store)
    long_ago = time.time() - OLD_SECONDS
    for path in files:
        os.utime(path, (long_ago, long_ago))
    shutil.copytree(mq.store, other.store)
    try:
        other.broker.start()
        rescue.run("An old copy")
        rescue.wait_until_listening()
        other.broker.wait_until(
            lambda: log_files(other.store)[0].name != files[0].name, "deleting", CLEAN_SECONDS
        )
        wait_for(
            lambda: "delete before 876000 hours" in rescue.broker_log.read_text("utf-8"),
            "looking for expired files",
            CLEAN_SECONDS,
        )
        assert log_files(mq.store)[: len(files)] == files
        assert not is_routable(mq)
    finally:
        other.kill()


def test_a_missing_topics_json(made: Made, rescue: Rescue) -> None:
    mq = made.mq
    for path in (mq.store / "config").glob("topics.json*"):
        path.unlink()
    rescue.run("Start the broker")
    rescue.wait_until_listening()
    rescue.stop_broker()
    assert TOPIC not in (read_topic_configs(mq.store).content or {})

    printed = rescue.run("A missing topics.json")
    assert f"{TOPIC}: {QUEUES} queues" in printed
    rescue.start_broker()
    sent = produce(mq, TOPICS, LATER, first=FIRST + LATER)
    wait_for_delivery(mq, [*made.first, *made.later, *sent])


def test_what_a_group_has_not_consumed(made: Made, rescue: Rescue) -> None:
    title = "What a group has not consumed"
    rescue.run(title, 0, GROUP=GROUP)
    exported = [
        json.loads(line)
        for path in Path(f"{made.mq.store}.{GROUP}").rglob("*.jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]
    later = delivered(made.later)[TOPIC]
    assert {row["topic"] for row in exported} == {TOPIC}
    assert len(exported) == later
    rescue.start_broker()
    before = max_offsets(made.mq, TOPIC)
    assert f"sent {later} messages" in rescue.run(title, 1, GROUP=GROUP)
    assert sum(max_offsets(made.mq, TOPIC)) == sum(before) + later
    resent = []
    with open_store(made.mq, made.mq.store) as store:
        for queue_id, offset in enumerate(before):
            end = store.max_offset_in_queue(TOPIC, queue_id)
            resent += [
                store.get_message(TOPIC, queue_id, n).messages[0] for n in range(offset, end)
            ]
    kept = sorted(
        (r["queue_id"], r["tags"] or "", r["keys"] or "", body_bytes(r)) for r in exported
    )
    assert kept == sorted((m.queue_id, m.tags or "", m.keys or "", m.body) for m in resent)


def test_each_section_with_commands_is_executed_here() -> None:
    """Every section that has commands is named in this file."""
    source = Path(__file__).read_text("utf-8") + Path(Rescue.run.__code__.co_filename).read_text()
    assert PAGE.is_file()
    titles = {title for title, blocks in sections().items() if blocks}
    assert len(titles) >= 8
    assert {title for title in titles if f'"{title}"' not in source} == set()
