"""Log files replaced by renaming, as rsync does when it updates a copy."""

import os
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.errors import DamageError
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import HastyDisk

FILE_SIZE = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=50,
)


def messages(count: int, text: str) -> list[Message]:
    return [Message(queue_offset=n, body=f"{text}{n}".encode()) for n in range(count)]


def replace_log(directory: Path, count: int, text: str) -> None:
    """Replace the files of a log by those of another, by renaming."""
    new = directory.with_name("new")
    write_log(build_log(messages(count, text), FILE_SIZE), new)
    for path in sorted(new.iterdir()):
        os.replace(path, directory / path.name)


def test_new_records_are_seen(tmp_path: Path) -> None:
    directory = tmp_path / "commitlog"
    write_log(build_log(messages(3, "m"), FILE_SIZE), directory)
    log = CommitLog([directory], CONFIG)
    planner = LogPlanner(log, lambda: True)
    first = planner.plan(0).end
    assert (log.max_offset(), planner.end()) == (first, first)
    replace_log(directory, 10, "m")
    fresh = LogPlanner(CommitLog([directory], CONFIG), lambda: True).plan(0).end
    assert planner.plan(first).end == fresh > first
    assert (log.max_offset(), planner.end()) == (fresh, fresh)


def test_a_replaced_log_is_detected_while_running(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    write_log(build_log(messages(3, "m"), FILE_SIZE), directory)
    owned = DispatchOutput.open(tmp_path / "out", tmp_path / "store", CONFIG, disk=HastyDisk())
    sink = DispatchSink(owned, CONFIG)
    planner = LogPlanner(CommitLog([directory], CONFIG), lambda: True)

    def dispatch() -> None:
        for part in planner.plan(owned.progress.reput_from_offset).ranges:
            sink.apply(list(Scanner(CONFIG).read(part)))

    dispatch()
    replace_log(directory, 120, "x")  # continues in a second file
    with pytest.raises(DamageError, match="the log changed"):
        dispatch()
    sink.close()


def test_an_unfinished_copy_is_not_a_log_file(tmp_path: Path) -> None:
    write_log(build_log(messages(3, "m"), FILE_SIZE), tmp_path / "commitlog")
    (tmp_path / "commitlog" / f".{0:020d}.Xa81Zq").write_bytes(b"half")
    assert len(CommitLog([tmp_path / "commitlog"], CONFIG).files) == 1
