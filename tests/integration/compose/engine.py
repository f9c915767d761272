"""A container engine: the running one, else one that is started here and stopped at the end.

`tools/integration.sh` installs one where permitted. Without an engine and without the permission
to start one, NoEngineError is raised.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("docker", "dockerd", "iptables")
START_SECONDS = 60.0
STOP_SECONDS = 60.0
COMMAND_SECONDS = 300.0


class EngineError(Exception):
    """A container engine is missing a part or does not work."""


class NoEngineError(EngineError):
    """No container engine answers, and starting one is not permitted."""


class Engine:
    """Calls the command-line programs of an engine."""

    def __init__(self, host: str | None) -> None:
        self._environment = dict(os.environ)
        if host is not None:
            self._environment["DOCKER_HOST"] = host

    def docker(
        self, *arguments: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS
    ) -> str:
        """Run a docker command that must succeed, and return its output."""
        done = self.try_docker(*arguments, data=data, seconds=seconds)
        if done.returncode != 0:
            output = done.stdout.decode() + done.stderr.decode()
            raise AssertionError(f"docker {' '.join(arguments)}: exit {done.returncode}\n{output}")
        return done.stdout.decode()

    def try_docker(
        self, *arguments: str, data: bytes | None = None, seconds: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a docker command that may fail."""
        return self.run(["docker", *arguments], {}, data=data, seconds=seconds)

    def run(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        data: bytes | None = None,
        seconds: float = COMMAND_SECONDS,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program against this engine."""
        return subprocess.run(
            command,
            input=b"" if data is None else data,
            capture_output=True,
            check=False,
            timeout=seconds,
            env={**self._environment, **environment},
        )

    def is_available(self) -> bool:
        """Return whether an engine answers."""
        return self.try_docker("version").returncode == 0

    def compose(self) -> list[str]:
        """Return the command of compose: v2 where docker has it, else v1."""
        if self.try_docker("compose", "version").returncode == 0:
            return ["docker", "compose"]
        if shutil.which("docker-compose"):
            return ["docker-compose"]
        raise EngineError("neither `docker compose` nor docker-compose is installed")


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Yield an engine: the running one, which is left running, or one started for this block."""
    if shutil.which("docker") and (engine := Engine(None)).is_available():
        engine.compose()
        yield engine
        return
    with _daemon() as engine:
        engine.compose()
        yield engine


@contextmanager
def _daemon() -> Iterator[Engine]:
    """Run dockerd with all of its files in one temporary folder."""
    if os.geteuid() != 0:
        raise NoEngineError("no container engine answers, and starting dockerd requires root")
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        raise EngineError(f"not installed: {', '.join(missing)}; run tools/integration.sh")
    folder = Path(tempfile.mkdtemp(prefix="reput-docker-"))
    host = f"unix://{folder}/docker.sock"
    command = [
        "dockerd", "--host", host, "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
        "--pidfile", f"{folder}/pid", "--userland-proxy=false",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    engine = Engine(host)
    try:
        _await(daemon, engine, folder / "log")
        yield engine
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        _remove(folder)


def _await(daemon: "subprocess.Popen[bytes]", engine: Engine, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not engine.is_available():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise EngineError(f"dockerd did not start:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.2)


def _remove(folder: Path) -> None:
    """Remove the daemon's files; it may have left mounts."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    with suppress(OSError):
        shutil.rmtree(folder)
