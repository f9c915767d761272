"""A server as a process: start, wait, stop or kill it; its output is kept in a file."""

import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

START_SECONDS = 240.0
STOP_SECONDS = 90.0
POLL_SECONDS = 0.1
# Below the ephemeral ports (32768 and up on Linux). A server that is down holds none of its ports,
# so each process of a parallel run has a share of them.
_COUNT = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _COUNT
_SHARE = 12_000 // _COUNT
_FIRST = 20_000 + _SHARE * _NUMBER
_PORTS = range(_FIRST + 2, _FIRST + _SHARE - 1)  # a broker also listens at two neighbours

# The servers started in this run; their output is shown when a test fails.
started: list["Server"] = []


class ServerError(Exception):
    """A server did not start, did not stop, or ended unexpectedly."""


class Server:
    """A server process that can be restarted; ``log`` collects the output of all its runs."""

    def __init__(
        self, name: str, command: list[str], directory: Path, environment: dict[str, str]
    ) -> None:
        self.name = name
        self.command = command
        self.directory = directory
        self.log = directory / f"{name}.log"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; returns at once."""
        assert not self.is_running, f"{self.name} is already running"
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self not in started:
            started.append(self)

    def wait_until(
        self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds; raises if the process ends first or time runs out."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not self.is_running:
                raise ServerError(f"{self.name} ended before {what}; its output:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name}: not {what} after {seconds:.0f} s; its output:\n{self.tail()}"
                )
            time.sleep(POLL_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
        """Signal the process to end, wait for it and return its exit code."""
        assert self._process is not None
        if self.is_running:
            self._process.send_signal(number)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            output = self.tail()
            self.kill()
            raise ServerError(
                f"{self.name} did not end within {seconds:.0f} s and was killed:\n{output}"
            ) from None

    def kill(self) -> None:
        """Kill the process and its children, as `kill -9` does."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):  # it and its children have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def tail(self, lines: int = 60) -> str:
        """Return the last lines of the output."""
        if not self.log.exists():
            return "(no output)"
        with self.log.open(encoding="utf-8", errors="replace") as file:
            return f"{self.log}:\n" + "".join(deque(file, maxlen=lines))


def kill_all() -> None:
    """Kill every server that is still running."""
    for server in started:
        server.kill()


def wait_for(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until a condition holds; raises if time runs out."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not {what} after {seconds:.0f} s"
        time.sleep(POLL_SECONDS)


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections at a local port."""
    with socket.socket() as connection:
        connection.settimeout(1)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def free_port(around: Iterable[int] = (0,)) -> int:
    """Return a free port whose neighbours at the given distances are free too.

    A broker at port P also listens at P-2 and P+1.
    """
    distances = sorted({0, *around})
    for _ in range(1000):
        port = random.choice(_PORTS)
        if all(_is_free(port + distance) for distance in distances):
            return port
    raise ServerError(f"no free port in {_PORTS}")


def _is_free(port: int) -> bool:
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            connection.bind(("0.0.0.0", port))
        except OSError:
            return False
        return not is_listening(port)
