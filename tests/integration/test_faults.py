"""A dispatch that is killed, whose volume fills up, and whose log expires.

The tests share one broker, whose log has rolled many times. Each leaves it running.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.live import SIZES, wait_until_equal
from tests.integration.servers import remoting
from tests.integration.servers.processes import wait_for
from tests.integration.servers.reput import Dispatcher, open_store, reput, rows
from tests.integration.servers.rocketmq import RocketMq
from tests.integration.traffic import Sent, produce, produce_until, wait_for_delivery
from tests.support.dispatching import assert_same_store
from tests.support.volume import mount_tmpfs

TOPICS = ["TopicA", "TopicB"]
FIRST = 600
EXPIRED_HOURS = 100  # by default a broker keeps files for 72 hours
OPTIONS = SIZES | {"mappedFileSizeCommitLog": "16384", "cleanResourceInterval": "1000"}
VOLUME_BYTES = 4 << 20
ROOM_BYTES = 160 << 10


class Scene:
    """A broker, the messages sent to it, and a dispatch that may be running."""

    def __init__(self, directory: Path) -> None:
        self.mq = RocketMq(directory, "5.3.3", OPTIONS, TOPICS)
        self.dispatcher = Dispatcher(self.mq, directory / "out")
        self.sent: list[Sent] = []

    @property
    def log_files(self) -> list[Path]:
        """The files of the commit log, oldest first."""
        return sorted((self.mq.store / "commitlog").iterdir())

    def send(self, count: int) -> list[Sent]:
        """Send messages of every kind and wait until they are delivered."""
        new = produce(self.mq, TOPICS, count, first=len(self.sent))
        self.sent += new
        wait_for_delivery(self.mq, self.sent)
        return new

    def follow(self) -> None:
        """Dispatch to the end of the log, and keep running."""
        if not self.dispatcher.server.is_running:
            self.dispatcher.start()
        wait_until_equal(self.mq, self.dispatcher)

    def expire_all_but(self, count: int) -> int:
        """Make the broker delete all but its last `count` log files; return the new minimum."""
        files = self.log_files
        old = time.time() - EXPIRED_HOURS * 3600
        for path in files[:-count]:
            os.utime(path, (old, old))
        remoting.delete_expired_commit_log(self.mq.broker_address)
        wait_for(lambda: not any(path.exists() for path in files[:-count]), "deleted by the broker")
        return int(self.log_files[0].name)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Start a broker and send it messages of every kind."""
    scene = Scene(tmp_path_factory.mktemp("faults"))
    try:
        scene.mq.start()
        scene.send(FIRST)
        yield scene
    finally:
        scene.dispatcher.kill()
        scene.mq.kill()


def test_a_dispatcher_killed_under_load_resumes(scene: Scene) -> None:
    mq, dispatcher, end = scene.mq, scene.dispatcher, scene.mq.directory / "end"
    dispatcher.start()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(produce_until, mq, TOPICS, end, first=10_000)
        try:
            dispatcher.wait_for_batch()
            for with_jvm in (False, True):
                before = dispatcher.offset
                dispatcher.wait_for_batch(before)
                dispatcher.kill(with_jvm=with_jvm)
                dispatcher.start()
            dispatcher.wait_for_batch(dispatcher.offset)
        finally:
            end.touch()
        scene.sent += sending.result()
    wait_for_delivery(mq, scene.sent)
    wait_until_equal(mq, dispatcher)
    assert len(scene.log_files) > 20, "the log has rolled too rarely"
    started = [event["reput_from_offset"] for event in dispatcher.events("start")]
    assert 0 == started[0] < started[1] < started[2]


