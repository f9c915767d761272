"""The running services of docker-compose.yml, and calls to them.

`java`, `name_address` and `broker_address` match those of servers.rocketmq.RocketMq, so that the
clients of traffic.py work here: they run in a container in the network of the services.
"""

import json
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.compose.engine import Engine
from tests.integration.compose.images import ROCKETMQ, ROCKETMQ_HOME, LocalImages
from tests.integration.servers import remoting
from tests.integration.servers.processes import free_port, wait_for
from tests.integration.servers.rocketmq import BROKER_NAME, DEFAULT_VERSION, PROGRAMS, QUEUES
from tools.maven import classes, rocketmq_jars

HERE = Path(__file__).parent
SERVERS = ("namesrv", "broker", "kafka")
SERVICES = (*SERVERS, "dispatcher", "console")
UP_SECONDS = 240.0
BUILT = ("consumequeue", "consumequeue_ext", "index")
# Silent, because the programs' output is parsed.
LOGBACK = """<configuration>
  <statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
  <root level="OFF"/>
</configuration>
"""


class Stack:
    """The services under a project name of their own."""

    name_address = "namesrv:9876"

    def __init__(self, engine: Engine, images: LocalImages, directory: Path) -> None:
        self.engine = engine
        self.project = f"reput{secrets.token_hex(4)}"
        self.kafka_port, self.console_port = free_port(), free_port()
        self._directory = directory
        self._images = images
        self._libraries = rocketmq_jars(DEFAULT_VERSION)
        self._compose = [*engine.compose(), "--project-name", self.project]
        for file in images.compose_files:
            self._compose += ["--file", str(file)]
        directory.chmod(0o755)  # the clients' containers read it, and do not run as root
        (directory / "logback-client.xml").write_text(LOGBACK)

    # --- all services ----------------------------------------------------------------------------

    def compose(self, *arguments: str) -> str:
        """Run a compose command that must succeed, and return its output."""
        ports = {"KAFKA_PORT": str(self.kafka_port), "CONSOLE_PORT": str(self.console_port)}
        environment = {**self._images.environment, **ports}
        done = self.engine.run([*self._compose, *arguments], environment)
        output = done.stdout.decode() + done.stderr.decode()
        assert done.returncode == 0, f"compose {' '.join(arguments)}:\n{output}\n{self.tail()}"
        return done.stdout.decode()

    def up(self) -> None:
        """Start the services that are not running, and wait until the servers are healthy.

        The dispatcher's health check runs every 20 s only: a test that needs it waits for it.
        """
        self.compose("up", "-d")
        for service in SERVERS:
            self.wait_healthy(service)

    def down(self) -> None:
        """Stop everything and remove it, volumes included."""
        self.compose("down", "--volumes", "--timeout", "1")

    def tail(self) -> str:
        """Return the last lines of each container's output."""
        texts = []
        for line in self.engine.docker(
            "ps", "--all", "--filter", f"label=com.docker.compose.project={self.project}",
            "--format", "{{.Names}}\t{{.Status}}",
        ).splitlines():  # fmt: skip
            name = line.split("\t", maxsplit=1)[0]
            done = self.engine.try_docker("logs", "--tail", "15", name)
            output = (done.stdout + done.stderr).decode(errors="replace")
            texts.append(f"--- {line}\n{output}")
        return "\n".join(texts)

    # --- one service -----------------------------------------------------------------------------

    def container(self, service: str) -> str:
        """Return the id of a service's container, running or not."""
        labels = (
            f"label=com.docker.compose.project={self.project}",
            f"label=com.docker.compose.service={service}",
        )
        filters = [text for label in labels for text in ("--filter", label)]
        (found,) = self.engine.docker("ps", "--all", "--quiet", *filters).split()
        return found

    def inspect(self, service: str) -> dict[str, Any]:
        """Return the engine's description of a service's container."""
        (found,) = json.loads(self.engine.docker("inspect", self.container(service)))
        return dict(found)

    def wait_healthy(self, service: str) -> None:
        """Wait until a service's health check passes."""

        def is_healthy() -> bool:
            state = self.inspect(service)["State"]
            assert state["Running"], f"{service} ended\n{self.tail()}"
            return bool(state["Health"]["Status"] == "healthy")

        wait_for(is_healthy, f"{service} is healthy", UP_SECONDS)

    def run(self, service: str, *command: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a service's container, as its user."""
        return self.engine.try_docker("exec", self.container(service), *command)

    def shell(self, service: str, script: str) -> str:
        """Run a script that must succeed in a service's container."""
        done = self.run(service, "bash", "-euc", script)
        assert done.returncode == 0, f"{script}: {done.stderr.decode()}"
        return done.stdout.decode().strip()

    def copy(self, service: str, root: str, target: Path) -> Path:
        """Copy the queues and the index of a root out of a container."""
        target.mkdir(parents=True)
        for kind in BUILT:
            source = f"{self.container(service)}:{root}/{kind}"
            done = self.engine.try_docker("cp", source, str(target / kind))
            missing = b"such" in done.stderr or b"not find" in done.stderr
            assert done.returncode == 0 or (kind == BUILT[1] and missing), done.stderr.decode()
        return target

    def address(self, service: str, port: int) -> str:
        """Return the address at which this machine reaches a port of a service."""
        (network,) = self.inspect(service)["NetworkSettings"]["Networks"].values()
        return f"{network['IPAddress']}:{port}"

    # --- used by the clients of traffic.py -------------------------------------------------------

    @property
    def broker_address(self) -> str:
        """The address at which this machine reaches the broker."""
        return self.address("broker", 10911)

    @property
    def kafka_address(self) -> str:
        """The address at which this machine reaches Kafka, as its users do."""
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def console_url(self) -> str:
        """The URL of the console on this machine."""
        return f"http://127.0.0.1:{self.console_port}"

    def make_topic(self, topic: str) -> None:
        """Create a topic and wait until clients find it."""
        deadline = time.monotonic() + UP_SECONDS
        name_server = self.address("namesrv", 9876)
        while not remoting.is_routable(name_server, topic, BROKER_NAME):
            assert time.monotonic() < deadline, f"no route to {topic}\n{self.tail()}"
            remoting.make_topic(self.broker_address, topic, QUEUES)
            time.sleep(0.5)

    def java(self, main: str, *arguments: str | int, text: str = "") -> str:
        """Run a program of ``java/`` in the network of the services, and return its output."""
        programs = classes(self._libraries, PROGRAMS)
        mounts = {
            "/usr": "/usr",
            str(self._images.java): str(self._images.java),
            str(self._libraries): f"{ROCKETMQ_HOME}/lib",
            str(programs): "/programs",
            str(self._directory): "/conf",
        }
        volumes = [word for a, b in mounts.items() for word in ("--volume", f"{a}:{b}:ro")]
        done = self.engine.try_docker(
            "run", "--rm", "--interactive", "--network", f"{self.project}_default", *volumes,
            ROCKETMQ, "java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m",
            "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8",
            "-Drmq.logback.configurationFile=/conf/logback-client.xml",
            "-cp", f"/programs:{ROCKETMQ_HOME}/lib/*", main, *map(str, arguments),
            data=text.encode(),
        )  # fmt: skip
        output, errors = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == 0, f"{main}:\n{output[-4000:]}{errors}\n{self.tail()}"
        return output


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    wait_for(condition, what, UP_SECONDS)
