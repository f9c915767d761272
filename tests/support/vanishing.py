"""Read a store while a thread truncates one of its log files in place and writes it again.

``python -m tests.support.vanishing READER STORE OUTPUT``: a process of its own, because a read of
bytes that vanished would end it (SIGBUS). Each read must be right or an error, and right once the
file is whole. Prints what happened, as JSON.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from store import MessageStore
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig, load_config
from store.dump.file import dump_file
from store.errors import StoreError
from store.io.guarded_map import fault_count
from store.io.mapped_file import file_name
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from streaming.queries.verify import verify
from tests.support.consoles import console, source
from tests.support.dispatching import dispatch_all

SECONDS = 30.0  # until bytes must have vanished under a read
FAULTS = 3
PIECE = 64 * 1024
Read = Callable[[], object]


class DamageFoundError(Exception):
    """A read returned damage, which is as good as the right answer."""


@dataclass(frozen=True)
class Place:
    """A store, its output, and what is closed at the end."""

    store_root: Path
    output: Path
    opened: ExitStack

    @property
    def log_file(self) -> Path:
        return self.store_root / "commitlog" / file_name(0)

    @property
    def config(self) -> StoreConfig:
        return load_config(self.store_root)

    def store(self) -> MessageStore:
        return self.opened.enter_context(MessageStore.open(self.store_root, self.output))


class Damaging:
    """Truncates a file in place and writes it again, until its block ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._content = path, path.read_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._path.open("r+b", buffering=0) as f:
                f.truncate(0)
                for at in range(0, len(self._content), PIECE):
                    f.write(self._content[at : at + PIECE])
            self._ended.wait(0.001)  # whole for a moment


def get(place: Place) -> Read:
    store = place.store()

    def read() -> object:
        at, found = 0, []
        while messages := store.get_message("T", 0, at).messages:
            found += [(m.queue_offset, bytes(m.body)) for m in messages]
            at = messages[-1].queue_offset + 1
        return found

    return read


def times(place: Place) -> Read:
    store = place.store()
    return lambda: [store.message_store_timestamp("T", 0, n) for n in range(0, 500, 7)]


def keys(place: Place) -> Read:
    store = place.store()
    asked = [f"k{n}" for n in range(0, 500, 7)]
    return lambda: [[bytes(m.record) for m in store.query_message("T", k).messages] for k in asked]


def arrow(place: Place) -> Read:
    store = place.store()
    return lambda: store.read_arrow("T", 0, 0).read_all().to_pydict()


def scan(place: Place) -> Read:
    def read() -> object:
        log = CommitLog([place.store_root / "commitlog"], place.config)
        found: list[int] = []
        for part in LogPlanner(log, lambda: True).plan(0).ranges:
            for stretch in Scanner(place.config).read(part):
                if isinstance(stretch, Damage):
                    raise DamageFoundError
                found += stretch.commit_log_offset.tolist()
        return found

    return read


def search(place: Place) -> Read:
    config, wanted = place.config, MessageFilter(body="x+")
    return lambda: [m.queue_offset for m in LogSearch(place.store_root, config, wanted).messages()]


def rebuild(place: Place) -> Read:
    def read() -> object:
        target = place.output.parent / f"rebuilt-{time.monotonic_ns()}"
        dispatch_all(place.store_root, target, place.config)
        return (target / "consumequeue/T/0" / file_name(0)).read_bytes()

    return read


def verification(place: Place) -> Read:
    return lambda: verify(place.store_root, place.output, place.config).differences


def dump(place: Place) -> Read:
    def read() -> object:
        rows = [row for rows in dump_file(place.log_file).sections for row in rows]
        if any(row.kind in ("damage", "end") for row in rows):
            raise DamageFoundError
        return [(row.kind, row.at) for row in rows]

    return read


def serve(place: Place) -> Read:
    client = place.opened.enter_context(console(source(place.store_root, place.output))).client

    def read() -> object:
        response = client.get("/api/brokers/b/messages", params={"order": "oldest", "body": "x+"})
        if response.status_code == 500:
            raise AssertionError(response.text)
        answer = response.json()
        if response.status_code != 200 or answer["damage"]:
            raise DamageFoundError
        return [m["commit_log_offset"] for m in answer["messages"]]

    return read


READERS = {
    read.__name__: read
    for read in (get, times, keys, arrow, scan, search, rebuild, verification, dump, serve)
}


def main(name: str, store_root: Path, output: Path) -> None:
    """Read until bytes have vanished several times; then read the whole file."""
    with ExitStack() as opened:
        place = Place(store_root, output, opened)
        read = READERS[name](place)
        expected, counts = read(), Counter[str]()
        deadline = time.monotonic() + SECONDS
        with Damaging(place.log_file):
            while fault_count() < FAULTS and time.monotonic() < deadline:
                try:
                    answer = read()
                except (StoreError, DamageFoundError) as e:
                    counts[type(e).__name__] += 1
                else:
                    counts["right" if answer == expected else "wrong"] += 1
        found = {"faults": fault_count(), "is_right": read() == expected, **counts}
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