def test_commands_answer_as_mqadmin_does(scene: Scene) -> None:
    scene.follow()
    mq, out = scene.mq, ["--output", scene.dispatcher.output]
    keyed = next(m for m in scene.sent if m.kind == "keyed")
    key, place = keyed.keys.split()[0], ["--topic", keyed.topic, "--queue", keyed.queue_id]
    # mqadmin's columns: message id, queue id, queue offset; the id is the unique key.
    table = mq.mqadmin("queryMsgByKey", "-t", keyed.topic, "-k", key)
    listed = [line.split() for line in table.splitlines() if line and not line.startswith("#")]
    own = rows(mq, "query", mq.store, *out, "--topic", keyed.topic, "--key", key)
    assert len(own) > 1
    assert sorted(listed) == sorted(
        [m["uniq_key"], str(m["queue_id"]), str(m["queue_offset"])] for m in own
    )
    where = ["-t", keyed.topic, "-b", "broker-a", "-i", keyed.queue_id, "-o", keyed.queue_offset]
    detail = fields(mq.mqadmin("queryMsgByOffset", *where))
    offset = ["--offset", keyed.queue_offset, "--max", 1]
    (got,) = rows(mq, "get", mq.store, *out, *place, *offset)
    (looked,) = rows(mq, "message", mq.store, *out, "--id", detail["OffsetID"])
    assert got == looked
    assert detail["OffsetID"] == got["msg_id"]
    assert detail["Topic"] == got["topic"] == keyed.topic
    assert detail["Keys"] == f"[{got['keys']}]" == f"[{keyed.keys}]"
    assert detail["Queue Offset"] == str(got["queue_offset"])
    assert detail["CommitLog Offset"] == str(got["commit_log_offset"])
    assert f"UNIQ_KEY={got['uniq_key']}" in detail["Properties"]


def fields(text: str) -> dict[str, str]:
    """Parse lines of ``name: value``."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system."""
    path = tmp_path / "volume"
    mount_tmpfs(path, VOLUME_BYTES)
    yield path
    # The JVM of a command that has just ended may still have a file open there.
    unmount = ["umount", str(path)]
    wait_for(
        lambda: subprocess.run(unmount, capture_output=True, check=False).returncode == 0,
        "unmounted",
    )


def test_a_full_volume_stops_the_dispatch_and_nothing_is_lost(
    scene: Scene, small_volume: Path
) -> None:
    scene.follow()
    output, ballast = small_volume / "out", small_volume / "ballast"
    ballast.write_bytes(bytes(VOLUME_BYTES - ROOM_BYTES))
    command = ["dispatch", scene.mq.store, "--output", output, "--available-now"]
    stopped = reput(scene.mq, *command, "--max-bytes-per-trigger", "64k")
    assert stopped.returncode == 6, stopped.stderr
    (message,) = [line for line in stopped.stderr.splitlines() if line.startswith("reput: ")]
    assert "No space left on device" in message
    assert str(output) in message
    assert "Traceback" not in stopped.stderr
    assert_a_prefix_is_readable(scene, output)
    ballast.unlink()
    done = reput(scene.mq, *command, "--json")
    assert done.returncode == 0, done.stderr
    assert_same_store(output, scene.mq.store)
    (started,) = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "start"]
    assert started["reput_from_offset"] > 0, "it started over, or no batch had fitted"


def assert_a_prefix_is_readable(scene: Scene, output: Path) -> None:
    """Read the queue on the full volume: each message is at its queue offset."""
    with open_store(scene.mq, output) as store:
        reached = store.reput_from_offset()
        assert reached
        count = store.max_offset_in_queue(TOPICS[0], 0)
        assert count > 0
        for offset in range(count):
            (message,) = store.get_message(TOPICS[0], 0, offset, 1).messages
            assert message.queue_offset == offset
            assert message.commit_log_offset < reached


def test_a_running_dispatch_expires_its_files_with_the_log(scene: Scene) -> None:
    scene.follow()
    queue = scene.dispatcher.output / "consumequeue" / TOPICS[0] / "0"
    index = scene.dispatcher.output / "index"
    queues, indexes = (sorted(path.iterdir()) for path in (queue, index))
    begin = scene.expire_all_but(4)
    assert begin > 0
    scene.send(100)
    scene.follow()
    for path, files in ((queue, queues), (index, indexes)):
        left = sorted(path.iterdir())
        assert left
        assert left[0] > files[0], f"{path} lost no file"
    with open_store(scene.mq, scene.dispatcher.output) as store:
        assert store.min_phy_offset() == begin


def test_log_files_that_expired_before_dispatch_are_reported_as_lost(scene: Scene) -> None:
    scene.follow()
    scene.dispatcher.stop()
    reached = scene.dispatcher.offset
    scene.send(200)
    begin = scene.expire_all_but(2)
    assert begin > reached
    command = ["dispatch", scene.mq.store, "--output", scene.dispatcher.output, "--available-now"]
    stopped = reput(scene.mq, *command)
    assert stopped.returncode == 3, stopped.stderr
    assert scene.dispatcher.offset == reached
    done = reput(scene.mq, *command, "--fail-on-data-loss", "false", "--json")
    assert done.returncode == 0, done.stderr
    progress = scene.dispatcher.progress
    assert progress is not None
    assert [(lost.begin, lost.end) for lost in progress.lost] == [(reached, begin)]
    assert progress.reput_from_offset > begin
