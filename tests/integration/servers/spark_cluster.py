"""A standalone Spark cluster as processes: a master and workers, from the pyspark package."""

import sys
from pathlib import Path

import pyspark

from tests.integration.servers.processes import Server, free_port, is_listening

HOST = "127.0.0.1"
_HOME = Path(pyspark.__file__).parent
_CLASS = "org.apache.spark.deploy"


class SparkCluster:
    """A master and workers of one core and 1 GiB each; ``python`` is the executors' interpreter."""

    def __init__(self, directory: Path, workers: int = 2, python: str = sys.executable) -> None:
        port, web = free_port(), free_port()
        self.master_url = f"spark://{HOST}:{port}"
        environment = {
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_WORKER_DIR": str(directory / "work"),
            "PYSPARK_PYTHON": python,
        }
        self.environment = {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": python}
        start = [str(_HOME / "bin" / "spark-class")]
        listen = ["--host", HOST, "--port", str(port), "--webui-port", str(web)]
        command = [*start, f"{_CLASS}.master.Master", *listen]
        self.master = Server("spark-master", command, directory, environment)
        self.workers = []
        for n in range(workers):
            listen = ["--host", HOST, "--port", str(free_port()), "--webui-port", str(free_port())]
            size = ["-c", "1", "-m", "1g"]
            command = [*start, f"{_CLASS}.worker.Worker", *listen, *size, self.master_url]
            self.workers.append(Server(f"spark-worker-{n}", command, directory, environment))
        self._port = port

    def start(self) -> None:
        """Start all and wait until every worker is registered."""
        self.master.start()
        self.master.wait_until(lambda: is_listening(self._port), "listening")
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            self.await_worker(worker)

    def await_worker(self, worker: Server) -> None:
        """Wait until a worker is registered."""
        line = "Successfully registered with master"
        worker.wait_until(lambda: line in worker.log.read_text("utf-8", "replace"), "registered")

    def executors(self) -> list[Path]:
        """Return the directory of each executor, running or ended."""
        return sorted((self.master.directory / "work").glob("app-*/*"))

    def kill(self) -> None:
        """Kill the master and all workers."""
        for server in [*self.workers, self.master]:
            server.kill()
