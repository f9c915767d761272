"""Reads hammer a store while another process appends to its log, dispatches and expires it.

``python -m tests.stress.reads [SECONDS]`` (default: 600). Message n follows from n alone, and the
writer reports how many are dispatched, so each answer can be checked: nothing wrong, torn or
missing. OUTPUT is read as a dispatched one, bounded by its progress, and as a broker's, which has
no progress: there the end of a queue is found in the files while they are written.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from checkpoints.output import DispatchOutput
from store import Boundary, Message, MessageStore
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.reads.get_message import GetMessageResult
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.dispatching import HastyDisk

LOG_FILE, QUEUE_FILE, INDEX_SLOTS, INDEX_ENTRIES = 1 << 20, 20_000, 200, 4000
CONF = f"""
mappedFileSizeCommitLog={LOG_FILE}
mappedFileSizeConsumeQueue={QUEUE_FILE}
maxHashSlotNum={INDEX_SLOTS}
maxIndexNum={INDEX_ENTRIES}
"""
CONFIG = replace(
    StoreConfig(),
    mapped_file_size_commit_log=LOG_FILE,
    mapped_file_size_consume_queue=QUEUE_FILE,
    max_hash_slot_num=INDEX_SLOTS,
    max_index_num=INDEX_ENTRIES,
)
TOPICS, QUEUES, KEYS, TAGS = ("TopicA", "TopicB"), 2, 500, ("red", "green", "blue")
LANES = len(TOPICS) * QUEUES
FILES_KEPT = 6
COUNTS = struct.Struct("<qq")  # dispatched, the log's begin


# --- what message n is -------------------------------------------------------------------------


def lane_of(n: int) -> tuple[str, int]:
    return TOPICS[n % len(TOPICS)], n // len(TOPICS) % QUEUES


def number_of(topic: str, queue_id: int, queue_offset: int) -> int:
    return queue_offset * LANES + queue_id * len(TOPICS) + TOPICS.index(topic)


def message(n: int) -> NewMessage:
    topic, queue_id = lane_of(n)
    properties = make_properties(uniq_key=f"U{n}", keys=f"k{n % KEYS}", tags=TAGS[n % 7 % 3])
    return NewMessage(topic, queue_id, b"%d." % n * (n % 40 + 1), properties)


def check_message(found: Message, topic: str, queue_id: int) -> int:
    """Assert that a message is intact and in its queue; return its number."""
    n = number_of(topic, queue_id, found.queue_offset)
    expected = message(n)
    assert (found.topic, found.queue_id, found.body) == (topic, queue_id, expected.body)
    assert expected.properties == found.properties
    return n


# --- the writer's process ----------------------------------------------------------------------


def write(directory: Path, seconds: float, seed: int) -> None:
    """Append and dispatch in batches of any size; expire old files."""
    random, store = Random(seed), directory / "store"
    counts = os.open(directory / "counts", os.O_RDWR | os.O_CREAT)
    n, deadline = 0, time.monotonic() + seconds
    with CommitLogWriter(store, CONFIG, disk=HastyDisk()) as writer:
        owned = DispatchOutput.open(directory / "out", store, CONFIG, disk=HastyDisk())
        sink = DispatchSink(owned, CONFIG)
        planner, scanner = LogPlanner(owned.log, lambda: False), Scanner(CONFIG)
        while time.monotonic() < deadline:
            for _ in range(random.choice([1, 3, 20, 200, 1000])):
                writer.append(message(n))
                n += 1
            plan = planner.plan(owned.progress.reput_from_offset, max_bytes=UNLIMITED)
            sink.apply([stretch for part in plan.ranges for stretch in scanner.read(part)])
            begin = expire(store / "commitlog")
            os.pwrite(counts, COUNTS.pack(owned.progress.messages, begin), 0)
            time.sleep(random.choice([0, 0, 0.001, 0.02]))
        sink.close()


def expire(commit_log: Path) -> int:
    """Delete the oldest files; return where the log begins."""
    files = sorted(commit_log.iterdir())
    for file in files[:-FILES_KEPT]:
        file.unlink()
    return int(files[-FILES_KEPT:][0].name)


# --- the readers -------------------------------------------------------------------------------


class Hammer:
    """Queries one view of OUTPUT repeatedly."""

    def __init__(self, directory: Path, output: Path, random: Random) -> None:
        self.s = MessageStore.open(directory / "store", output)
        self.random = random
        self.counts = os.open(directory / "counts", os.O_RDONLY)
        self.asked: Counter[str] = Counter()
        self.looked: list[Message] = []
        self._asks: list[Callable[[str, int], None]] = [
            self.ask_get, self.ask_get, self.ask_tags, self.ask_time, self.ask_key, self.ask_look,
        ]  # fmt: skip

    def dispatched(self) -> int:
        return int(COUNTS.unpack(os.pread(self.counts, COUNTS.size, 0))[0])

    def units(self, topic: str, queue_id: int) -> int:
        """Return a lower bound of the number of dispatched messages of a queue."""
        return max(0, -(-(self.dispatched() - number_of(topic, queue_id, 0)) // LANES))

    def ask(self) -> None:
        """Ask one question of a random queue."""
        ask = self.random.choice(self._asks)
        ask(self.random.choice(TOPICS), self.random.randrange(QUEUES))
        self.asked[ask.__name__] += 1

    def ask_get(self, topic: str, queue_id: int) -> None:
        end = self.units(topic, queue_id)
        first = self.s.min_offset_in_queue(topic, queue_id)
        assert self.s.max_offset_in_queue(topic, queue_id) >= end
        offset = self.random.randint(max(first, end - 2000), max(end, first))
        result = self.s.get_message(topic, queue_id, offset)
        assert result.max_offset >= end, (result, end)
        if offset >= end or result.status == "OFFSET_TOO_SMALL":
            self.check_edge(result, offset)
            return
        file_end = offset - offset % (QUEUE_FILE // 20) + QUEUE_FILE // 20
        count = len(result.messages)
        assert result.status == "FOUND", result
        assert min(32, end - offset, file_end - offset) <= count <= 32
        self.check_batch(result, topic, queue_id, list(range(offset, offset + count)))
        self.looked = [*self.looked[-50:], self.random.choice(result.messages)]

    def check_edge(self, result: GetMessageResult, offset: int) -> None:
        """Check an answer at the queue's end, or below its minimum, which has moved."""
        if result.status == "OFFSET_TOO_SMALL":
            assert offset < result.min_offset == result.next_begin_offset
        elif result.status in ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE"):
            assert offset == result.max_offset == result.next_begin_offset
        else:
            assert result.status == "FOUND"
            assert offset < result.max_offset

    def check_batch(
        self, result: GetMessageResult, topic: str, queue_id: int, offsets: list[int]
    ) -> None:
        assert offsets == [m.queue_offset for m in result.messages]
        for found in result.messages:
            check_message(found, topic, queue_id)

    def ask_tags(self, topic: str, queue_id: int) -> None:
        end = self.units(topic, queue_id)
        first = self.s.min_offset_in_queue(topic, queue_id)
        if first >= end:
            return
        offset, tag = self.random.randrange(first, end), self.random.choice(TAGS)
        result = self.s.get_message(topic, queue_id, offset, 32, tag)
        if result.status == "OFFSET_TOO_SMALL":
            return
        looked = range(offset, result.next_begin_offset)
        numbers = ((at, number_of(topic, queue_id, at)) for at in looked)
        self.check_batch(
            result, topic, queue_id, [at for at, n in numbers if TAGS[n % 7 % 3] == tag]
        )

    def ask_time(self, topic: str, queue_id: int) -> None:
        end = self.units(topic, queue_id)
        first = self.s.min_offset_in_queue(topic, queue_id)
        if first >= end:
            return
        offset = self.random.randrange(first, end)
        timestamp = self.s.message_store_timestamp(topic, queue_id, offset)
        if timestamp < 0:
            assert self.s.min_offset_in_queue(topic, queue_id) > offset
            return
        for boundary, step in ((Boundary.LOWER, -1), (Boundary.UPPER, 1)):
            found = self.s.offset_in_queue_by_time(topic, queue_id, timestamp, boundary)
            begin = self.s.min_offset_in_queue(topic, queue_id)
            assert (found - offset) * step >= 0 or found <= begin, (found, offset, boundary)
            if found > begin + 1:
                assert self.s.message_store_timestamp(topic, queue_id, found) in (timestamp, -1)

    def ask_key(self, topic: str, _: int) -> None:
        dispatched = self.dispatched()
        key = self.random.randrange(KEYS)
        lanes = range(TOPICS.index(topic), LANES * KEYS, len(TOPICS))
        if key not in {n % KEYS for n in lanes}:
            return
        result = self.s.query_message(topic, f"k{key}", 10)
        begin = self.s.min_phy_offset()
        found = [check_message(m, topic, m.queue_id) for m in result.messages]
        of_key = [n for n in range(key, dispatched, KEYS) if lane_of(n)[0] == topic]
        assert all(n % KEYS == key for n in found)
        assert found == sorted(set(found))
        known = [n for n in found if n < dispatched]
        assert known == of_key[len(of_key) - len(known) :], (known, of_key[-12:])
        if len(found) < 10 and len(known) < len(of_key):  # then the next one has expired
            lost = of_key[len(of_key) - len(known) - 1]
            at = self.s.min_offset_in_queue(*lane_of(lost))
            assert lost // LANES < at, (lost, at, begin)

    def ask_look(self, _: str, __: int) -> None:
        for known in self.looked[-3:]:
            found = self.s.look_message_by_offset(known.commit_log_offset)
            if found is None:
                assert known.commit_log_offset < self.s.min_phy_offset()
            else:
                assert found.record == known.record


