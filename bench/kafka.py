"""A Kafka of one node on this machine, for a measurement."""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.maven import kafka_jars, tool

_VERSION = "4.1.1"
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms256m", "-Xmx512m")
_START_SECONDS = 60


@contextmanager
def running_kafka(directory: Path) -> Iterator[str]:
    """Start a Kafka that keeps its data in a directory; yield its address, and end it."""
    directory.mkdir(parents=True)
    port, controller = _free_port(), _free_port()
    settings = directory / "server.properties"
    settings.write_text(_settings(directory / "data", port, controller))
    java = [tool("java"), *_JVM, "-cp", f"{kafka_jars(_VERSION)}/*"]
    # An id that begins with "-" would be taken for an option.
    cluster = "A" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", settings],
        check=True,
        capture_output=True,
    )
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
    try:
        _wait_until_listening(port)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _settings(data: Path, port: int, controller: int) -> str:
    once = (
        "offsets.topic.num.partitions", "offsets.topic.replication.factor",
        "transaction.state.log.num.partitions", "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    )  # fmt: skip
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        **dict.fromkeys(once, "1"),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
