"""The endpoint of --metrics-port: what it answers, to whom, and when its port is taken."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from reput.console.metrics import metric_names
from reput.console.metrics.endpoint import MetricsEndpoint
from reput.console.metrics.metric_names import Node
from store.errors import ConfigError

NODE = Node("C", "B")


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    with MetricsEndpoint("127.0.0.1", 0) as endpoint:
        yield endpoint


def get(endpoint: MetricsEndpoint, path: str = "metrics", **headers: str) -> httpx.Response:
    url = endpoint.url.removesuffix("metrics") + path
    return httpx.get(url, headers=headers, trust_env=False)


def test_it_answers_before_there_is_anything_to_measure(endpoint: MetricsEndpoint) -> None:
    assert get(endpoint, "healthz").text == "ok\n"
    answer = get(endpoint)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "process_open_fds" in answer.text
    assert "reput_" not in answer.text


def test_idle_connections_leave_descriptors_for_the_query(endpoint: MetricsEndpoint) -> None:
    host, port = endpoint.url.removeprefix("http://").removesuffix("/metrics").split(":")
    assert get(endpoint).status_code == 200
    before = len(os.listdir("/dev/fd"))
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), 10))
        with socket.create_connection((host, int(port)), 10) as last:
            assert last.recv(12) == b"HTTP/1.1 503"  # so all before have been accepted
        assert len(os.listdir("/dev/fd")) - before <= 301 + 64
    deadline = time.monotonic() + 20
    while True:
        with suppress(httpx.HTTPError):
            if get(endpoint, "healthz").text == "ok\n":
                return
        assert time.monotonic() < deadline


def test_health_is_503_with_its_reason(endpoint: MetricsEndpoint) -> None:
    reasons = ["stuck: no progress", ""]
    endpoint.show(lambda s: s.add(metric_names.DAMAGE, NODE, 0), lambda: reasons.pop(0))
    sick, well = get(endpoint, "healthz"), get(endpoint, "healthz")
    assert (sick.status_code, sick.text) == (503, "stuck: no progress\n")
    assert (well.status_code, well.text) == (200, "ok\n")
    assert 'reput_damage{cluster="C",node_id="B",node_type="broker"} 0.0' in get(endpoint).text


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "LOCALHOST", "[::1]:80"])
def test_names_of_this_machine_are_answered(endpoint: MetricsEndpoint, host: str) -> None:
    assert get(endpoint, Host=host).status_code == 200


@pytest.mark.parametrize("path", ["metrics", "healthz"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_another_host_is_refused_on_loopback(
    endpoint: MetricsEndpoint, host: str, path: str
) -> None:
    answer = get(endpoint, path, Host=host)
    assert answer.status_code in {400, 421}
    assert "process" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_written(endpoint: MetricsEndpoint, method: str) -> None:
    assert httpx.request(method, endpoint.url, trust_env=False).status_code == 405


def test_other_paths_do_not_exist(endpoint: MetricsEndpoint) -> None:
    assert get(endpoint, "api/brokers").status_code == 404


def test_a_port_in_use_is_named(endpoint: MetricsEndpoint) -> None:
    port = int(endpoint.url.rsplit(":")[-1].split("/")[0])
    with pytest.raises(ConfigError, match=f"--metrics-host 127.0.0.1 --metrics-port {port}: "):
        MetricsEndpoint("127.0.0.1", port)


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(ConfigError, match="--metrics-host no such host"):
        MetricsEndpoint("no such host", 0)


def test_closing_releases_the_port_and_the_thread() -> None:
    with MetricsEndpoint("127.0.0.1", 0) as endpoint:
        assert get(endpoint).status_code == 200
        port = int(endpoint.url.rsplit(":")[-1].split("/")[0])
    assert "reput-metrics" not in {thread.name for thread in threading.enumerate()}
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


def test_beyond_loopback_any_host_is_answered_and_the_endpoint_knows_it() -> None:
    with MetricsEndpoint("0.0.0.0", 0) as endpoint:
        assert not endpoint.is_loopback
        url = endpoint.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(url, headers={"Host": "pod.example"}, trust_env=False).status_code == 200
