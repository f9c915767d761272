"""A Spark session fit for these queries: workers run this interpreter, the console stays quiet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from store.errors import StoreError

_LOG4J = Path(__file__).with_name("log4j2.properties")
_GC = "-XX:+UseParallelGC"  # batches arrive as few large arrays, which G1 treats as special cases
_JAVA_MIN = 17
_STDERR = 2
_NOISE = (
    b"WARNING: Using incubator modules",
    b"Setting default log level",
    b"To adjust logging level",
    b"Picked up JAVA_TOOL_OPTIONS",
)


class SparkStartError(StoreError):
    """Spark or Java did not start."""


def build_session(app_name: str, master: str | None = None) -> SparkSession:
    """Start (or get) a session; ``master`` defaults to ``local[*]``. Raises SparkStartError."""
    check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if is_local(master) else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    builder = (
        SparkSession.builder.appName(app_name)
        .master(master or "local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{_LOG4J} {_GC}")
    )
    try:
        with _without_start_up_noise():
            return builder.getOrCreate()
    except Exception as e:
        raise SparkStartError(f"Spark did not start: {str(e).splitlines()[0]}") from e


@contextmanager
def _without_start_up_noise() -> Iterator[None]:
    """Leave what every JVM and Spark says at its start out of standard error.

    Spark's JVM, begun inside, writes to a pipe for good; all other lines are passed on.
    """
    terminal = os.dup(_STDERR)
    reader, writer = os.pipe()

    def pass_on() -> None:
        with os.fdopen(reader, "rb") as lines:
            for line in lines:
                if not line.startswith(_NOISE):
                    os.write(terminal, line)

    threading.Thread(target=pass_on, name="reput-stderr", daemon=True).start()
    os.dup2(writer, _STDERR)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(terminal, _STDERR)


def is_local(master: str | None) -> bool:
    """Tell whether a master URL runs in this process."""
    return master is None or master.startswith("local")


def check_java() -> None:
    """Raise SparkStartError unless a Java of version 17 or later is found."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    wanted = f"Spark needs Java {_JAVA_MIN} or later"
    if java is None or (home and not Path(java).exists()):
        raise SparkStartError(f"{wanted}: none found (JAVA_HOME, PATH); install a JRE, e.g. "
                              "apt-get install openjdk-17-jre-headless")  # fmt: skip
    out = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = out.partition('"')[2].partition('"')[0].removeprefix("1.")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < _JAVA_MIN:
        raise SparkStartError(f"{wanted}: {java} is {version}")
