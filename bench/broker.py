"""RocketMQ's own store on the same files: its Java classes, run by ``java/StoreReads.java``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_PROGRAMS = Path(__file__).parent / "java"
# What the store reaches for inside the JDK, since that is made of modules.
_OPEN_PACKAGES = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/java.lang",
    "java.base/java.util",
)
_TIMEOUT_SECONDS = 1800


class Request(NamedTuple):
    """A request to an OUTPUT's queue 0: kind "get", "time" or "key", one value per call."""

    kind: str
    topic: str
    values: Sequence[object]


class BrokerFigure(NamedTuple):
    """The seconds of a call, and all answers of one round folded into a number."""

    seconds: float
    answers: int


@dataclass
class Broker:
    """The jars of a RocketMQ release; ``figures`` collects what is shown beside ours."""

    lib: Path
    version: str
    figures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def find(cls, lib: Path) -> Broker:
        """Return the release whose jars a folder holds. Raises ValueError unless it is 5.x."""
        for jar in sorted(lib.glob("rocketmq-store-*.jar")):
            found = re.fullmatch(r"rocketmq-store-(5(?:\.\d+)+)\.jar", jar.name)
            if found:
                return cls(lib.resolve(), found[1])
        raise ValueError(f"{lib} holds no rocketmq-store-5.y.z.jar")

    def measure(self, store_root: Path, request: Request) -> dict[str, BrokerFigure]:
        """Return figures by name (plain, decoded). Writes to ``store_root``, a disposable copy.

        Raises RuntimeError with the last lines said if Java fails.
        """
        values = store_root / "bench-requests"
        values.write_text("".join(f"{value}\n" for value in request.values), "utf-8")
        arguments = [str(store_root), request.kind, request.topic, str(values)]
        figures = run_java(self.lib, "StoreReads", arguments, store_root)
        return {name: BrokerFigure(float(ns) / 1e9, int(n)) for name, ns, n in figures}


def run_java(lib: Path, program: str, arguments: list[str], store_root: Path) -> list[list[str]]:
    """Run one of our Java programs on a release's jars; return the words of its figures.

    Raises RuntimeError with the last lines said if Java fails.
    """
    java = [_java(), "-Xmx2g", f"-Duser.home={store_root}", "-Dfile.encoding=UTF-8"]
    for package in _OPEN_PACKAGES:
        java += ["--add-opens", f"{package}=ALL-UNNAMED"]
    java += ["--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"]
    java += ["-cp", f"{lib}/*", str(_PROGRAMS / f"{program}.java")]
    ran = subprocess.run(
        java + arguments, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if ran.returncode:
        said = (ran.stdout + ran.stderr)[-2000:]
        raise RuntimeError(f"RocketMQ's store could not be run on {store_root} (a JDK?):\n{said}")
    lines = [line.split() for line in ran.stdout.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["figure"]]


def _java() -> str:
    """Return the program that Spark would start too."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"
