"""Clients that try to hold up a console, beside the ordinary ones of ``tests.stress.console``.

``python -m tests.stress.hostile URL FILE`` runs until it is killed. All clients have one address,
which is not that of the ordinary ones: they get 3 of the 4 slots of searches. Each answer whose
status is a wrong one is a line of FILE.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from urllib.parse import quote, urlsplit

ADDRESS = "127.0.0.2"
API = "/api/brokers/b"
# In a process of their own, and with little of the CPU: attackers have machines of their own.
NICENESS = 10
EXPENSIVE = "(?:" + "[.-9]?" * 140 + "){16}c"  # of digits and dots, as the bodies are
TOO_EXPENSIVE = "(?:[.-9]?){1000}" * 6
HALF_REQUESTS, HELD_SECONDS = 60, 15.0
_PAUSE = 0.02
_ABORT = struct.pack("ii", 1, 0)  # close with RST


class Attack:
    """The clients of one console."""

    def __init__(self, port: int, wrong: Path) -> None:
        self._port = port
        self._wrong = wrong

    def run(self) -> None:
        """Run all clients; return never."""
        clients: list[tuple[Callable[[Random], None], int]] = [
            (self.read_nothing, 3),
            (self.send_half, 1),
            (self.open_and_drop, 1),
            (self.match, 2),
            (self.match_tails, 1),
            (self.storm, 2),
            (self.send_many_values, 1),
        ]
        for attack, count in clients:
            for seed in range(count):
                threading.Thread(target=self._repeat, args=(attack, seed), daemon=True).start()
        threading.Event().wait()

    def _repeat(self, attack: Callable[[Random], None], seed: int) -> None:
        random = Random(seed)
        while True:
            with suppress(OSError):  # the console disconnects, or has ended
                attack(random)
            time.sleep(_PAUSE)

    # --- what they do ----------------------------------------------------------------------------

    def read_nothing(self, random: Random) -> None:
        """Ask for a long answer, and read none of it."""
        path = random.choice(["/messages?format=jsonl", "/messages?format=csv", "/tail?n=1000"])
        with self._connect(receive_bytes=4096) as s:
            _send(s, API + path)
            time.sleep(HELD_SECONDS)

    def send_half(self, random: Random) -> None:
        """Open connections, and send half a request on each."""
        opened = [self._connect() for _ in range(HALF_REQUESTS)]
        for s in opened:
            s.sendall(b"GET / HTTP/1.1\r\nHost: loc"[: random.randrange(26)])
        time.sleep(HELD_SECONDS)
        for s in opened:
            s.close()

    def open_and_drop(self, random: Random) -> None:
        """Close a connection at once, or amid an answer."""
        with self._connect() as s:
            path = random.choice(["", API, f"{API}/messages?format=sse", f"{API}/tail"])
            if path:
                _send(s, path)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)

    def match(self, random: Random) -> None:
        """Search with an expression as expensive as allowed, or more expensive."""
        form = random.choice(["sse", "jsonl", "json"])
        self._expect({200, 429}, f"/messages?format={form}&body={quote(EXPENSIVE)}", HELD_SECONDS)
        self._expect({400}, f"/messages?format={form}&body={quote(TOO_EXPENSIVE)}")

    def match_tails(self, random: Random) -> None:
        """Tail with an expensive expression, each time another one."""
        expression = f"{EXPENSIVE}{random.randrange(1000)}"
        self._expect({200}, f"/tail?n=0&body={quote(expression)}", 2.0)

    def storm(self, random: Random) -> None:
        """Ask for the pages that scan the log, without a pause."""
        for _ in range(100):
            by = random.choice(["topic", "day", "queue", "tag", "host"])
            path = random.choice([f"/usage?by={by}", "/pending?state=all", "/pending?kind=delay"])
            self._expect({200}, path)

    def send_many_values(self, _: Random) -> None:
        """Ask with as many values as allowed, and with more."""
        self._expect({200, 429}, "/messages?max=1&" + "&".join(f"key=k{n}" for n in range(198)))
        self._expect({414}, "/messages?" + "&".join(f"key=k{n}" for n in range(5000)))

    # --- connections -----------------------------------------------------------------------------

    def _connect(self, receive_bytes: int | None = None) -> socket.socket:
        s = socket.socket()
        s.settimeout(60.0)
        if receive_bytes is not None:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.bind((ADDRESS, 0))
        s.connect(("127.0.0.1", self._port))
        return s

    def _expect(self, statuses: set[int], path: str, seconds: float = 60.0) -> None:
        """Ask, and read the answer for some seconds; note a status that is not one of these."""
        with self._connect() as s:
            s.settimeout(seconds)
            _send(s, API + path)
            answer = s.recv(12)  # nothing if the console disconnects
            if len(answer) == 12 and int(answer[9:]) not in statuses:
                with self._wrong.open("a") as file:
                    file.write(f"{answer[9:].decode()} {path[:100]}\n")
            deadline = time.monotonic() + seconds
            while s.recv(1 << 16) and time.monotonic() < deadline:
                pass


def _send(s: socket.socket, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    s.sendall(request.encode())


if __name__ == "__main__":
    os.nice(NICENESS)
    Attack(urlsplit(sys.argv[1]).port or 80, Path(sys.argv[2])).run()
