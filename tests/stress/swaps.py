"""Reads while the files of their OUTPUT are replaced repeatedly: no error, no wrong answer.

``python -m tests.stress.swaps [SECONDS]`` (default: 600). One process replaces all of OUTPUT, the
queues of one topic, and the remains of an interrupted batch in turn. Others read, with several
threads that share a store and one that has its own. ``BUSY`` more processes keep the cores busy.
The log does not change, so every answer is known.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checkpoints.output import DispatchOutput
from store import Boundary, MessageStore
from store.io.disk import Disk
from tests.support.dispatching import dispatch_all
from tests.support.rebuilding import rebuild_all
from tests.support.stores.aged import sent
from tests.support.verify_stores import VARIANTS, write_store

CONFIG = VARIANTS["ext"]
READERS, THREADS, BUSY = 2, 3, 4
_BUSY_LOOP = "while True: pass"


# --- the process that replaces -----------------------------------------------------------------


def swap_whole(store: Path, output: Path) -> None:
    rebuild_all(store, output, CONFIG, disk=Disk(), batch_bytes=1 << 20)


def roll_back(store: Path, output: Path) -> None:
    """Begin a batch that touches no file, and leave it to the next owner."""
    owned = DispatchOutput.open(output, store, CONFIG)
    owned.begin_batch([], None)
    owned.close(clean=False)


REPLACE: tuple[Callable[[Path, Path], None], ...] = (swap_whole, roll_back)


def replace(directory: Path, seconds: float) -> dict[str, int]:
    """Replace in turn until the time is up; return the count of each kind."""
    done: Counter[str] = Counter()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or len(done) < len(REPLACE):
        for change in REPLACE:
            change(directory / "store", directory / "out")
            done[change.__name__] += 1
    dispatch_all(directory / "store", directory / "out", CONFIG, disk=Disk)
    return done


# --- the readers' processes --------------------------------------------------------------------

Questions = dict[str, Callable[[MessageStore], Any]]


def questions() -> Questions:
    """Return the queries. Their answers contain no path and no time of this run."""

    def get(tags: str) -> Callable[[MessageStore], Any]:
        def ask(s: MessageStore) -> Any:
            first, end = s.min_offset_in_queue("T", 0), s.max_offset_in_queue("T", 0)
            found = [s.get_message("T", 0, at, tags=tags) for at in range(first, end, 11)]
            return (
                first,
                end,
                [
                    (r.status, r.next_begin_offset, [(m.queue_offset, m.body) for m in r.messages])
                    for r in found
                ],
            )

        return ask

    def by_time(s: MessageStore) -> Any:
        times = [s.message_store_timestamp("T", 0, at) for at in range(0, 60, 9)]
        return times, [
            s.offset_in_queue_by_time("T", 0, at, boundary) for at in times for boundary in Boundary
        ]

    def query(s: MessageStore) -> Any:
        found = s.query_message("T", "common", max_count=64)
        return [m.queue_offset for m in found.messages], found.truncated

    def topics(s: MessageStore) -> Any:
        return {topic: s.queue_ids(topic) for topic in s.topics()}

    return {
        "get": get("*"), "tags": get("t0 || t2"), "time": by_time, "query": query, "topics": topics,
    }  # fmt: skip


def read(directory: Path, seconds: float) -> dict[str, Any]:
    """Query in several threads; return the count and the wrong answers."""
    directories, asked, wrong = (directory / "store", directory / "out"), Counter[str](), []
    expected = json.loads((directory / "expected").read_text())
    deadline = time.monotonic() + seconds

    def ask(s: MessageStore) -> None:
        while time.monotonic() < deadline:
            for name, question in questions().items():
                try:
                    answer = to_json(question(s))
                except Exception as e:  # noqa: BLE001 - the parent process reports it
                    answer = repr(e)
                asked[name] += 1
                if answer != expected[name]:
                    wrong.append(f"{name}: {answer}"[:2000])

    with MessageStore.open(*directories) as shared, MessageStore.open(*directories) as own:
        stores = [shared] * THREADS + [own]
        threads = [threading.Thread(target=ask, args=(s,)) for s in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"asked": asked, "wrong": wrong}


def to_json(answer: Any) -> str:
    return json.dumps(answer, default=repr)


# --- all of them -------------------------------------------------------------------------------


def stress(directory: Path, seconds: float) -> dict[str, Any]:
    """Run all processes for some seconds; return the counts, with wrong answers as ``wrong``."""
    store, output = write_store(directory, sent(60)), directory / "out"
    assert store == directory / "store"
    dispatch_all(store, output, CONFIG, max_bytes=2000)
    with MessageStore.open(store, output) as s:
        expected = {name: to_json(question(s)) for name, question in questions().items()}
    (directory / "expected").write_text(json.dumps(expected))
    with _busy():
        roles = ["--replace"] + ["--read"] * READERS
        processes = [_start(role, directory, seconds) for role in roles]
        try:
            results = [json.loads(process.communicate()[0]) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    replaced, *found = results
    asked = sum((Counter(f["asked"]) for f in found), Counter[str]())
    return {"replaced": replaced, "asked": asked, "wrong": [w for f in found for w in f["wrong"]]}


def _start(role: str, directory: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.stress.swaps", role, str(directory), str(seconds)]
    project = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True)


@contextmanager
def _busy() -> Iterator[None]:
    """Keep the cores busy inside the block."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    roles = {"--replace": replace, "--read": read}
    if sys.argv[1:2] and sys.argv[1] in roles:
        result: Any = roles[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]))
    else:
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
        with tempfile.TemporaryDirectory(prefix="reput-stress-") as directory:
            result = stress(Path(directory), seconds)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
