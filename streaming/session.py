"""A Spark session fit for these queries: workers run this interpreter, the console stays quiet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from store.errors import StoreError

_LOG4J = Path(__file__).with_name("log4j2.properties")
_JAVA_MIN = 17


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
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.streaming.minBatchesToRetain", "2")
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile=file:{_LOG4J}")
    )
    try:
        return builder.getOrCreate()
    except Exception as e:  # noqa: BLE001 - whatever PySpark raises here means it did not start
        raise SparkStartError(f"Spark did not start: {str(e).splitlines()[0]}") from e


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
