"""A live writer, a dispatcher killed every few seconds, and readers: right answers, equal files.

The writer appends to the log in one process and the dispatcher runs in another, which is killed
with SIGKILL and restarted. Readers hammer OUTPUT meanwhile (``tests.stress.reads``). Finally the
OUTPUT is dispatched to the end of the log and compared with an uninterrupted dispatch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from checkpoints.output import DispatchOutput
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from streaming.sinks.dispatch_sink import DispatchSink
from tests.stress.reads import CONF, CONFIG, COUNTS, Hammer, message
from tests.support.dispatching import HastyDisk, assert_same_store, dispatch_all

_PROJECT = Path(__file__).parents[2]


def live(directory: Path, seconds: float, seed: int = 1) -> dict[str, int]:
    """Run for some seconds; return the counts of kills and queries. Raises the first failure."""
    (directory / "store").mkdir(parents=True)
    (directory / "store" / "broker.conf").write_text(CONF)
    random, deadline, kills, recoveries = Random(seed), time.monotonic() + seconds, 0, 0
    with _process("append", directory, seconds, seed) as writer:
        _await(directory / "store" / "commitlog")
        hammer: Hammer | None = None
        while time.monotonic() < deadline:
            with _process("dispatch", directory, seconds, seed + kills) as dispatcher:
                _await(directory / f"running{seed + kills}")
                hammer = hammer or Hammer(directory, directory / "out", random)
                _ask(hammer, dispatcher, random.uniform(0.01, 2.0))
                assert dispatcher.poll() is None
                dispatcher.send_signal(signal.SIGKILL)
                dispatcher.wait()
            kills += 1
            _ask(hammer, writer, random.uniform(0, 0.2))
            recoveries = (directory / "recoveries").stat().st_size
        writer.wait()
    assert hammer is not None
    progress = dispatch_all(directory / "store", directory / "out", CONFIG)
    dispatch_all(directory / "store", directory / "clean", CONFIG)
    assert_same_store(directory / "out", directory / "clean")
    asked = sum(hammer.asked.values())
    return {
        "kills": kills, "batches cut off": recoveries,
        "messages": progress.messages, "questions": asked,
    }  # fmt: skip


def _ask(hammer: Hammer, process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        hammer.ask()


def _await(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists() or not os.path.getsize(path):
        assert time.monotonic() < until, path
        time.sleep(0.02)


@contextmanager
def _process(
    what: str, directory: Path, seconds: float, seed: int
) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [what, str(directory), str(seconds), str(seed)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.torture.live", *arguments], cwd=_PROJECT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# --- Processes ---------------------------------------------------------------------------------


def append(directory: Path, seconds: float, seed: int) -> None:
    """Append messages in bursts for some seconds."""
    random, n, deadline = Random(seed), 0, time.monotonic() + seconds
    with CommitLogWriter(directory / "store", CONFIG, disk=HastyDisk()) as writer:
        while time.monotonic() < deadline:
            for _ in range(random.choice([1, 3, 20, 200, 1000])):
                writer.append(message(n))
                n += 1
            time.sleep(random.choice([0.001, 0.01]))


def dispatch(directory: Path, _seconds: float, seed: int) -> None:
    """Dispatch the growing log, in batches of any size, until killed."""
    random, store = Random(seed), directory / "store"
    counts = os.open(directory / "counts", os.O_RDWR | os.O_CREAT)
    owned = DispatchOutput.open(directory / "out", store, CONFIG)
    with (directory / "recoveries").open("ab") as file:
        file.write(b"." * len(owned.recovered))
    sink = DispatchSink(owned, CONFIG)
    planner, scanner = LogPlanner(owned.log, lambda: False), Scanner(CONFIG)
    while True:
        limit = random.choice([1, 1, 1, 10_000, UNLIMITED])
        plan = planner.plan(owned.progress.reput_from_offset, max_bytes=limit)
        sink.apply([stretch for part in plan.ranges for stretch in scanner.read(part)])
        os.pwrite(counts, COUNTS.pack(owned.progress.messages, 0), 0)
        (directory / f"running{seed}").write_bytes(b".")
        if not plan.ranges:
            time.sleep(0.001)


if __name__ == "__main__":
    _PROCESSES = {"append": append, "dispatch": dispatch}
    _PROCESSES[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
