"""A RocketMQ name server and broker as processes.

Ready means registered and routable: after a broker logs "boot success", its name server may not
know it for another ten seconds, and until then clients get a "no route" error.
"""

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.integration.servers import remoting
from tests.integration.servers.processes import (
    START_SECONDS,
    Server,
    ServerError,
    free_port,
    is_listening,
    wait_for,
)
from tools.maven import classes, rocketmq_jars, tool

PROGRAMS = Path(__file__).parents[1] / "java"
VERSIONS = ("4.8.0", "4.9.4", "5.3.3", "5.5.0")
DEFAULT_VERSION = "5.3.3"
CLUSTER = "IntegrationCluster"
BROKER_NAME = "broker-a"
QUEUES = 4
CLIENT_SECONDS = 240

# Small files, so that a few thousand messages roll all of them.
DEFAULTS = {
    "brokerClusterName": CLUSTER,
    "brokerName": BROKER_NAME,
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "10000",
    "maxIndexNum": "50000",
    "diskMaxUsedSpaceRatio": "98",
    # A broker refuses messages that had to wait for longer, 200 ms and 1 s by default.
    "waitTimeMillsInSendQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}
JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
# 4.x uses these internals to unmap a file; later versions do not need them.
OPENS = [
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED"),
]
_LOGBACK = """<configuration>
  <appender name="out" class="{prefix}ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %level %logger{{0}} %msg%n</pattern></encoder>
  </appender>
  <logger name="RocketmqWaterMark" level="OFF"/>
  <logger name="RocketmqNamesrvWaterMark" level="OFF"/>
  <logger name="RocketmqTraffic" level="OFF"/>
  <logger name="RocketmqPop" level="WARN"/>
  <root level="{level}"><appender-ref ref="out"/></root>
</configuration>
"""


class RocketMq:
    """One name server and one broker, which keep store and ports across restarts.

    ``store`` is the broker's storePathRootDir, ``conf`` its broker.conf.
    """

    def __init__(
        self,
        directory: Path,
        version: str = DEFAULT_VERSION,
        options: dict[str, str] | None = None,
        topics: Iterable[str] = ("TopicTest",),
    ) -> None:
        self.directory = directory
        self.version = version
        self.topics = list(topics)
        self.store = directory / "store"
        self.conf = directory / "broker.conf"
        self.libraries = rocketmq_jars(version)
        self._name_port, self._port = free_port(), free_port(around=(-2, 1))
        self._options = dict(options or {})
        self.name = self._options.get("brokerName", BROKER_NAME)
        self._write_files()
        self.name_server = self._server("namesrv", "NamesrvStartup", "namesrv.conf", "64m")
        self.broker = self._server("broker", "BrokerStartup", "broker.conf", "320m")

    @property
    def name_address(self) -> str:
        """The name server's address."""
        return f"127.0.0.1:{self._name_port}"

    @property
    def broker_address(self) -> str:
        """The broker's address."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start both, and wait until every topic exists and is routable."""
        self.name_server.start()
        self.name_server.wait_until(lambda: is_listening(self._name_port), "listening")
        self.start_broker()

    def start_broker(self) -> None:
        """Start the broker on its existing store, and wait until every topic is routable."""
        self.broker.start()
        self.broker.wait_until(lambda: is_listening(self._port), "listening")
        for topic in self.topics:
            self.make_topic(topic)

    def make_topic(self, topic: str, queues: int = QUEUES) -> None:
        """Create a topic and wait until clients find it."""
        deadline = time.monotonic() + START_SECONDS
        while not remoting.is_routable(self.name_address, topic, self.name):
            if time.monotonic() > deadline or not self.broker.is_running:
                raise ServerError(f"no route to {topic}:\n{self.broker.tail()}")
            remoting.make_topic(self.broker_address, topic, queues)  # also registers it
            time.sleep(0.5)
        if topic not in self.topics:
            self.topics.append(topic)

    def stop_broker(self) -> None:
        """Stop the broker cleanly: it flushes everything and removes its `abort`."""
        self.broker.stop()
        assert not (self.store / "abort").exists(), self.broker.tail()
        self._wait_until_forgotten()

    def kill_broker(self) -> None:
        """Kill the broker, as `kill -9` does."""
        self.broker.kill()
        self._wait_until_forgotten()

    def stop(self) -> None:
        """Stop both."""
        if self.broker.is_running:
            self.broker.stop()
        if self.name_server.is_running:
            self.name_server.stop()

    def kill(self) -> None:
        """Kill both, when their files no longer matter."""
        self.broker.kill()
        self.name_server.kill()

    def set_options(self, options: dict[str, str]) -> None:
        """Change broker.conf; the broker reads it on its next start."""
        self._options |= options
        self._write_files()

    def java(
        self, main: str, *arguments: str | int, text: str = "", seconds: float = CLIENT_SECONDS
    ) -> str:
        """Run a program of ``java/`` or of the jars, and return its output."""
        class_path = f"{classes(self.libraries, PROGRAMS)}:{self.libraries}/*"
        command = [*self._jvm("256m", "client"), "-cp", class_path, main, *map(str, arguments)]
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=seconds,
            env={**os.environ, **self._environment()},
            cwd=self.directory,
        )
        assert done.returncode == 0, (
            f"{main} {' '.join(map(str, arguments))}: exit {done.returncode}\n"
            f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}\n{self.broker.tail()}"
        )
        return done.stdout

    def mqadmin(self, command: str, *arguments: str | int) -> str:
        """Run RocketMQ's admin tool; a call takes about 5 s."""
        tools = "org.apache.rocketmq.tools.command.MQAdminStartup"
        return self.java(tools, command, "-n", self.name_address, *arguments)

    def _wait_until_forgotten(self) -> None:
        topic = self.topics[0]
        if self.name_server.is_running:
            wait_for(
                lambda: not remoting.is_routable(self.name_address, topic, self.name),
                "forgotten by the name server",
            )

    def _jvm(self, heap: str, role: str = "server") -> list[str]:
        opens = OPENS if self.version.startswith("4.") else []
        logback = self.directory / f"logback-{role}.xml"
        plain = self.directory / "conf" / f"logback_{'broker' if role == 'server' else 'tools'}.xml"
        return [
            tool("java"), *JVM, *opens, f"-Xmx{heap}", "-XX:MaxDirectMemorySize=512m",
            f"-Duser.home={self.directory}", f"-Drmq.logback.configurationFile={logback}",
            f"-Dlogback.configurationFile={plain}", "-Dfile.encoding=UTF-8",
            "-Dstdout.encoding=UTF-8", "-Drocketmq.client.logUseSlf4j=false",
        ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return {"ROCKETMQ_HOME": str(self.directory), "LC_ALL": "C.UTF-8"}

    def _server(self, name: str, main: str, conf: str, heap: str) -> Server:
        command = [*self._jvm(heap), "-cp", f"{self.libraries}/*"]
        command += [f"org.apache.rocketmq.{name}.{main}", "-c", str(self.directory / conf)]
        return Server(name, command, self.directory, self._environment())

    def _write_files(self) -> None:
        (self.directory / "conf").mkdir(parents=True, exist_ok=True)
        own = {
            "namesrvAddr": self.name_address,
            "listenPort": str(self._port),
            "haListenPort": str(self._port + 1),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
        }
        _write_properties(self.conf, DEFAULTS | own | self._options)
        name_server = {
            "listenPort": str(self._name_port),
            "kvConfigPath": str(self.directory / "kv.json"),
            "configStorePath": str(self.directory / "namesrv.properties"),
        }
        _write_properties(self.directory / "namesrv.conf", name_server)
        # 4.x reads these from conf/; 5.x shades logback under another package name.
        for name in ("broker", "namesrv", "tools"):
            text = _LOGBACK.format(prefix="", level="OFF" if name == "tools" else "INFO")
            (self.directory / "conf" / f"logback_{name}.xml").write_text(text, "utf-8")
        for name, level in (("server", "INFO"), ("client", "ERROR")):
            text = _LOGBACK.format(prefix="org.apache.rocketmq.logging.", level=level)
            (self.directory / f"logback-{name}.xml").write_text(text, "utf-8")


def _write_properties(path: Path, values: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()), "utf-8")
