"""Pages, searches and tails of a console beside a dispatch at full speed: no wrong answer, no leak.

``python -m tests.stress.console [SECONDS] [--peak-mb MB]`` (default: 600, 1024). One process
appends, dispatches, expires, and swaps in a rebuild from time to time; ``reput serve`` shows its
store. Threads ask for pages, search in every format, leave in the middle, and tail. Message n
follows from n alone, so each answer can be checked. Memory and file descriptors of the server are
printed after a fifth of the time and at the end.

Hostile clients (``hostile.py``) do their worst meanwhile, and until the server has ended. One
process asks for pages as an ordinary client and takes the times. Exits with 1 after a wrong answer,
if of 100 pages more than one took longer than a second, if the end took longer than ten, or if the
server's peak of resident memory is above MB. Needs two cores without other load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import httpx

from checkpoints.output import DispatchOutput
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from streaming.sinks.dispatch_sink import DispatchSink
from tests.stress.reads import (
    CONF,
    CONFIG,
    COUNTS,
    KEYS,
    QUEUES,
    TOPICS,
    message,
    number_of,
)
from tests.support.dispatching import HastyDisk
from tests.support.rebuilding import rebuild_all

FILES_KEPT = 24
SWAP_SECONDS = 5.0
PAGERS, SEARCHERS, TAILS, IDLE_TAILS = 2, 2, 4, 20
PAGE_SECONDS_MAX, END_SECONDS_MAX = 1.0, 10.0
_PAGE_PAUSE = 0.05
_TIMEOUT = 60.0
_PROJECT = Path(__file__).parents[2]

# --- the process that writes -------------------------------------------------------------------


def write(directory: Path, seconds: float) -> None:
    """Append and dispatch in batches of any size; expire old files; swap in a rebuild."""
    random, store, out = Random(1), directory / "store", directory / "out"
    counts = os.open(directory / "counts", os.O_RDWR | os.O_CREAT)
    n, deadline, swapped, swaps = 0, time.monotonic() + seconds, time.monotonic(), 0
    with CommitLogWriter(store, CONFIG, disk=HastyDisk()) as writer:
        owned, sink = _open(store, out)
        while time.monotonic() < deadline:
            for _ in range(random.choice([1, 3, 20, 200, 1000])):
                writer.append(message(n))
                n += 1
            _dispatch(owned, sink)
            for file in sorted((store / "commitlog").iterdir())[:-FILES_KEPT]:
                file.unlink()
            os.pwrite(counts, COUNTS.pack(owned.progress.messages, n), 0)
            time.sleep(random.choice([0, 0, 0.001, 0.02]))
            if time.monotonic() - swapped > SWAP_SECONDS:
                sink.close()
                rebuild_all(store, out, CONFIG, disk=HastyDisk(), batch_bytes=1 << 20)
                owned, sink = _open(store, out)
                swapped, swaps = time.monotonic(), swaps + 1
        sink.close()
    sys.stdout.write(json.dumps({"messages": n, "swaps": swaps}))


def _open(store: Path, out: Path) -> tuple[DispatchOutput, DispatchSink]:
    owned = DispatchOutput.open(out, store, CONFIG, disk=HastyDisk())
    return owned, DispatchSink(owned, CONFIG)


def _dispatch(owned: DispatchOutput, sink: DispatchSink) -> None:
    planner, scanner = LogPlanner(owned.log, lambda: False), Scanner(CONFIG)
    plan = planner.plan(owned.progress.reput_from_offset, max_bytes=UNLIMITED)
    sink.apply([stretch for part in plan.ranges for stretch in scanner.read(part)])


# --- the clients -------------------------------------------------------------------------------


class Hammer:
    """The clients of one console, and what they found."""

    def __init__(self, url: str, directory: Path, stop: threading.Event) -> None:
        self.asked: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url = url
        self._stop = stop
        self._counts = os.open(directory / "counts", os.O_RDONLY)
        self._seen: list[int] = [0]  # commit log offsets of messages

    def run(self, seed: int, asks: list[Callable[[httpx.Client, Random], None]]) -> None:
        """Ask in turn until the time is up."""
        random = Random(seed)
        with httpx.Client(base_url=self._url, timeout=_TIMEOUT) as client:
            while not self._stop.is_set():
                ask = random.choice(asks)
                try:
                    ask(client, random)
                except Exception as e:  # noqa: BLE001 - the main thread reports it
                    if not self._stop.is_set():
                        self.wrong.append(f"{ask.__name__}: {e!r}"[:1000])
                self.asked[ask.__name__] += 1

    def dispatched(self) -> int:
        return int(COUNTS.unpack(os.pread(self._counts, COUNTS.size, 0))[0])

    def ask_page(self, client: httpx.Client, random: Random) -> None:
        names = [
            "",
            "/groups",
            "/health",
            "/messages",
            "/tail",
            "/pending",
            "/topics/TopicA",
            "/messages?run=1",
        ]
        path = f"/brokers/b{random.choice(names)}"
        found = client.get(path)
        assert found.status_code == 200 or (path.endswith("=1") and found.status_code == 429), path
        assert client.get("/healthz").text == client.get("/livez").text == "ok\n"

    def ask_topic(self, client: httpx.Client, random: Random) -> None:
        topic, least = random.choice(TOPICS), self.dispatched()
        found = client.get(f"/api/brokers/b/topics/{topic}")
        assert found.status_code == 200, found.text
        queues = found.json()["queues"]
        assert [q["queue_id"] for q in queues] == list(range(min(QUEUES, len(queues))))
        for queue in queues:
            last = number_of(topic, queue["queue_id"], queue["max_offset"])
            assert last >= least, (queue, least)
        for m in found.json()["newest"]:
            self._seen = [*self._seen[-50:], _check_summary(m)["commit_log_offset"]]

    def ask_message(self, client: httpx.Client, random: Random) -> None:
        offset = random.choice(self._seen)
        found = client.get(f"/api/brokers/b/messages/{offset}")
        if found.status_code == 404:
            first = client.get("/api/brokers/b/status").json()["log_min_offset"]
            assert offset < first, found.text
            return
        assert found.status_code == 200, found.text
        m = _check_full(found.json())
        place = m["position"]["queue"]
        if place is not None:
            assert place["queue_offset"] == m["queue_offset"]

    def ask_search(self, client: httpx.Client, random: Random) -> None:
        """Search by key: every message of the key between the first and the last is found."""
        key, order = random.randrange(KEYS), random.choice(["newest", "oldest"])
        params: dict[str, Any] = {"key": f"k{key}", "order": order, "max": 500}
        found = client.get("/api/brokers/b/messages", params=params)
        if found.status_code == 429:
            self.asked["refused"] += 1
            return
        assert found.status_code == 200, found.text
        messages = found.json()["messages"]
        messages = messages[::-1] if order == "newest" else messages
        begin = client.get("/api/brokers/b/status").json()["log_min_offset"]
        for before, after in pairwise(messages):  # files may expire while a search reads them
            is_next = _number(_check_full(after)) == _number(_check_full(before)) + KEYS
            assert is_next or before["commit_log_offset"] < begin, (before, after)

    def ask_stream(self, client: httpx.Client, random: Random) -> None:
        """Read a part of a search, and leave."""
        form, read = random.choice(["sse", "jsonl", "csv"]), random.randrange(1, 300)
        params = {"format": form, "words": random.choice(["1.", "nothing"])}
        with client.stream("GET", "/api/brokers/b/messages", params=params) as response:
            if response.status_code == 429:
                self.asked["refused"] += 1
                return
            assert response.status_code == 200, response.read()
            for _, line in zip(range(read), response.iter_lines(), strict=False):
                if form == "jsonl":
                    _check_full(json.loads(line))
                assert not line.startswith("event: failed"), line

    def tail(self, seed: int) -> None:
        """Check that a tail misses nothing, except what it says that it skipped."""
        with httpx.Client(base_url=self._url, timeout=_TIMEOUT) as client:
            while not self._stop.is_set():
                try:
                    self._tail_once(client, Random(seed))
                except Exception as e:  # noqa: BLE001 - the main thread reports it
                    if not self._stop.is_set():
                        self.wrong.append(f"tail: {e!r}"[:1000])

    def _tail_once(self, client: httpx.Client, random: Random) -> None:
        last, left = -1, random.randrange(1000, 100_000)
        with client.stream("GET", "/api/brokers/b/tail") as response:
            assert response.status_code == 200
            for name, data in _events(response.iter_lines(), self._stop):
                if not left:
                    return
                if name != "message":
                    self.asked[f"tail {name}"] += 1
                    last = -1
                    continue
                n = _number(_check_summary(data))
                assert last in (-1, n - 1), (last, n)
                last, left = n, left - 1
                self.asked["tail messages"] += 1

    def idle(self) -> None:
        """Open tails of which nothing is read."""
        with httpx.Client(base_url=self._url, timeout=_TIMEOUT) as client:
            while not self._stop.is_set():
                with client.stream("GET", "/api/brokers/b/tail"):
                    self._stop.wait(20)


def _events(lines: Iterator[str], stop: threading.Event) -> Iterator[tuple[str, Any]]:
    name = ""
    for line in lines:  # heartbeats too
        if stop.is_set():
            return
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def _number(m: dict[str, Any]) -> int:
    return number_of(m["topic"], m["queue_id"], m["queue_offset"])


def _check_summary(m: dict[str, Any]) -> dict[str, Any]:
    expected = message(_number(m))
    assert expected.body.decode()[:200] == m["body_head"], m
    assert expected.properties["TAGS"] == m["tags"]
    return m


def _check_full(m: dict[str, Any]) -> dict[str, Any]:
    expected = message(_number(m))
    assert (expected.body.decode(), dict(expected.properties)) == (m["body"], m["properties"])
    return m


# --- the client that takes the times -----------------------------------------------------------

PAGES = ("", "/groups", "/health", "/messages", "/tail", "/topics/TopicA")


def time_pages(url: str, seconds: float) -> None:
    """Ask for pages, one after the other; print how long they took."""
    took: list[tuple[float, str]] = []
    deadline, random = time.monotonic() + seconds, Random(0)
    with httpx.Client(base_url=url, timeout=_TIMEOUT) as client:
        while time.monotonic() < deadline:
            path, began = f"/brokers/b{random.choice(PAGES)}", time.monotonic()
            client.get(path).raise_for_status()
            took.append((time.monotonic() - began, path))
            time.sleep(_PAGE_PAUSE)
    took.sort()
    at = {"p50": len(took) // 2, "p99": len(took) * 99 // 100, "max": -1}
    figures = {name: round(took[n][0], 3) for name, n in at.items()}
    sys.stdout.write(json.dumps({"pages timed": len(took), **figures, "slowest": took[-1][1]}))


# --- all of them -------------------------------------------------------------------------------


def stress(directory: Path, seconds: float) -> dict[str, Any]:
    """Run everything for some seconds; return counts, wrong answers, times, and sizes."""
    (directory / "store").mkdir(parents=True)
    (directory / "store" / "broker.conf").write_text(CONF)
    pair = f"b={directory / 'store'}:{directory / 'out'}"
    run = "from reput.cli import main; main()"
    with ExitStack() as stack:
        writer = _start(
            stack, "-m", "tests.stress.console", "--write", str(directory), str(seconds + 5)
        )
        counts = directory / "counts"
        while not counts.exists() or counts.stat().st_size < COUNTS.size:
            assert writer.poll() is None
            time.sleep(0.05)
        server = _start(stack, "-c", run, "serve", pair, "--port", "0", "--json")
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        wrong = directory / "wrong"
        wrong.touch()
        attack = _start(stack, "-m", "tests.stress.hostile", url, str(wrong))
        result = _hammer(stack, url, directory, server.pid, seconds)
        result["wrong"] += wrong.read_text().splitlines()  # answers of the end do not count
        began = time.monotonic()
        server.terminate()
        result |= {"exit code": server.wait(_TIMEOUT), "seconds to end": time.monotonic() - began}
        assert attack.poll() is None
        attack.kill()
        return result | json.loads(writer.communicate()[0])


def _hammer(
    stack: ExitStack, url: str, directory: Path, server: int, seconds: float
) -> dict[str, Any]:
    stop = threading.Event()
    hammer = Hammer(url, directory, stop)
    pages = [hammer.ask_page, hammer.ask_topic, hammer.ask_message]
    searches = [hammer.ask_search, hammer.ask_stream]
    threads = [threading.Thread(target=hammer.run, args=(n, pages)) for n in range(PAGERS)]
    threads += [threading.Thread(target=hammer.run, args=(n, searches)) for n in range(SEARCHERS)]
    threads += [threading.Thread(target=hammer.tail, args=(n,)) for n in range(TAILS)]
    threads += [threading.Thread(target=hammer.idle) for _ in range(IDLE_TAILS)]
    timer = _start(stack, "-m", "tests.stress.console", "--time-pages", url, str(seconds))
    for thread in threads:
        thread.start()
    time.sleep(seconds / 5)
    begin = _size(server)
    time.sleep(seconds * 4 / 5)
    end = _size(server)
    stop.set()
    for thread in threads:
        thread.join()
    sizes = {"begin": begin, "end": end, "peak MB": end["peak MB"]}
    times = json.loads(timer.communicate()[0])
    return {"asked": hammer.asked, "wrong": hammer.wrong, **sizes, **times}


def _size(pid: int) -> dict[str, int]:
    """Return private memory and the peak of all memory in MB, descriptors and threads.

    Maps of files are shared: they count for the peak only.
    """
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in status)
    return {
        "private MB": int(values["RssAnon"].split()[0]) // 1024,
        "peak MB": int(values["VmHWM"].split()[0]) // 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(values["Threads"]),
    }


def _start(stack: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """Start Python; the process is killed with the stack."""
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, cwd=_PROJECT, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def faults(result: dict[str, Any], peak_mb: float) -> list[str]:
    """Return what of a run is not as it must be."""
    limits = {"p99": PAGE_SECONDS_MAX, "seconds to end": END_SECONDS_MAX, "peak MB": peak_mb}
    found = [f"{name}: {result[name]}" for name, most in limits.items() if result[name] > most]
    return [*result["wrong"], *found, *(["exit code"] if result["exit code"] else [])]


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]), float(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--time-pages"]:
        time_pages(sys.argv[2], float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.stress.console")
    parser.add_argument("seconds", type=float, nargs="?", default=600.0)
    parser.add_argument("--peak-mb", type=float, default=1024.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-stress-") as directory:
        result = stress(Path(directory), given.seconds)
    found = faults(result, given.peak_mb)
    sys.stdout.write(json.dumps(result | {"faults": found}, indent=1) + "\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
