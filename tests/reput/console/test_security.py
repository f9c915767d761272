"""Who may ask what, and what no answer contains."""

import base64
import html
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.console import server
from reput.console.security import CONTENT_SECURITY_POLICY, host_name
from tests.reput.console.conftest import Made
from tests.support.consoles import Console, connect, console, source
from tests.support.stores.written import make_store

TOKEN = "a token of enough characters"
PAGES = (
    "/",
    "/brokers/b",
    "/api/brokers",
    "/static/x",
    "/nowhere",
    "/api/brokers/b/tail",
    "/healthz",
    "/livez",
)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Console]:
    make_store(tmp_path, 10)
    with console(source(tmp_path), token=TOKEN) as c:
        yield c


def basic(password: str, user: str = "x") -> dict[str, str]:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


@pytest.mark.parametrize("path", PAGES)
def test_every_answer_has_the_headers(made: Made, path: str) -> None:
    for method in ("GET", "HEAD", "POST"):
        headers = {"Host": "localhost"}
        with made.console.client.stream(method, path, headers=headers) as response:
            found = response.headers
        assert found["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert found["x-content-type-options"] == "nosniff"
        assert found["referrer-policy"] == "no-referrer"
        assert found["cross-origin-opener-policy"] == "same-origin"
        assert found["cross-origin-resource-policy"] == "same-origin"
        assert ("max-age" if path.startswith("/static/") else "no-store") in found["cache-control"]
        assert not {"server", "set-cookie", "access-control-allow-origin"} & set(found)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/brokers", "/healthz", "/brokers/b/messages"])
def test_nothing_can_be_written(made: Made, method: str, path: str) -> None:
    response = made.console.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("localhost@evil.example", 421),
        ("evil.example@localhost", 421),
        ("localhost/evil", 421),
        ("localhost:x", 421),
        ("[::1", 421),
        ("169.254.169.254", 421),
    ],
)
def test_only_the_console_s_own_names_are_answered(made: Made, host: str, status: int) -> None:
    for path in ("/api/brokers", "/healthz", "/brokers/b"):
        response = made.console.client.get(path, headers={"Host": host})
        assert response.status_code == status


def test_an_allowed_host_is_answered(tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    with console(source(tmp_path), allowed_hosts=frozenset({"console.example"})) as c:
        for host, status in (("Console.Example:443", 200), ("localhost", 421)):
            assert c.client.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", "a"),
        ("A:1", "a"),
        ("[::1]:1", "::1"),
        ("", ""),
        ("a b", "a b"),
        ("a\tb", ""),
        ("u@a", ""),
    ],
)
def test_the_name_in_a_host_header(given: str, expected: str) -> None:
    assert expected == host_name(given)


@pytest.mark.parametrize(
    ("site", "status"),
    [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)],
)
def test_other_sites_cannot_use_the_api(made: Made, site: str, status: int) -> None:
    headers = {"Sec-Fetch-Site": site}
    response = made.console.client.get("/api/brokers", headers=headers)
    assert response.status_code == status
    assert made.console.client.get("/brokers/b", headers=headers).status_code == status
    assert made.console.client.get("/metrics", headers=headers).status_code == status
    link = headers | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert made.console.client.get("/brokers/b", headers=link).status_code == 200


LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
OPENED_BY_LINKS = {
    "/",
    "/brokers/b",
    "/brokers/b/groups",
    "/brokers/b/groups/g",
    "/brokers/b/topics/TopicA",
    "/brokers/b/messages/0",
    "/brokers/b/health",
}


def test_a_link_of_another_site_starts_no_scan_and_no_download(tmp_path: Path) -> None:
    make_store(tmp_path, 30)
    values = {"{broker}": "b", "{group:path}": "g", "{topic:path}": "TopicA", "{offset}": "0"}
    opened = set()
    with console(source(tmp_path)) as c:
        for route in c.app.routes:
            path = str(getattr(route, "path", ""))
            for name, value in values.items():
                path = path.replace(name, value)
            for query in ("", "?run=1", "?r%75n=1", "?%72%75%6e=1", "?run=1&run=1", "?by=queue"):
                for method in ("GET", "HEAD"):
                    answer = c.client.request(method, path + query, headers=LINK)
                    assert answer.status_code in (200, 302, 403, 404, 503), (
                        path,
                        answer.status_code,
                    )
                    assert "content-disposition" not in answer.headers
                    if answer.status_code != 403:
                        opened.add(path)
        assert opened == OPENED_BY_LINKS
        broker = c.brokers["b"]
        scans = [broker.pending, *broker.usage.values()]
        assert not any(cache.is_running or cache.last for cache in scans)
        assert not c.app.state.searches._jobs
        assert not len(broker.monitor.tails)


