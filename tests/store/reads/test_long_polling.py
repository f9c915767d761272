"""Long polling: a held read returns with its message, whichever process dispatches it."""

import errno
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.output import DispatchOutput
from store import MessageStore
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.errors import ConfigError, StoreError, StoreIOError
from store.io.disk import Disk
from store.io.mapped_file import file_name
from store.output.progress import read_progress, write_progress
from store.reads.get_message import GetMessageResult, parse_tags
from store.reads.pull_request_hold import HeldRead, PullRequestHoldService
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.rebuilding import rebuild_all

CONFIG = StoreConfig(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000)
SOON = 10.0  # far more than it takes, far less than the reads would wait


def append(directory: Path, *tags: str) -> None:
    """Append messages with these tags to queue T/0 and dispatch them."""
    with CommitLogWriter(directory / "store", CONFIG) as writer:
        for tag in tags:
            writer.append(NewMessage("T", 0, tag.encode(), make_properties(tags=tag)))
    dispatch_all(directory / "store", directory / "out", CONFIG)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return an OUTPUT with two messages."""
    append(tmp_path, "A", "B")
    return tmp_path


def newest(directory: Path) -> DispatchRequests:
    """Scan the last message of the log."""
    log = CommitLog(CONFIG.commit_log_paths(directory / "store"), CONFIG)
    (part,) = LogPlanner(log, lambda: True).plan(0).ranges
    (requests,) = Scanner(CONFIG).read(part)
    assert isinstance(requests, DispatchRequests)
    return requests.slice(len(requests) - 1, len(requests))


def read(
    directory: Path, offset: int, tags: str = "*", wait_seconds: float = 60
) -> GetMessageResult:
    with MessageStore.open(directory / "store", directory / "out") as s:
        return s.get_message("T", 0, offset, tags=tags, wait_seconds=wait_seconds)


def until_held(directory: Path, count: int = 1) -> None:
    """Wait until this process holds ``count`` reads on an OUTPUT."""
    service, deadline = PullRequestHoldService.of(directory / "out"), time.monotonic() + SOON
    while service.held_count() < count:
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)


def during(
    directory: Path, do: Callable[[], None], *reads: tuple[int, str]
) -> list[GetMessageResult]:
    """Start reads (offset, tags), do something once all are held, and return their results."""
    with ThreadPoolExecutor(len(reads)) as pool:
        results = [pool.submit(read, directory, *r) for r in reads]
        until_held(directory, len(reads))
        do()
        return [r.result(SOON) for r in results]


def test_a_message_dispatched_in_this_process_ends_the_wait(directory: Path) -> None:
    (found,) = during(directory, lambda: append(directory, "C"), (2, "*"))
    assert [m.body for m in found.messages] == [b"C"]
    assert (found.status, found.next_begin_offset) == ("FOUND", 3)


def test_a_message_dispatched_by_another_process_ends_the_wait(directory: Path) -> None:
    def elsewhere() -> None:
        process = multiprocessing.get_context("spawn").Process(target=append, args=(directory, "C"))
        process.start()
        process.join()
        assert process.exitcode == 0

    (found,) = during(directory, elsewhere, (2, "*"))
    assert [m.body for m in found.messages] == [b"C"]


def test_messages_with_other_tags_are_skipped(directory: Path) -> None:
    def both() -> None:
        append(directory, "C", "C")
        append(directory, "D")

    (found,) = during(directory, both, (2, "D || E"))
    assert [m.body for m in found.messages] == [b"D"]
    assert found.next_begin_offset == 5


def test_a_read_that_times_out_returns_the_next_offset(directory: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, directory, 2, "D", 1.0)
        until_held(directory)
        append(directory, "C")
        result = waiting.result(SOON)
    assert (result.status, result.next_begin_offset) == ("OFFSET_OVERFLOW_ONE", 3)
    assert result.messages == ()


def test_only_the_queues_end_is_waited_for(directory: Path) -> None:
    began = time.monotonic()
    assert read(directory, 5).status == "OFFSET_OVERFLOW_BADLY"
    assert read(directory, 0, "D").status == "NO_MATCHED_MESSAGE"
    assert read(directory, 1).status == "FOUND"
    assert time.monotonic() - began < SOON


def test_many_waiters_each_get_their_message_and_cost_no_busy_loop(directory: Path) -> None:
    held = [(2, "*")] * 50
    with ThreadPoolExecutor(len(held)) as pool:
        results = [pool.submit(read, directory, *r) for r in held]
        until_held(directory, len(held))
        before = time.process_time()
        threading.Event().wait(2)
        assert time.process_time() - before < 0.5
        append(directory, "C")
        assert {r.result(SOON).messages[0].body for r in results} == {b"C"}


def test_a_dispatcher_wakes_only_reads_of_matching_queue_and_tags(directory: Path) -> None:
    service = PullRequestHoldService.of(directory / "out")
    reads = [
        HeldRead(topic, queue, parse_tags(tags))
        for topic, queue, tags in (("T", 0, "C"), ("T", 0, "D"), ("T", 1, "*"), ("T", 0, "*"))
    ]
    append(directory, "C")
    requests = newest(directory)
    for held in reads:
        with service.hold(held):
            service.notify_message_arriving(requests)
    assert [held.wait(0) for held in reads] == [True, False, False, True]


# --- restarts of the dispatcher ------------------------------------------------------------------


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what each attempt of the reads gave: a status, or the class of an error."""
    found: list[str] = []
    original = MessageStore._get_message

    def recording(*args: Any) -> GetMessageResult:
        try:
            result = original(*args)
        except StoreError as e:
            found.append(type(e).__name__)
            raise
        found.append(str(result.status))
        return result

    monkeypatch.setattr(MessageStore, "_get_message", recording)
    return found


