"""Arrivals to a real Kafka: told, told after it came back, and never in the way of a dispatch."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from checkpoints.output import DispatchOutput
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import load_config
from streaming.kafka.arrivals import KafkaArrivals
from streaming.kafka.client_options import client_options
from streaming.sinks.dispatch_sink import DispatchSink
from tests.integration.mirror.mirroring import append, held, make_store
from tests.integration.servers.kafka import KafkaServer
from tests.integration.servers.processes import wait_for
from tests.support.dispatching import assert_same_store, dispatch_all


class Dispatching:
    """A dispatch at the sink layer with one listener."""

    def __init__(self, store: Path, output: Path, listener: KafkaArrivals) -> None:
        config = load_config(store)
        self.output = DispatchOutput.open(output, store, config)
        self.sink = DispatchSink(self.output, config, listeners=[listener])
        self._planner = LogPlanner(self.output.log, lambda: True)
        self._scanner = Scanner(config)

    def run(self) -> float:
        """Dispatch what is there; return the seconds it took."""
        began = time.monotonic()
        while True:
            plan = self._planner.plan(self.output.progress.reput_from_offset, max_bytes=20_000)
            if not plan.ranges:
                return time.monotonic() - began
            self.sink.apply([s for part in plan.ranges for s in self._scanner.read(part)])


def newest(kafka: KafkaServer, topic: str) -> dict[tuple[str, int], int]:
    """Return the greatest offset told of each queue."""
    found: dict[tuple[str, int], int] = {}
    for records in held(kafka.bootstrap, [topic]).values():
        for record in records:
            event: dict[str, Any] = json.loads(record.value)
            queue = event["topic"], event["queue_id"]
            assert record.key == f"{queue[0]}/{queue[1]}".encode()
            found[queue] = max(found.get(queue, 0), event["max_offset"])
    return found


def dispatch(store: Path, output: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command until the log ends."""
    command = [sys.executable, "-m", "reput", "dispatch"]
    command += [str(store), "--output", str(output), "--available-now", "--json"]
    return subprocess.run(
        [*command, "--master", "local[2]", *more],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_told_before_and_after_a_kafka_was_away(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 900)
    kafka = KafkaServer(tmp_path / "kafka")
    kafka.start()
    try:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics({"arrivals": {"num_partitions": 2}}, wait_for_metadata=True)
        admin.close()
        arrivals = KafkaArrivals(client_options(kafka.bootstrap, {}), "arrivals")
        dispatching = Dispatching(store, output, arrivals)
        dispatching.run()
        wait_for(lambda: not arrivals.counts.waiting, "told")
        queues = {("Orders", 0): 300, ("Orders", 1): 300, ("%RETRY%g", 0): 300}
        wait_for(lambda: newest(kafka, "arrivals") == queues, "there")
        kafka.kill()
        append(store, 900, 900)
        assert dispatching.run() < 10  # Kafka is away, the dispatch goes on
        wait_for(lambda: arrivals.counts.failures > 0, "noticed")
        append(store, 900, 1_800)
        assert dispatching.run() < 10
        assert arrivals.counts.dropped == 0
        kafka.start()
        wait_for(lambda: not arrivals.counts.waiting, "told later")
        queues = {("Orders", 0): 900, ("Orders", 1): 900, ("%RETRY%g", 0): 900}
        wait_for(lambda: newest(kafka, "arrivals") == queues, "there later")
        dispatching.sink.close()
        counts = arrivals.close()
        assert counts.dropped == 0
        assert counts.failures > 0
        assert counts.coalesced > 0
    finally:
        kafka.kill()
    dispatch_all(store, tmp_path / "expected", load_config(store))
    assert_same_store(output, tmp_path / "expected")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092"])
def test_the_command_with_a_kafka_that_is_never_there(tmp_path: Path, address: str) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 900)
    done = dispatch(
        store, output, "--notify-kafka-bootstrap", address, "--notify-kafka-topic", "arrivals"
    )
    assert done.returncode == 0, done.stderr
    events = {e["event"]: e for e in map(json.loads, done.stdout.splitlines())}
    assert events["stop"]["messages"] == 900
    assert events["arrivals"]["sent"] == 0
    assert events["arrivals"]["dropped"] == 3
    assert "Traceback" not in done.stderr
    dispatch_all(store, tmp_path / "expected", load_config(store))
    assert_same_store(output, tmp_path / "expected")


def test_the_command_tells_a_kafka(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    make_store(store, 900)
    kafka = KafkaServer(tmp_path / "kafka")
    kafka.start()
    try:
        kafka_options = ["--notify-kafka-bootstrap", kafka.bootstrap]
        done = dispatch(store, output, *kafka_options, "--kafka-property", "client.id=told")
        assert done.returncode == 0, done.stderr
        events = {e["event"]: e for e in map(json.loads, done.stdout.splitlines())}
        assert events["arrivals"]["dropped"] == 0
        assert events["arrivals"]["sent"] >= 3
        queues = {("Orders", 0): 300, ("Orders", 1): 300, ("%RETRY%g", 0): 300}
        assert newest(kafka, "reput-arrivals") == queues
    finally:
        kafka.kill()
