"""A real Prometheus scrapes a dispatch, a mirror and a console with the jobs and rules of ops/."""

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conftest import ARCHIVES, archive_name, unpack
from tests.integration.servers.kafka import KafkaServer
from tests.integration.servers.processes import Server, free_port, is_listening, wait_for
from tests.integration.servers.reput import REPUT, children
from tests.support.bulk_writer import BulkWriter
from tests.support.ops import ALERTS, OPS, metric_names, panel_queries, rules
from tests.support.stores.written import TEMPLATES

PROMETHEUS = shutil.which("prometheus")
JOBS = ("reput-dispatch", "reput-mirror", "reput-serve")
SECONDS = 120.0
STUCK_SECONDS = 3
# Queries that return nothing while all is well, and why.
EMPTY = {"reput_omitted_series": "exists only while a scrape leaves series out"}
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")


class Site:
    """A store that grows, what reads it, and the Prometheus that watches."""

    def __init__(self, directory: Path, kafka: KafkaServer) -> None:
        archive = next(path for path in ARCHIVES if archive_name(path) == "g4")
        self.golden = unpack(archive, directory)
        self.store, output = self.golden.store_root, directory / "out"
        self.ports = {job: free_port() for job in JOBS}
        self.port = free_port()
        self.directory = directory
        where = [str(self.store), "--broker-version", self.golden.version]
        metrics = ["--stuck-after", str(STUCK_SECONDS), "--json", "--metrics-port"]
        self.dispatch = self._server(
            "reput-dispatch",
            *["dispatch", *where, "--output", str(output)],
            *["--notify-kafka-bootstrap", kafka.bootstrap],
            *[*metrics, str(self.ports["reput-dispatch"])],
        )
        self.mirror = self._server(
            "reput-mirror",
            *["mirror", *where, "--kafka-bootstrap", kafka.bootstrap, "--create-topics"],
            *["--topic-config", "retention.ms=-1", "--name", "m"],
            *[*metrics, str(self.ports["reput-mirror"])],
        )
        self.serve = self._server(
            "reput-serve",
            *["serve", *where, "--output", str(output), "--port", str(self.ports["reput-serve"])],
            *["--stuck-after", str(STUCK_SECONDS)],
        )
        assert PROMETHEUS is not None
        command = [PROMETHEUS, f"--config.file={self._config()}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={directory / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}"]
        self.prometheus = Server("prometheus", command, directory, {})
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def start(self) -> None:
        """Start everything, one after another: the machine may be small."""
        for server in (self.dispatch, self.mirror, self.serve, self.prometheus):
            server.start()
            port = self.ports.get(server.name, self.port)
            server.wait_until(lambda p=port: is_listening(p), "listening")
        self._writer.start()

    def stop(self) -> None:
        """Stop everything; what can be stopped cleanly must."""
        self._stop.set()
        if self._writer.is_alive():
            self._writer.join()
        for server in (self.dispatch, self.mirror, self.serve):
            assert server.stop() == 0, server.tail()
        self.prometheus.kill()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression now."""
        answer = self._get("query", query=expression)
        return list(answer["data"]["result"])

    def firing(self) -> set[str]:
        """Return the names of the alerts that are firing."""
        alerts = self._get("alerts")["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def health(self, job: str) -> tuple[int, str]:
        """Return the answer of /healthz."""
        url = f"http://127.0.0.1:{self.ports[job]}/healthz"
        answer = httpx.get(url, trust_env=False, timeout=30)
        return answer.status_code, answer.text

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}"
        answer = httpx.get(url, params=parameters, trust_env=False, timeout=30)
        content: dict[str, Any] = answer.json()
        assert content["status"] == "success", content
        return content

    def _server(self, name: str, *arguments: str) -> Server:
        return Server(name, [*REPUT, *arguments], self.directory, {})

    def _config(self) -> Path:
        """Write the scrape jobs of ops/ with these ports, and its rules with short times."""
        config = yaml.safe_load((OPS / "prometheus" / "scrape.yml").read_text("utf-8"))
        assert [job["job_name"] for job in config["scrape_configs"]] == list(JOBS)
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [f"127.0.0.1:{self.ports[job['job_name']]}"]}]
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        text = re.sub(r"for: \w+", "for: 1s", ALERTS.read_text("utf-8"))
        text = re.sub(r"/ 1000 > \d+", f"/ 1000 > {STUCK_SECONDS}", text)
        (self.directory / "alerts.yml").write_text(text)
        path = self.directory / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        return path

    def _write(self) -> None:
        """Append messages until the end, as a broker does."""
        with BulkWriter(self.store, self.golden.config) as writer:
            while not self._stop.wait(0.5):
                writer.append_many(TEMPLATES, 30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return the running site."""
    kafka = KafkaServer(tmp_path_factory.mktemp("kafka"))
    kafka.start()
    try:
        site = Site(tmp_path_factory.mktemp("site"), kafka)
        site.start()
        yield site
        site.stop()
    finally:
        kafka.kill()


