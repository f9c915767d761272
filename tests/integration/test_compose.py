"""The services of docker-compose.yml, as users start them with one command.

The broker's volume is mounted read-only in the dispatcher; no process is root. Clients send and
consume in the network of the services; the dispatcher's files are compared with the broker's own.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.compose.dockerfile import build_image
from tests.integration.compose.engine import NoEngineError, running_engine
from tests.integration.compose.events import reading, topics
from tests.integration.compose.images import make_local_images, remove_local_images
from tests.integration.compose.stack import SERVICES, Stack, until
from tests.integration.servers.rocketmq import QUEUES
from tests.integration.traffic import (
    Received,
    Sent,
    consume,
    delivered,
    max_offsets,
    produce,
)
from tests.support.dispatching import assert_same_store, built_tree

TOPICS = ("ComposeOrders", "ComposePayments")
KINDS = {
    "plain",
    "keyed",
    "ordered",
    "compressed",
    "batch",
    "delayed",
    "timed",
    "commit",
    "rollback",
}
USERS = {"namesrv": 3000, "broker": 3000, "kafka": 1000, "dispatcher": 10001, "console": 10001}
# SIGTERM ends a JVM with 143; the dispatcher and the console handle it and exit with 0.
ENDS = {"namesrv": 143, "broker": 143, "kafka": 143, "dispatcher": 0, "console": 0}
READS = ["/store", "--output", "/output", "--json"]
STUCK_SECONDS = 3
EQUAL_SECONDS = 60.0


class Traffic:
    """The services, and all messages sent through the broker."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack = stack
        self.sent: list[Sent] = []
        self._copies = (directory / f"copy-{n}" for n in count())
        self._first = 0

    def send(self, messages: int) -> list[Sent]:
        """Send messages of every kind and wait until they are delivered."""
        for topic in TOPICS:
            self.stack.make_topic(topic)
        before = {topic: self.units(topic) for topic in TOPICS}
        sent = produce(self.stack, TOPICS, messages, first=self._first)
        assert {message.kind for message in sent} == KINDS
        self._first += 100  # each hundred begins with one message of each kind
        self.sent += sent
        for topic, number in delivered(sent).items():
            until(lambda t=topic, n=number: self.units(t) >= before[t] + n, f"all in {topic}")
        return sent

    def units(self, topic: str) -> int:
        """Return the number of messages in a topic according to the broker."""
        return sum(max_offsets(self.stack, topic))

    def max_offsets(self) -> list[int]:
        """Return the broker's max offset of each queue of each topic."""
        return [offset for topic in TOPICS for offset in max_offsets(self.stack, topic)]

    def delivered(self, topic: str) -> list[Sent]:
        """Return the messages sent to a topic that are delivered to it."""
        return [message for message in self.sent if message.topic == topic and message.is_delivered]

    def reput(self, command: str, *options: str | int) -> list[dict[str, Any]]:
        """Run `reput` in the dispatcher's container, and return the objects it printed."""
        words = ["reput", command, *READS, *map(str, options)]
        done = self.stack.run("dispatcher", *words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return [json.loads(line) for line in done.stdout.decode().splitlines()]

    def copies(self) -> tuple[Path, Path]:
        """Copy the current queues and index of the dispatcher and of the broker."""
        target = next(self._copies)
        dispatched = self.stack.copy("dispatcher", "/output", target / "dispatched")
        return dispatched, self.stack.copy("broker", "/store", target / "broker")

    def wait_until_equal(self) -> None:
        """Wait until both sets of files are equal; raise with the difference otherwise."""
        deadline = time.monotonic() + EQUAL_SECONDS
        while time.monotonic() < deadline:
            with suppress(AssertionError):
                assert_same_store(*self.copies())
                return
        assert_same_store(*self.copies())

    def wait_until_dispatched(self) -> None:
        """Wait until the dispatcher has no backlog."""

        def is_dispatched() -> bool:
            # Fails before the first batch.
            done = self.stack.run("dispatcher", "reput", "status", *READS)
            return done.returncode == 0 and json.loads(done.stdout)["waiting_timestamp"] is None

        until(is_dispatched, "dispatched")


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with ExitStack() as ends:
        try:
            engine = ends.enter_context(running_engine())
        except NoEngineError as e:
            pytest.skip(f"NOT TESTED: the services of docker-compose.yml; {e}")
        real = [build_image(engine)] if os.environ.get("REPUT_DOCKERFILE") else []
        ends.callback(remove_local_images, engine)
        images = make_local_images(engine, *real)
        stack = Stack(engine, images, tmp_path_factory.mktemp("client"))
        ends.callback(stack.down)
        yield stack


@pytest.fixture(scope="module")
def all_traffic(compose: Stack, tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return Traffic(compose, tmp_path_factory.mktemp("copies"))


@pytest.fixture
def traffic(compose: Stack, all_traffic: Traffic) -> Traffic:
    """Return the traffic of all tests, with all services running."""
    compose.up()
    return all_traffic


def lasting_users(stack: Stack, service: str) -> set[str]:
    """Return the users of the processes that are in a container both now and a second later.

    A health check enters the container every two seconds, as root until it switches to the user.
    """
    script = "grep -s ^Uid: /proc/[0-9]*/status || true"  # a process may end while grep runs
    earlier = set(stack.shell(service, script).splitlines())
    time.sleep(1)
    return {line.split()[1] for line in earlier & set(stack.shell(service, script).splitlines())}


def test_no_process_is_root_and_the_log_is_mounted_read_only(traffic: Traffic) -> None:
    stack = traffic.stack
    for service, user in USERS.items():
        assert stack.shell(service, "id -u; id -g") == f"{user}\n{user}"
        assert lasting_users(stack, service) == {str(user)}
    state = stack.inspect("store-owner")["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 0)
    mounts = {mount["Destination"]: mount for mount in stack.inspect("dispatcher")["Mounts"]}
    assert (mounts["/store"]["Type"], mounts["/store"]["RW"]) == ("volume", False)
    assert (mounts["/output"]["Type"], mounts["/output"]["RW"]) == ("volume", True)
    for path in ("/store", "/store/commitlog", "/etc"):
        done = stack.run("dispatcher", "touch", f"{path}/x")
        assert done.returncode == 1
        assert b"Read-only file system" in done.stderr


def test_reads_return_messages_of_every_kind_as_a_consumer_gets_them(traffic: Traffic) -> None:
    traffic.send(60)
    traffic.wait_until_equal()
    for topic in TOPICS:
        mine = traffic.delivered(topic)
        consumed = consume(traffic.stack, topic, "ComposeGroup", len(mine))
        read = [message for queue in range(QUEUES) for message in read_queue(traffic, topic, queue)]
        assert sorted(map(received, consumed)) == sorted(map(found, read))
        by_place = {(m["queue_id"], m["queue_offset"]): m for m in read}
        by_unique_key = {m["uniq_key"]: m for m in read}
        for message in mine:
            place = message.queue_id, message.queue_offset
            m = by_place[place] if message.is_in_its_queue else by_unique_key[message.uniq_key]
            content = m["keys"] or "", m["tags"] or "", body(m)
            assert content == (message.keys, message.tags, message.body)
        assert len(read) == len(mine)
        tagged = [m for m in read if m["tags"] == "TagB"]
        queues = sorted({m["queue_id"] for m in tagged})
        by_tag = [m for q in queues for m in read_queue(traffic, topic, q, "--tags", "TagB")]
        assert by_tag == tagged != []


def test_messages_are_found_by_key(traffic: Traffic) -> None:
    traffic.send(30)
    traffic.wait_until_dispatched()
    for kind in ("keyed", "batch", "delayed", "commit"):
        message = next(m for m in traffic.sent if m.kind == kind)
        for key in message.keys.split():
            by_key = traffic.reput("query", "--topic", message.topic, "--key", key)
            assert all(key in m["keys"].split() for m in by_key)
            assert message.body in map(body, by_key)
    committed = next(m for m in traffic.sent if m.kind == "commit")
    unique = ["--topic", committed.topic, "--key", committed.uniq_key]
    assert [m["uniq_key"] for m in traffic.reput("query", *unique)] == [committed.uniq_key]
    rolled_back = next(m for m in traffic.sent if m.kind == "rollback")
    unique = ["--topic", rolled_back.topic, "--key", rolled_back.uniq_key]
    assert traffic.stack.run("dispatcher", "reput", "query", *READS, *unique).returncode == 1


def test_restarting_the_dispatcher_leaves_the_log_unchanged(traffic: Traffic) -> None:
    traffic.send(20)
    traffic.wait_until_dispatched()
    (end,) = (row["reput_from_offset"] for row in traffic.reput("status"))
    before = log_sum(traffic.stack, end)
    traffic.stack.compose("restart", "dispatcher")
    traffic.send(20)
    traffic.wait_until_equal()
    assert traffic.reput("verify")
    assert log_sum(traffic.stack, end) == before
    assert traffic.stack.shell("broker", "find /store ! -user 3000") == ""


def test_the_health_check_detects_a_stuck_dispatcher(traffic: Traffic) -> None:
    traffic.send(20)
    traffic.wait_until_dispatched()
    traffic.stack.wait_healthy("dispatcher")
    check = traffic.stack.inspect("dispatcher")["Config"]["Healthcheck"]["Test"][1:]
    assert check[-2] == "--stuck-after"
    check[-1] = str(STUCK_SECONDS)
    # The dispatcher is the first child of init.
    signal = "read first others </proc/1/task/1/children || true; kill -{} $first"
    traffic.stack.shell("dispatcher", signal.format("STOP"))
    traffic.send(20)
    until(lambda: traffic.stack.run("dispatcher", *check).returncode == 1, "reported as stuck")
    traffic.stack.shell("dispatcher", signal.format("CONT"))
    until(lambda: traffic.stack.run("dispatcher", *check).returncode == 0, "reported as healthy")
    traffic.wait_until_equal()


def test_the_console_and_the_metrics_show_what_was_sent(traffic: Traffic) -> None:
    stack = traffic.stack
    traffic.send(20)
    traffic.wait_until_dispatched()
    stack.wait_healthy("console")
    mounts = {m["Destination"]: m["RW"] for m in stack.inspect("console")["Mounts"]}
    assert not any(mounts.values())
    with httpx.Client(base_url=stack.console_url, trust_env=False, timeout=30) as client:
        (broker,) = client.get("/api/brokers").raise_for_status().json()["brokers"]
        assert broker["waiting_timestamp"] is None
        assert client.get(f"/brokers/{broker['broker']}").status_code == 200
        assert client.get("/metrics", headers={"Host": "console:8080"}).status_code == 200
        assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 421
        assert "reput_dispatch_stuck_milliseconds{" in client.get("/metrics").text
    address = f"http://{stack.address('dispatcher', 9558)}"
    text = httpx.get(f"{address}/metrics", trust_env=False).raise_for_status().text
    (count,) = re.findall(r"^reput_dispatch_messages_total{.*} (.*)$", text, re.MULTILINE)
    assert float(count) >= 20
    assert httpx.get(f"{address}/healthz", trust_env=False).text == "ok\n"


def test_a_killed_dispatcher_resumes(traffic: Traffic) -> None:
    stack = traffic.stack
    traffic.send(20)
    traffic.wait_until_dispatched()
    stack.engine.docker("kill", stack.container("dispatcher"))
    assert stack.inspect("dispatcher")["State"]["ExitCode"] == 137
    traffic.send(40)
    stack.up()
    traffic.wait_until_equal()
    logged = stack.engine.try_docker("logs", stack.container("dispatcher")).stderr.decode()
    *_, last = re.findall(r"position begin_offset=(\d+)", logged)
    assert int(last) > 0


def test_a_killed_broker_restarts_beside_its_dispatcher(traffic: Traffic) -> None:
    stack = traffic.stack
    traffic.send(20)
    traffic.wait_until_equal()
    stack.engine.docker("kill", stack.container("broker"))
    stack.up()
    traffic.send(40)
    traffic.wait_until_dispatched()
    until(lambda: have_equal_queues(*traffic.copies()), "equal queues")
    assert traffic.reput("verify")
    # A delayed message may be stored twice: the broker had not yet recorded its delivery.
    topic = TOPICS[1]
    mine = traffic.delivered(topic)
    read = [message for queue in range(QUEUES) for message in read_queue(traffic, topic, queue)]
    assert Counter(m.body for m in mine) - Counter(map(body, read)) == Counter()
    consumed = consume(stack, topic, "ComposeAfterKill", len(mine))
    assert set(map(received, consumed)) <= set(map(found, read))


def test_arrivals_name_the_queues_with_new_messages(traffic: Traffic) -> None:
    queues = [(topic, queue) for topic in TOPICS for queue in range(QUEUES)]
    before = dict(zip(queues, traffic.max_offsets(), strict=True))
    traffic.send(40)
    after = dict(zip(queues, traffic.max_offsets(), strict=True))
    wanted = {queue: after[queue] for queue in queues if after[queue] > before[queue]}
    assert wanted
    arrived: dict[tuple[str, int], int] = {}
    with reading(traffic.stack, "reput-arrivals") as records:
        for record in records:
            event = json.loads(record.value)
            arrived[event["topic"], event["queue_id"]] = event["max_offset"]
            if wanted.items() <= arrived.items():
                return
    raise AssertionError(f"expected {wanted}, got {arrived}\n{traffic.stack.tail()}")


def test_the_mirror_sends_every_message_once(traffic: Traffic) -> None:
    stack, topic = traffic.stack, TOPICS[0]
    traffic.send(20)
    traffic.wait_until_dispatched()
    count = traffic.units(topic)
    stored = Counter(body(m) for q in range(QUEUES) for m in read_queue(traffic, topic, q))
    stack.compose("--profile", "mirror", "up", "-d", "mirror")
    try:
        until(lambda: topic in topics(stack), "created by the mirror")
        with reading(stack, topic, isolation_level="read_committed") as records:
            assert Counter(record.value for record in islice(records, count)) == stored
        assert stack.shell("mirror", "id -u") == "10001"
    finally:
        stack.compose("--profile", "mirror", "rm", "--stop", "--force", "mirror")


def test_all_services_stop_in_time_and_down_removes_everything(traffic: Traffic) -> None:
    stack = traffic.stack
    traffic.send(20)
    traffic.wait_until_dispatched()
    containers = [stack.container(service) for service in SERVICES]
    began = time.monotonic()
    stack.compose("stop")
    seconds = time.monotonic() - began
    ends = {service: stack.inspect(service)["State"]["ExitCode"] for service in SERVICES}
    assert ends == ENDS, stack.tail()
    assert seconds < 60
    for service, root in (("broker", "/store"), ("dispatcher", "/output")):
        done = stack.engine.try_docker("cp", f"{stack.container(service)}:{root}/abort", "-")
        assert done.returncode != 0  # a clean stop has removed it
    stack.compose("down", "--volumes")
    assert not set(containers) & set(stack.engine.docker("ps", "--all", "--quiet").split())
    assert stack.project not in stack.engine.docker("volume", "ls", "--quiet")
    assert stack.project not in stack.engine.docker("network", "ls")


def read_queue(traffic: Traffic, topic: str, queue: int, *options: str) -> list[dict[str, Any]]:
    where = ["--topic", topic, "--queue", queue, "--offset", 0, "--max", 10_000]
    return traffic.reput("get", *where, *options)


def received(message: Received) -> tuple[int, int, int, int, str, str, bytes]:
    """Return the fields of a message that both a consumer and a read return."""
    m = message
    place = m.queue_id, m.queue_offset, m.commit_log_offset, m.size
    return *place, m.tags, m.keys, m.body


def found(m: dict[str, Any]) -> tuple[int, int, int, int, str, str, bytes]:
    place = m["queue_id"], m["queue_offset"], m["commit_log_offset"], m["size"]
    return *place, m["tags"] or "", m["keys"] or "", body(m)


def body(message: dict[str, Any]) -> bytes:
    text: str = message["body"]
    return bytes.fromhex(text) if message["body_encoding"] == "hex" else text.encode()


def log_sum(stack: Stack, end: int) -> str:
    """Return a checksum of the log up to an offset in its first file."""
    return stack.shell("broker", f"head -c {end} /store/commitlog/00000000000000000000 | sha256sum")


def have_equal_queues(dispatched: Path, broker: Path) -> bool:
    """Return whether the dispatcher's queues equal the broker's.

    The index is left out: after a kill a broker indexes the same messages again.
    """
    queues = [
        {n: c for n, c in built_tree(root).items() if n.startswith("consumequeue/")}
        for root in (dispatched, broker)
    ]
    return queues[0] == queues[1]
