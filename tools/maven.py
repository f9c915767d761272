"""Jars from Maven, fetched once for each pom and version and kept between runs.

``~/.cache/reput-integration/KEY/``: KEY is made of what decides what lies there, so nothing there
is ever changed. Where a tool is missing this raises: a test that needs it fails, it is not skipped.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POMS = Path(__file__).parent / "poms"
FETCH_SECONDS = 600


class MissingToolError(Exception):
    """A program that these tests need is not installed."""


def tool(name: str) -> str:
    """Return the path of a program; where it is missing say what to do."""
    home = os.environ.get("JAVA_HOME")
    if home and name in ("java", "javac"):
        path = shutil.which(name, path=f"{home}/bin")
    else:
        path = shutil.which(name)
    if path is None:
        raise MissingToolError(
            f"{name} is not installed, and tests against real servers need it: run "
            "`tools/integration.sh`, or install Maven and a JDK of 17 or newer"
        )
    return path


def rocketmq_jars(version: str) -> Path:
    """Return the directory of the jars of a RocketMQ version."""
    return jars(POMS / "rocketmq.xml", {"rocketmq.version": version})


def kafka_jars(version: str) -> Path:
    """Return the directory of the jars of a Kafka version."""
    return jars(POMS / "kafka.xml", {"kafka.version": version})


def jars(pom: Path, properties: dict[str, str]) -> Path:
    """Return a directory with the run-time dependencies of a pom."""
    maven = tool("mvn")
    defined = [f"-D{name}={value}" for name, value in sorted(properties.items())]

    def fetch(target: Path) -> None:
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        where = [f"-DoutputDirectory={target}"]
        _run([maven, "-q", "-B", "-f", str(pom), *goal, *where, *defined])

    return _kept(["jars", pom.read_text("utf-8"), *defined], fetch)


def classes(libraries: Path, programs: Path) -> Path:
    """Return a directory with the Java programs of a folder, compiled against some jars."""
    compiler = tool("javac")
    sources = sorted(programs.glob("*.java"))

    def compile_all(target: Path) -> None:
        options = ["-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", f"{libraries}/*"]
        _run([compiler, *options, "-d", str(target), *map(str, sources)])

    texts = [source.name + source.read_text("utf-8") for source in sources]
    return _kept(["classes", str(libraries), *texts], compile_all)


def _kept(parts: list[str], make: Callable[[Path], None]) -> Path:
    """Return the directory of what is made from these parts, made before or now."""
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reput-integration"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{parts[0]}-{key}"
    with _locked(cache / f"{parts[0]}-{key}.lock"):
        if not target.is_dir():
            unfinished = cache / f"{parts[0]}-{key}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(target)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-4000:]}"
            f"\n{done.stderr[-4000:]}"
        )
