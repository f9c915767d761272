"""The Spark session for these queries: workers run this interpreter, the console stays quiet."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from store.errors import SparkError
from streaming.spark.connect import is_connect
from streaming.spark.private_api import active_session, launch_jvm_once
from streaming.spark.spark_settings import refuse_remote
from streaming.spark.stderr_filter import without_noise

_LOG4J = Path(__file__).with_name("log4j2.properties")
_GC = "-XX:+UseParallelGC"  # batches arrive as few large arrays, which G1 treats as special cases
# Between batches Spark runs a lot of code, little of it often. C2 would spend half a minute on it,
# on the cores that batches need.
_QUICK_JIT = "-XX:TieredStopAtLevel=1"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96, the default, is obsolete
    "spark.sql.streaming.metricsEnabled": "false",
    # Over TCP, each task waits 40 ms for a delayed ACK from its worker's host.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # With the default manager, Hadoop forks `readlink` for most operations: eight per batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_JAVA_MIN = 17
_STDERR = 2


def build_session(
    app_name: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start or return the session; ``master`` defaults to ``local[*]``.

    ``conf`` takes precedence over this program's settings; JVM options are added to its own.
    Raises SparkError, and ConfigError where PySpark would return a client of Spark Connect.
    """
    refuse_remote()
    check_java()
    if is_local(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:  # the workers need an interpreter that has this package
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if is_local(master) else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    spark_conf = _spark_conf(app_name, master, conf or {})
    try:
        launch_jvm_once(lambda: _start_jvm(spark_conf))
        return SparkSession.builder.config(conf=spark_conf).getOrCreate()
    except Exception as e:
        raise SparkError(f"Spark did not start: {str(e).splitlines()[0]}") from e


def _spark_conf(app_name: str, master: str | None, conf: Mapping[str, str]) -> SparkConf:
    settings = {**_SETTINGS, **conf}
    java = f"-Dlog4j2.configurationFile=file:{_LOG4J} {_GC} {_QUICK_JIT}"
    settings[_JAVA_OPTIONS] = f"{java} {conf.get(_JAVA_OPTIONS, '')}".rstrip()
    if is_local(master):
        settings["spark.python.daemon.module"] = f"{__package__}.worker_daemon"
    settings.setdefault("spark.app.name", app_name)
    return SparkConf().setAll(list(settings.items())).setMaster(master or "local[*]")


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session, including one created by ``newSession``.

    ``spark.dataSource.register`` checks the name against the thread's active session, whichever
    session it is called on, and refuses a name that is registered there. A session of Spark Connect
    registers it on the server.
    """
    if is_connect(spark):
        spark.dataSource.register(source)
        return
    with active_session(spark):
        spark.dataSource.register(source)


def _start_jvm(conf: SparkConf) -> JavaGateway:
    """Start Spark's JVM in a session of its own, so that terminal signals do not reach it.

    Only this process handles a signal, and then shuts the JVM down cleanly. The lines that every
    start of a JVM and of Spark prints are dropped from standard error; all others are forwarded.
    """
    reader, writer = os.pipe()

    def forward_stderr() -> None:
        with os.fdopen(reader, "rb") as lines:
            for line in without_noise(lines):
                os.write(_STDERR, line)

    threading.Thread(target=forward_stderr, name="reput-stderr", daemon=True).start()
    try:
        popen_kwargs = {"start_new_session": True, "stderr": writer}
        gateway: JavaGateway = launch_gateway(conf, popen_kwargs)  # type: ignore[no-untyped-call]
        return gateway
    finally:
        os.close(writer)


def is_local(master: str | None) -> bool:
    """Return whether the Spark master runs in this process."""
    return master is None or master.startswith("local")


def check_java() -> None:
    """Raise SparkError unless Java 17 or later is installed."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    requirement = f"Spark needs Java {_JAVA_MIN} or later"
    if home and not Path(java or "").exists():
        raise SparkError(f"{requirement}: JAVA_HOME={home} has no bin/java; fix or unset JAVA_HOME")
    if java is None:
        raise SparkError(
            f"{requirement}: no java on PATH; install a JRE, for example with "
            "apt-get install openjdk-17-jre-headless"
        )
    out = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = out.partition('"')[2].partition('"')[0].removeprefix("1.")
    major = version.partition(".")[0]
    if re.fullmatch("[0-9]{1,9}", major) and int(major) < _JAVA_MIN:
        raise SparkError(f"{requirement}: {java} is {version}")
