"""The live end: a half-written record is not dispatched, a complete one is dispatched once."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.commit_log import CommitLog
from store.commitlog.live_end import LiveEnd
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.errors import DamageError
from store.io.mapped_file import MappedFile
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import ROLLBACK, Message, build_log, encode, write_log
from tests.logs.random_logs import Mix, random_messages
from tests.logs.record_kinds import IPV6, RECORD_KINDS, TAGS
from tests.model.dispatch import dispatch
from tests.model.tree import model_tree
from tests.support.dispatching import HastyDisk, assert_same_content, built_tree, to_model_config

FILE_SIZE = 4096
KINDS = RECORD_KINDS | {
    "value ends in zeros": Message(properties=b"TAGS\x01Tag\0\0"),
    "properties all zero": Message(properties=bytes(9)),
    "nothing at all": Message(topic="", body=b""),
    "no topic": Message(topic="", properties=TAGS),
    "topic ends in a zero": Message(topic=b"Topic\0"),
    "body of zeros": Message(body=bytes(50), properties=TAGS),
    "body ends in zeros, no properties": Message(body=b"x" + bytes(50)),
    "long topic, no properties": Message(topic="t" * 200),
    "long topic and IPv6, no body": Message(
        topic="t" * 128, born_host=IPV6, store_host=IPV6, body=b"", properties=TAGS
    ),
    "rolled back, no properties": Message(sys_flag=ROLLBACK),
    "256 bytes of properties": Message(properties=[("KEYS", "k" * 250)]),
    "256 bytes of body": Message(body=b"b" * 256, properties=TAGS),
}
END_IN_ZEROS = (
    "value ends in zeros",
    "properties all zero",
    "nothing at all",
    "topic ends in a zero",
)
NOT_QUEUES = ("nothing at all", "no topic", "topic ends in a zero")  # no valid directory names
FIRST = Message(topic="First", properties=TAGS)


@dataclass
class Log:
    """A log of one or more files that a test writes to."""

    store: Path
    config: StoreConfig
    planner: LogPlanner

    @classmethod
    def create(cls, store: Path, *, prop_crc: bool = False, is_clean: bool = False) -> "Log":
        """Create a log of one file without a record."""
        config = StoreConfig(
            mapped_file_size_commit_log=FILE_SIZE,
            mapped_file_size_consume_queue=400,
            max_hash_slot_num=7,
            max_index_num=50,
            enabled_append_prop_crc=prop_crc,
        )
        (store / "commitlog").mkdir(parents=True)
        log = CommitLog(config.commit_log_paths(store), config)
        made = cls(store, config, LogPlanner(log, lambda: is_clean))
        made.create_file(0)
        return made

    def path(self, base: int) -> Path:
        """Return the path of the file at `base`."""
        return self.store / "commitlog" / f"{base:020d}"

    def create_file(self, base: int, size: int = FILE_SIZE) -> None:
        """Create a file of zeros."""
        with self.path(base).open("xb") as file:
            file.truncate(size)

    def write(self, offset: int, data: bytes) -> None:
        """Write at a physical offset."""
        base = offset - offset % FILE_SIZE
        with self.path(base).open("r+b") as file:
            os.pwrite(file.fileno(), data, offset - base)

    def planned(self, begin: int = 0) -> int:
        """Return the end of a plan."""
        return self.planner.plan(begin).end

    def rows(self, begin: int = 0) -> list[int]:
        """Return the offsets of the records that are planned and scanned."""
        plan, scanner = self.planner.plan(begin), Scanner(self.config)
        stretches = [s for part in plan.ranges for s in scanner.read(part)]
        return [int(o) for s in stretches for o in s.commit_log_offset]  # type: ignore[union-attr]


@pytest.mark.parametrize("is_clean", [False, True], ids=["abort", "clean"])
@pytest.mark.parametrize("prop_crc", [False, True], ids=["", "property CRC"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_record_with_its_end_zeroed_is_not_planned(
    tmp_path: Path, kind: str, prop_crc: bool, is_clean: bool
) -> None:
    log = Log.create(tmp_path, prop_crc=prop_crc, is_clean=is_clean)
    first = encode(FIRST, 0, prop_crc=prop_crc)
    begin = len(first)
    whole = encode(KINDS[kind], begin, prop_crc=prop_crc)
    end = begin + len(whole)
    log.write(0, first + whole)
    is_certain = log.planned() == end
    for at in reversed(range(len(whole))):
        log.write(begin + at, b"\0")
        is_untouched = whole[at:].count(0) == len(whole) - at
        expected = end if is_certain and is_untouched else begin
        assert expected == log.planned(), f"zeroed from {at} of {len(whole)} on"
    for at in range(len(whole)):
        log.write(begin + at, whole[at : at + 1])
    follower = encode(FIRST, end, prop_crc=prop_crc)
    log.write(end, follower)
    assert end + len(follower) == log.planned()
    assert is_certain == (prop_crc or kind not in END_IN_ZEROS)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in NOT_QUEUES])
def test_a_torn_record_is_waited_for_and_dispatched_when_it_is_completed(
    tmp_path: Path, kind: str
) -> None:
    log = Log.create(tmp_path)
    begin = len(encode(FIRST, 0))
    whole = encode(KINDS[kind], begin)
    log.write(0, encode(FIRST, 0))
    random = Random(kind)
    seen, cuts = log.rows(), sorted(random.sample(range(len(whole)), 5))
    assert seen == [0]
    for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        assert log.rows(begin) == []
        log.write(begin + a, whole[a:b])
    end = begin + len(whole)
    log.write(end, encode(FIRST, end))
    assert [begin, end] == log.rows(begin)


@pytest.mark.parametrize("is_clean", [False, True], ids=["abort", "clean"])
def test_records_written_while_the_end_is_looked_for_are_no_damage(
    tmp_path: Path,
    is_clean: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, size = Log.create(tmp_path, is_clean=is_clean), len(encode(FIRST, 0))
    log.write(0, encode(FIRST, 0))
    find = LiveEnd._find_record

    def write_and_find(live_end: LiveEnd, file: MappedFile, at: int) -> int:
        log.write(size, encode(FIRST, size) + encode(FIRST, 2 * size))
        return find(live_end, file, at)

    with monkeypatch.context() as patched:
        patched.setattr("store.commitlog.live_end._STALLED_SECONDS", 0.0)
        patched.setattr(LiveEnd, "_find_record", write_and_find)
        assert log.rows() == [0]
    assert caplog.records == []
    assert log.rows() == [0, size, 2 * size]


def test_a_file_that_is_truncated_inside_a_page_is_no_end_of_the_log(tmp_path: Path) -> None:
    """The rest of the page reads as zeros, as the space after the last record does."""
    log, size = Log.create(tmp_path), len(encode(FIRST, 0))
    log.write(0, b"".join(encode(FIRST, n * size) for n in range(20)))
    assert len(log.rows()) == 20
    commit_log = CommitLog(log.config.commit_log_paths(tmp_path), log.config)
    planner = LogPlanner(commit_log, lambda: False)
    commit_log.refresh()
    os.truncate(log.path(0), 10 * size + 5)
    for find in (commit_log.max_offset, partial(planner._live_end.find, 0)):
        with pytest.raises(DamageError, match=f"the file has {10 * size + 5} bytes, but had"):
            find()


def fill_first_file(log: Log) -> tuple[int, bytes]:
    """Write records and a blank into the first file; return the blank's position and bytes."""
    files = build_log([FIRST] * 60, FILE_SIZE)
    at = FILE_SIZE - FILE_SIZE % len(encode(FIRST, 0))
    at -= len(encode(FIRST, 0)) if FILE_SIZE - at < 8 else 0
    blank = files[0][at:]
    assert blank[4:8].hex() == "cbd43194"
    log.write(0, files[0][:at])
    return at, blank[:8]


