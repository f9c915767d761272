"""A single-node Kafka broker (KRaft) as a process."""

import secrets
import subprocess
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.servers.processes import Server, free_port, is_listening
from tools.maven import kafka_jars, tool

VERSION = "4.1.1"
JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx384m"]
LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
]


@dataclass(frozen=True)
class KafkaOptions:
    """The settings that a test may choose."""

    message_max_bytes: int | None = None
    # The password of each user; any user adds a listener with SASL/PLAIN.
    users: dict[str, str] = field(default_factory=dict)
    # Further lines of server.properties.
    properties: dict[str, str] = field(default_factory=dict)


class KafkaServer:
    """A broker that keeps its data directory and its ports across restarts."""

    def __init__(
        self, directory: Path, options: KafkaOptions | None = None, version: str = VERSION
    ) -> None:
        self.directory = directory
        self.options = options or KafkaOptions()
        self._libraries = kafka_jars(version)
        self._port, self._controller, self._sasl = free_port(), free_port(), free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        self._properties.write_text(self._settings(), "utf-8")
        command = [*self._java(), *LOGGING, "kafka.Kafka", str(self._properties)]
        self.server = Server("kafka", command, directory, {})

    @property
    def bootstrap(self) -> str:
        """Return the address of the listener without authentication."""
        return f"127.0.0.1:{self._port}"

    @property
    def sasl_bootstrap(self) -> str:
        """Return the address of the listener with SASL/PLAIN."""
        assert self.options.users, "this server has no users"
        return f"127.0.0.1:{self._sasl}"

    def start(self) -> None:
        """Start it on its existing data, and wait until it answers."""
        if not (self.directory / "data" / "meta.properties").exists():
            self._format()
        self.server.start()
        ports = [self._port, *([self._sasl] if self.options.users else [])]
        self.server.wait_until(lambda: all(map(is_listening, ports)), "listening")

    def stop(self) -> None:
        """Stop it cleanly."""
        self.server.stop()

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self.server.kill()

    def _java(self) -> list[str]:
        return [tool("java"), *JVM, "-cp", f"{self._libraries}/*"]

    def _format(self) -> None:
        cluster = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if cluster.startswith("-"):  # it would be parsed as an option
            cluster = "A" + cluster[1:]
        command = [*self._java(), "kafka.tools.StorageTool", "format", "--standalone"]
        done = subprocess.run(
            [*command, "-t", cluster, "-c", str(self._properties)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _settings(self) -> str:
        listeners = {"PLAINTEXT": self._port, "CONTROLLER": self._controller}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
        if self.options.users:
            listeners["SASL"] = self._sasl
            protocols["SASL"] = "SASL_PLAINTEXT"
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in listeners.items()}
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller}",
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(
                address for name, address in addresses.items() if name != "CONTROLLER"
            ),
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "num.partitions": "1",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "group.initial.rebalance.delay.ms": "0",
            # A killed broker can register again only after its old session has expired.
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self._sasl_settings(),
        }
        if self.options.message_max_bytes is not None:
            settings["message.max.bytes"] = str(self.options.message_max_bytes)
        lines = [
            f"{name}={value}\n" for name, value in (settings | self.options.properties).items()
        ]
        return "".join(lines)

    def _sasl_settings(self) -> dict[str, str]:
        if not self.options.users:
            return {}
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        users = " ".join(f'user_{name}="{word}"' for name, word in self.options.users.items())
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{module} {users};",
        }