def until(attempts: list[str], outcome: str) -> None:
    """Wait until an attempt has had an outcome."""
    deadline = time.monotonic() + SOON
    while outcome not in attempts:
        assert time.monotonic() < deadline, attempts
        threading.Event().wait(0.001)


def interrupt_recovery(directory: Path) -> None:
    """Write what a recovery writes before it truncates files, and end."""
    progress = read_progress(directory / "out")
    assert progress is not None
    write_progress(directory / "out", replace(progress, is_recovering=True), Disk())


def remove_newest_message(directory: Path) -> None:
    """Remove the last message from the log, and roll OUTPUT back."""
    newest_at = int(newest(directory).commit_log_offset[0])
    with (directory / "store" / "commitlog" / file_name(0)).open("r+b") as file:
        file.seek(newest_at)
        file.write(bytes(200))
    DispatchOutput.open(directory / "out", directory / "store", CONFIG, disk=HastyDisk()).close(
        clean=True
    )


def swap_all(directory: Path) -> None:
    rebuild_all(directory / "store", directory / "out", CONFIG)


RESTARTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "stopped and started": (append, "OFFSET_OVERFLOW_ONE"),
    "killed in a recovery": (interrupt_recovery, "StoreIOError"),
    "rolled back": (remove_newest_message, "OFFSET_OVERFLOW_BADLY"),
    "all swapped": (swap_all, "OFFSET_OVERFLOW_ONE"),
    "deleted": (lambda directory: shutil.rmtree(directory / "out"), "ProgressDeletedError"),
}


@pytest.mark.parametrize("case", RESTARTS)
def test_a_wait_outlives_a_restart_of_the_dispatcher(
    directory: Path, attempts: list[str], case: str
) -> None:
    restart, outcome = RESTARTS[case]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, directory, 2)
        until_held(directory)
        attempts.clear()
        restart(directory)
        until(attempts, outcome)
        append(directory, *(["X", "C"] if case == "rolled back" else ["C"]))
        found = waiting.result(SOON)
    assert [m.body for m in found.messages] == [b"C"]
    assert (found.status, found.next_begin_offset) == ("FOUND", 3)


def test_a_wait_can_begin_while_files_are_replaced(directory: Path, attempts: list[str]) -> None:
    with (
        ThreadPoolExecutor(2) as pool,
        MessageStore.open(directory / "store", directory / "out") as s,
    ):
        interrupt_recovery(directory)
        reads = [pool.submit(s.get_message, "T", 0, at, wait_seconds=60) for at in (1, 2)]
        until_held(directory, 2)
        until(attempts, "StoreIOError")
        append(directory, "C")
        found = [[m.body for m in r.result(SOON).messages] for r in reads]
    assert found in ([[b"B"], [b"C"]], [[b"B", b"C"], [b"C"]])


def test_a_replacement_that_does_not_end_is_an_error_when_the_time_is_up(directory: Path) -> None:
    with MessageStore.open(directory / "store", directory / "out") as s:
        interrupt_recovery(directory)
        with pytest.raises(StoreIOError, match="was interrupted") as raised:
            s.get_message("T", 0, 2, wait_seconds=0.5)
        assert raised.value.errno == errno.EBUSY


def test_an_output_made_again_with_other_settings_is_refused(directory: Path) -> None:
    with MessageStore.open(directory / "store", directory / "out") as s:
        assert s.max_offset_in_queue("T", 0) == 2
        shutil.rmtree(directory / "out")
        other = replace(CONFIG, mapped_file_size_consume_queue=4000)
        dispatch_all(directory / "store", directory / "out", other)
        with pytest.raises(ConfigError, match=r"mappedFileSizeConsumeQueue=4000.*reopen"):
            s.max_offset_in_queue("T", 0)