def stress(directory: Path, seconds: float, seed: int = 1) -> dict[str, int]:
    """Run writer and readers for some seconds; return the counts of queries. Raises a failure."""
    (directory / "store").mkdir(parents=True)
    (directory / "store" / "broker.conf").write_text(CONF)
    command = [sys.executable, "-m", "tests.stress.reads", "--writer"]
    arguments = [str(directory), str(seconds), str(seed)]
    with subprocess.Popen([*command, *arguments], cwd=Path(__file__).parents[2]) as writer:
        try:
            while not (directory / "counts").exists() or not os.path.getsize(directory / "counts"):
                assert writer.poll() is None
                time.sleep(0.05)
            view = directory / "view"  # the same files, and no progress
            view.mkdir()
            for name in ("consumequeue", "index"):
                (view / name).symlink_to(directory / "out" / name)
            random = Random(seed)
            hammers = [Hammer(directory, directory / name, random) for name in ("out", "view")]
            while writer.poll() is None:
                random.choice(hammers).ask()
        finally:
            writer.terminate()
    assert writer.returncode == 0
    total = sum((hammer.asked for hammer in hammers), Counter[str]())
    return {**total, "messages": hammers[0].dispatched()}


def main() -> None:
    if sys.argv[1:2] == ["--writer"]:
        write(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with tempfile.TemporaryDirectory(prefix="reput-stress-") as directory:
        sys.stdout.write(json.dumps(stress(Path(directory), seconds)) + "\n")


if __name__ == "__main__":
    main()
