"""A consumer long-polls while the dispatcher is killed, restarted and rebuilt: no error, no gap.

``python -m tests.stress.waits [SECONDS]`` (default: 600). Processes append and dispatch in short
runs, some of which replace all queues or those of the topic; each is killed with SIGKILL after a
random time. Message n has queue offset n, so the consumer's answers are known.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from store import MessageStore
from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from store.io.disk import Disk
from tests.support.bulk_writer import BulkWriter
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.rebuilding import rebuild_all

CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=200,
    max_index_num=400,
)
CONF = """
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=200
maxIndexNum=400
"""
LIFE_SECONDS = (0.0, 0.02, 0.1, 0.4)
WAIT_SECONDS = 5.0  # far more than a restart takes


# --- the dispatcher's processes ----------------------------------------------------------------


def restart_repeatedly(directory: Path, seconds: float, seed: int) -> None:
    """Start dispatchers and kill them until the time is up; let the last one finish."""
    random, deadline = Random(seed), time.monotonic() + seconds
    done: Counter[str] = Counter()
    while time.monotonic() < deadline:
        child = os.fork()
        if child == 0:
            run(directory, Random(random.random()))
        time.sleep(random.choice(LIFE_SECONDS) * random.random())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done["kills"] += 1
    dispatch_all(directory / "store", directory / "out", CONFIG, disk=Disk)
    with BulkWriter(directory / "store", CONFIG, disk=HastyDisk()) as writer:
        done["messages"] = writer.next_queue_offset("T", 0)
    sys.stdout.write(json.dumps(done) + "\n")


def run(directory: Path, random: Random) -> None:
    """Append and dispatch, with a new owner for each batch, and rebuild, until killed."""
    store, out = directory / "store", directory / "out"
    while True:
        append(store, random.choice([1, 1, 5, 50]))
        dispatch_all(store, out, CONFIG, disk=Disk)
        if random.random() < 0.2:
            rebuild_all(store, out, CONFIG, disk=Disk())


def append(store: Path, count: int) -> None:
    with BulkWriter(store, CONFIG, disk=HastyDisk()) as writer:
        for _ in range(count):
            n = writer.next_queue_offset("T", 0)
            writer.append(NewMessage("T", 0, b"%d" % n, make_properties(keys=f"k{n}")))


# --- the consumer ------------------------------------------------------------------------------


def consume(directory: Path, process: subprocess.Popen[str]) -> dict[str, int]:
    """Read the queue message by message until the last one; raises what a read raises."""
    offset, done = 0, Counter[str]()
    with MessageStore.open(directory / "store", directory / "out") as s:
        while not done["messages"] or offset < done["messages"]:
            seconds = WAIT_SECONDS if process.poll() is None else 0.0
            result = s.get_message("T", 0, offset, wait_seconds=seconds)
            done[f"read {result.status}"] += 1
            bodies = [int(m.body) for m in result.messages]
            assert bodies == list(range(offset, offset + len(bodies))), (bodies, offset)
            offset += len(bodies)
            if not done["messages"] and process.poll() is not None:
                assert process.returncode == 0
                assert process.stdout is not None
                done.update(json.loads(process.stdout.read()))
    assert offset == done["messages"]
    return dict(done)


def stress(directory: Path, seconds: float, seed: int = 1) -> dict[str, int]:
    """Run dispatchers and the consumer for some seconds; return counts. Raises a failure."""
    store = directory / "store"
    store.mkdir(parents=True)
    (store / "broker.conf").write_text(CONF)
    append(store, 1)
    dispatch_all(store, directory / "out", CONFIG)
    command = [sys.executable, "-m", "tests.stress.waits", "--dispatch"]
    arguments = [str(directory), str(seconds), str(seed)]
    project, pipe = Path(__file__).parents[2], subprocess.PIPE
    with subprocess.Popen(
        [*command, *arguments], cwd=project, stdout=pipe, text=True, start_new_session=True
    ) as process:
        try:
            return consume(directory, process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children


def main() -> None:
    if sys.argv[1:2] == ["--dispatch"]:
        restart_repeatedly(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with tempfile.TemporaryDirectory(prefix="reput-stress-") as directory:
        sys.stdout.write(json.dumps(stress(Path(directory), seconds)) + "\n")


if __name__ == "__main__":
    main()