def wait_until_empty(missing: Callable[[], list[str]], seconds: float = SECONDS) -> None:
    """Wait until nothing is missing; the failure names what is."""
    deadline = time.monotonic() + seconds
    while missing() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert missing() == []


def concrete(expression: str) -> str:
    """Return an expression of the dashboard with its variables replaced."""
    text = expression.replace("$__rate_interval", "30s")
    return re.sub(r"\$(cluster|node_id)", ".*", text)


def test_every_target_is_up_and_every_metric_of_a_rule_or_panel_is_scraped(site: Site) -> None:
    def missing() -> list[str]:
        up = {s["metric"]["job"] for s in site.query("up == 1")}
        return sorted(set(JOBS) - up)

    wait_until_empty(missing)
    expressions = [*(e for _, e in panel_queries()), *(rule["expr"] for rule in rules())]
    names = {name for expression in expressions for name in metric_names(expression)}

    def unknown() -> list[str]:
        scraped = {s["metric"]["__name__"] for s in site.query('{__name__=~".+"}')}
        scraped = {re.sub("_(bucket|sum|count)$", "", name) for name in scraped}
        return sorted(names - scraped - EMPTY.keys())

    wait_until_empty(unknown)


def test_every_query_of_the_dashboard_returns_data(site: Site) -> None:
    def empty() -> list[str]:
        return [
            f"{title}: {expression}"
            for title, expression in panel_queries()
            if not EMPTY.keys() & set(metric_names(expression))
            if not site.query(concrete(expression))
        ]

    wait_until_empty(empty)


def test_counts_are_those_of_the_store(site: Site) -> None:
    wait_for(lambda: bool(site.query("reput_mirror_messages_total > 800")), "mirrored", SECONDS)
    (lag,) = site.query('reput_consumer_lag_messages{topic="MyTopic",consumer_group="CG"}')
    assert lag["metric"]["node_id"] == "broker-a"
    assert lag["metric"]["is_system"] == "false"
    (done,) = site.query("reput_dispatch_messages_total")
    assert float(done["value"][1]) > sum(site.golden.scenario["messages_put"].values())


def test_a_dispatch_that_is_stuck_raises_its_alert_and_fails_its_health_check(site: Site) -> None:
    wait_for(lambda: "ReputDispatchStuck" not in site.firing(), "without the alert", SECONDS)
    assert site.health("reput-dispatch") == (200, "ok\n")
    (jvm,) = children(site.dispatch.pid)
    os.kill(jvm, signal.SIGSTOP)
    try:
        wait_for(lambda: "ReputDispatchStuck" in site.firing(), "firing", SECONDS)
        code, text = site.health("reput-dispatch")
        assert code == 503
        assert text.startswith("stuck: no progress from offset ")
        by_job = site.query(f"reput_dispatch_stuck_milliseconds > {STUCK_SECONDS * 1000}")
        assert {s["metric"]["job"] for s in by_job} == {"reput-dispatch", "reput-serve"}
    finally:
        os.kill(jvm, signal.SIGCONT)
    wait_for(lambda: "ReputDispatchStuck" not in site.firing(), "resolved", SECONDS)
    assert site.health("reput-dispatch") == (200, "ok\n")
