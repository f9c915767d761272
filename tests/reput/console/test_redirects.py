"""A path that ends with a slash leads to the same path without it, and never elsewhere."""

import socket

import pytest

from tests.reput.console.conftest import Made
from tests.support.consoles import SECONDS


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/brokers/b/messages/?key=a%2Fb", "/brokers/b/messages?key=a%2Fb"),
        ("/brokers/b/", "/brokers/b"),
        ("/api/brokers/b/status//", "/api/brokers/b/status"),
        ("//other.example//", "/other.example"),
        ("/%2F%2Fother.example/", "/other.example"),
        ("/%5Cother.example/", "/%5Cother.example"),
    ],
)
def test_a_slash_at_the_end_redirects_within_the_console(
    made: Made, path: str, location: str
) -> None:
    host, port = made.console.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), SECONDS) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = s.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 307 ")
    assert f"\r\nlocation: {location}\r\n" in answer