@pytest.mark.parametrize(
    "page", ["messages?run=1&topic=a%26b%22", "tail", "pending", "usage?by=tag"]
)
def test_a_link_of_another_site_continues_by_one_of_the_console(made: Made, page: str) -> None:
    answer = made.console.client.get(f"/brokers/b/{page}", headers=LINK)
    assert answer.status_code == 403
    (url,) = re.findall(r'id="continue" href="([^"]*)"', answer.text)
    assert html.unescape(url) == f"/brokers/b/{page}"
    assert made.console.get(html.unescape(url)).status_code == 200
    assert "search.js" not in answer.text
    assert "data-live" not in answer.text


def test_without_the_token_only_probes_answer(guarded: Console) -> None:
    for path in ("/", "/brokers/b", "/api/brokers", "/static/x", "/metrics", "/nowhere"):
        response = guarded.get(path)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Basic realm="reput", charset="UTF-8"'
        assert str(guarded.brokers["b"].store_root) not in response.text
    assert guarded.get("/healthz").text == guarded.get("/livez").text == "ok\n"


@pytest.mark.parametrize(
    "headers",
    [
        basic("wrong"),
        basic(""),
        basic(TOKEN[:-1]),
        basic(TOKEN + "x"),
        {"Authorization": "Basic"},
        {"Authorization": "Basic ä".encode("latin-1").decode("latin-1")},
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": "Basic !!!!"},
        {"Authorization": "Basic " + base64.b64encode(TOKEN.encode()).decode()},
    ],
)
def test_a_wrong_token_is_refused(guarded: Console, headers: dict[str, str]) -> None:
    raw = [(n.encode(), v.encode("latin-1")) for n, v in headers.items()]
    assert guarded.client.get("/api/brokers", headers=raw).status_code == 401
    assert guarded.client.get(f"/api/brokers?token={TOKEN}", headers=raw).status_code == 401


@pytest.mark.parametrize("user", ["", "admin", "ü"])
def test_the_token_is_accepted_with_any_user_name(guarded: Console, user: str) -> None:
    assert guarded.client.get("/api/brokers", headers=basic(TOKEN, user)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/....//app.py",
        "/static//etc/passwd",
        "/static/%00",
        "/brokers/b/topics/..%2f..%2f..%2fetc",
        "/brokers/b/topics/%00",
        "/brokers/b/topics/" + "x" * 3000,
        "/brokers/%2e%2e",
        "/brokers/<script>",
        "/brokers/b/messages/-1",
        "/brokers/b/messages/1e3",
        "/brokers/b/messages/٣",
        "/brokers/b/messages/" + "9" * 30,
        "/brokers/b/messages/1",
        "/brokers/b/messages/99999999999",
    ],
)
def test_a_hostile_path_is_an_error_without_a_trace(made: Made, path: str) -> None:
    with connect(made.console) as s:
        target = "".join(
            c if c.isascii() else "".join(f"%{b:02x}" for b in c.encode()) for c in path
        )
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: s.recv(65536), b"")).decode()
    status = int(answer.split()[1])
    assert status in (400, 404)
    assert "Traceback" not in answer
    assert "root:" not in answer
    assert "<script>" not in answer.partition("\r\n\r\n")[2].replace("<script type", "")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("filter=" + "x" * 9000, 414),
        ("&".join(["key=a"] * 300), 414),
        ("page=0", 400),
        ("page=x", 400),
        ("page=1&page=2", 400),
        ("sort=size", 400),
        ("page=99999", 200),
        ("filter=%00%ff%3Cscript%3E", 200),
    ],
)
def test_hostile_parameters_of_pages(made: Made, query: str, status: int) -> None:
    for path in ("/brokers/b", "/api/brokers/b"):
        response = made.console.get(f"{path}?{query}")
        assert response.status_code == status
        is_html = response.headers["content-type"].startswith("text/html")
        assert not (is_html and "<script>" in response.text)


def test_errors_name_the_parameter(made: Made) -> None:
    response = made.console.get("/api/brokers/b", page="x")
    assert json.loads(response.text) == {
        "error": "page: 'x' is not an integer from 1 to 1000000",
        "status": 400,
        "parameter": "page",
    }


def test_a_client_that_does_not_send_its_request_is_disconnected(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.3)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        with connect(made.console) as s:
            s.sendall(sent)
            assert _ends(s)


def test_the_next_request_of_a_connection_must_arrive_too(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.3)
    with connect(made.console) as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok\n"):
            answer += s.recv(65536)
        s.sendall(b"GET /")
        assert _ends(s)


def _ends(s: socket.socket) -> bool:
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


def test_invalid_requests_are_answered_with_400(made: Made) -> None:
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ):
        with connect(made.console) as s:
            s.sendall(sent)
            assert s.recv(65536).startswith(b"HTTP/1.1 4")


def test_head_ends_at_once(made: Made) -> None:
    for path in ("/api/brokers/b/tail", "/api/brokers/b/messages?format=sse"):
        response = made.console.client.head(path)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["content-type"].startswith("text/event-stream")