def test_a_blank_without_a_next_file_is_not_stepped_over(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    blank_at, blank = fill_first_file(log)
    for n, byte in enumerate(blank):
        assert blank_at == log.planned()
        assert blank_at == log.planned(blank_at)
        log.write(blank_at + n, bytes([byte]))
    assert blank_at == log.planned()
    assert blank_at == log.planned(blank_at)


@pytest.mark.parametrize("size", [0, FILE_SIZE], ids=["being created", "zeros"])
def test_an_empty_next_file_is_waited_for(tmp_path: Path, size: int) -> None:
    log = Log.create(tmp_path)
    blank_at, blank = fill_first_file(log)
    log.write(blank_at, blank)
    log.create_file(FILE_SIZE, size)
    assert blank_at == log.planned()
    assert blank_at == log.planned(blank_at)
    os.truncate(log.path(FILE_SIZE), FILE_SIZE)
    record = encode(FIRST, FILE_SIZE)
    for n in range(len(record)):
        assert log.planned(blank_at) <= FILE_SIZE
        assert log.rows(blank_at) == []
        log.write(FILE_SIZE + n, record[n : n + 1])
    assert log.rows(blank_at) == [FILE_SIZE]
    assert FILE_SIZE + len(record) == log.planned()


def test_a_blank_and_an_existing_next_file_are_one_plan(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    blank_at, blank = fill_first_file(log)
    log.write(blank_at, blank)
    log.create_file(FILE_SIZE)
    log.write(FILE_SIZE, encode(FIRST, FILE_SIZE))
    size = len(encode(FIRST, 0))
    assert [*range(0, blank_at, size), FILE_SIZE] == log.rows()
    assert FILE_SIZE + size == log.planned()


def test_the_blank_needs_its_magic_only(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    blank_at, blank = fill_first_file(log)
    log.write(blank_at + 4, blank[4:])
    log.create_file(FILE_SIZE)
    log.write(FILE_SIZE, encode(FIRST, FILE_SIZE))
    assert log.rows(blank_at) == [FILE_SIZE]


def test_a_look_ahead_file_of_zeros_changes_nothing(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    assert log.planned() == 0
    log.create_file(FILE_SIZE)
    assert log.planned() == 0
    log.write(0, encode(FIRST, 0))
    end = len(encode(FIRST, 0))
    assert end == log.planned()
    assert end == log.planned(end) == log.planner.end()


def test_the_reported_end_excludes_a_half_written_record(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    record = encode(FIRST, 0)
    for n in range(len(record)):
        assert log.planner.end() == 0
        log.write(n, record[n : n + 1])
    assert len(record) == log.planner.end()


WRITER = """
import os, random, sys
source, target, seed = sys.argv[1:]
random = random.Random(seed)
names = sorted(os.listdir(source))
files = {}

def create(name):
    if name not in files:
        files[name] = os.open(os.path.join(target, name), os.O_RDWR | os.O_CREAT)
        os.ftruncate(files[name], os.path.getsize(os.path.join(source, name)))

for name, ahead in zip(names, [*names[1:], names[-1]]):
    create(name)
    create(ahead)
    with open(os.path.join(source, name), "rb") as file:
        data = file.read().rstrip(b"\\0")
    at = 0
    while at < len(data):
        sys.stdin.readline()
        print("writing", flush=True)
        for _ in range(20):
            size = random.choice([1, 1, 2, 3, 5, 8, 13, 40, 300])
            os.pwrite(files[name], data[at : at + size], at)
            at += size
sys.stdin.readline()
"""


def run_beside_writer(source: Path, target: Path, step: Callable[[], None]) -> None:
    """Call ``step`` while another process writes a log in small pieces, and once at the end."""
    command = [sys.executable, "-c", WRITER, str(source), str(target), "7"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("continue\n")
        while writer.stdout.readline():  # it keeps writing during a step
            step()
            writer.stdin.write("continue\n")
    assert writer.returncode == 0
    step()


def test_a_growing_log_is_dispatched_completely_and_once(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    log = Log.create(tmp_path / "store")
    log.path(0).unlink()
    messages = [*random_messages(Random(3), 400, Mix(huge_size=800)), FIRST]
    files = build_log(messages, FILE_SIZE)
    write_log(files, source)
    built = dispatch(files, to_model_config(log.config))
    ends = {r.commit_log_offset + r.size: n for n, r in enumerate(built.records, 1)}
    owned = DispatchOutput.open(output, log.store, log.config, disk=HastyDisk())
    sink, scanner = DispatchSink(owned, log.config), Scanner(log.config, 700)
    seen: list[int] = []

    def step() -> None:
        plan = log.planner.plan(owned.progress.reput_from_offset)
        if plan.ranges:
            sink.apply([s for part in plan.ranges for s in scanner.read(part)])
            there = max(end for end in ends if end <= plan.end)
            assert ends[there] == owned.progress.messages
            assert plan.end == there or plan.end % FILE_SIZE == 0
            seen.append(plan.end)

    with closing(sink):
        run_beside_writer(source, log.store / "commitlog", step)
    assert built.end == seen[-1]
    assert len(seen) > 50
    assert_same_content(built_tree(output), model_tree(built))


def test_a_log_whose_last_file_ends_with_a_blank_is_planned_up_to_its_end(tmp_path: Path) -> None:
    log = Log.create(tmp_path)
    sent = [Message(queue_offset=n, body=b"x" * 900) for n in range(5)]
    log.write(0, build_log(sent, FILE_SIZE)[0])
    end = log.planner.end()
    assert end == FILE_SIZE
    messages_end = log.planned()
    assert FILE_SIZE - 1000 < messages_end < FILE_SIZE
    assert log.planner.plan(0, until=end).end == end
    assert log.planner.plan(messages_end, until=end).end == end
