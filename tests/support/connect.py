"""A server of Spark Connect in a process of its own, as Spark's own script starts it."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from streaming.spark.session import _spark_conf

_SECONDS_MAX = 90.0
_STDERR = 2
_PYSPARK = Path(pyspark.__file__).parent


def make_spark_home(directory: Path) -> Path:
    """Return a home of Spark without the archive ``pyspark.zip``.

    A worker imports PySpark from that archive if it exists, and compiles it: half a second for each
    stream. Without the archive it imports the installed package.
    """
    for name in ("bin", "jars"):
        (directory / name).symlink_to(_PYSPARK / name)
    return directory


@contextmanager
def connect_server(directory: Path, spark_home: Path = _PYSPARK) -> Iterator[str]:
    """Run a server with two cores in ``directory``; yield its address, ``sc://localhost:PORT``.

    It has the settings that ``build_session`` gives to a session.
    Its standard error goes to that of this process, also where a test captures it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = dict(_spark_conf("tests", "local[2]", {}).getAll())
    settings["spark.connect.grpc.binding.port"] = str(port)
    command = [
        str(spark_home / "bin" / "spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_HOME"] = str(spark_home)
    server = subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE)
    assert server.stderr is not None
    forward = threading.Thread(target=_forward, args=(server.stderr,), daemon=True)
    forward.start()
    try:
        _wait_for(port, server)
        yield f"sc://localhost:{port}"
    finally:
        server.terminate()
        server.wait(_SECONDS_MAX)
        forward.join(_SECONDS_MAX)
        server.stderr.close()


def _forward(lines: Iterator[bytes]) -> None:
    for line in lines:
        os.write(_STDERR, line)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"no Spark Connect server: exit code {server.poll()}")
