"""`reput` as a process: single commands, and a dispatch that runs until it is stopped."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from store.output.progress import Progress, read_progress
from store.reads.message_store import MessageStore
from tests.integration.servers.processes import Server, wait_for
from tests.integration.servers.rocketmq import RocketMq
from tests.support.commands import REPUT

COMMAND_SECONDS = 240


class Dispatcher:
    """`reput dispatch` from a broker's store into a separate OUTPUT."""

    def __init__(self, mq: RocketMq, output: Path, *options: str) -> None:
        self.output = output
        self._settings = settings(mq)
        arguments = ["dispatch", str(mq.store), "--output", str(output), *self._settings]
        self._command = [*REPUT, *arguments, "--json", *options]
        self.server = Server("reput-dispatch", self._command, mq.directory, {})

    @property
    def progress(self) -> Progress | None:
        """The current progress record."""
        return read_progress(self.output)

    @property
    def offset(self) -> int:
        """The offset up to which the log has been dispatched."""
        progress = self.progress
        return progress.reput_from_offset if progress is not None else 0

    def start(self) -> None:
        """Start it; returns at once."""
        self.server.start()

    def wait_for_batch(self, after: int = 0) -> None:
        """Wait until it has dispatched past an offset."""
        self.server.wait_until(lambda: self.offset > after, "dispatching")

    def stop(self) -> None:
        """Stop it as a user does: it exits with 0 and leaves no `abort`."""
        assert self.server.stop() == 0, self.server.tail()
        assert not (self.output / "abort").exists()

    def kill(self, *, with_jvm: bool = True) -> None:
        """Kill it as `kill -9` does; without `with_jvm`, its JVM must notice that Python died."""
        jvms = children(self.server.pid) if self.server.is_running else []
        if with_jvm:
            for jvm in jvms:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(jvm, signal.SIGKILL)
        self.server.kill()
        wait_for(lambda: not any(map(is_alive, jvms)), "ended: the JVM of a killed dispatch")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the events of this name that it has printed."""
        found = []
        for line in self.server.log.read_text("utf-8").splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                if event["event"] == name:
                    found.append(event)
        return found


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(path.parent.name) for path in _stats() if _fields(path)[1:2] == [str(pid)]]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return _fields(Path(f"/proc/{pid}/stat"))[:1] not in ([], ["Z"], ["X"])


def _stats() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*/stat"))


def _fields(stat: Path) -> list[str]:
    """Return the fields after a process's name: state, parent, …; none if it has ended."""
    try:
        return stat.read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def settings(mq: RocketMq) -> list[str]:
    """Return the options that pass a broker's settings."""
    return ["--broker-conf", str(mq.conf), "--broker-version", mq.version]


def reput(mq: RocketMq, *arguments: str | int | Path) -> subprocess.CompletedProcess[str]:
    """Run a command with a broker's settings, and wait for it."""
    command = [*REPUT, *map(str, arguments), *settings(mq)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS
    )


def rows(mq: RocketMq, *arguments: str | int | Path) -> list[dict[str, Any]]:
    """Run a command that must succeed, and return the objects it printed."""
    done = reput(mq, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def open_store(mq: RocketMq, output: Path) -> MessageStore:
    """Open a broker's log with the queues and the index of an OUTPUT."""
    return MessageStore.open(mq.store, output, broker_conf=mq.conf, broker_version=mq.version)
