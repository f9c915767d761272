"""A read answers from files of one generation: it waits for the next one, or raises the reason."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from checkpoints.output import DispatchOutput
from store import MessageStore
from store.errors import StoreIOError
from store.io.disk import Disk
from store.layout import LOCK_CONTENT, LOCK_FILE
from store.output.progress import PROGRESS, SWAP, read_progress, read_progress_view, write_progress
from store.reads import message_store
from store.reads.get_message import get_message
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.rebuilding import begin_swap, rebuild_all
from tests.support.stores.aged import log_files, sent
from tests.support.verify_stores import CONFIG, forget_progress, write_store

FOREVER = 1e9
CONF = """
mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=13
"""


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Return a store and its OUTPUT."""
    made = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(*made, CONFIG, max_bytes=2000)
    return made


# --- the start of a generation -------------------------------------------------------------------


def generation(output: Path) -> int:
    found = read_progress_view(output)
    assert found is not None
    return found.generation


def swap_whole(store_root: Path, output: Path) -> None:
    rebuild_all(store_root, output, CONFIG, disk=HastyDisk())


def cut_off_batch(store_root: Path, output: Path) -> None:
    owned = DispatchOutput.open(output, store_root, CONFIG, disk=HastyDisk())
    owned.begin_batch([], None)
    owned.close(clean=False)
    DispatchOutput.open(output, store_root, CONFIG, disk=HastyDisk()).close(clean=True)


def shorten_log(store_root: Path, output: Path) -> None:
    log_files(store_root)[-1].unlink()
    DispatchOutput.open(output, store_root, CONFIG, disk=HastyDisk()).close(clean=True)


def run_broker(store_root: Path, output: Path) -> None:
    (output / "checkpoint").write_bytes(bytes(4096))
    DispatchOutput.open(output, store_root, CONFIG, disk=HastyDisk()).close(clean=True)


CHANGES = [swap_whole, cut_off_batch, shorten_log, run_broker]


def test_batches_and_starts_leave_the_generation(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(store_root, output, CONFIG, max_bytes=2000, reopen=True)
    assert read_progress(output).batch > 3  # type: ignore[union-attr]
    assert generation(output) == 0


@pytest.mark.parametrize(
    ("before", "change"),
    # An adopted OUTPUT has one rollback point, its end: it cannot be rolled back.
    [pair for pair in product(CHANGES, CHANGES) if pair != (run_broker, shorten_log)],
)
def test_every_replacement_of_files_begins_a_generation(
    directories: tuple[Path, Path], before: Callable[..., None], change: Callable[..., None]
) -> None:
    store_root, output = directories
    seen = [generation(output)]
    for each in (before, change, change):
        each(store_root, output)
        seen.append(generation(output))
        shutil.rmtree(store_root)
        write_store(store_root.parent, sent(60))  # the log is complete again
        dispatch_all(store_root, output, CONFIG, max_bytes=2000)
        assert generation(output) == seen[-1]
    assert seen == sorted(set(seen))


# --- a read that a change overtakes --------------------------------------------------------------


def answers(s: MessageStore) -> dict[str, Any]:
    found = s.query_message("T", "common", max_count=64)
    return {
        "topics": {topic: s.queue_ids(topic) for topic in s.topics()},
        "get": [m.queue_offset for m in s.get_message("T", 0, 5, tags="t0 || t2").messages],
        "query": [m.queue_offset for m in found.messages],
    }


def change_inside(
    monkeypatch: pytest.MonkeyPatch, place: str, change: Callable[[], None]
) -> list[str]:
    """Change OUTPUT at a read's first call of a function; return the number of calls."""
    original, calls = getattr(message_store, place), []

    def changing(*args: Any, **kwargs: Any) -> Any:
        calls.append(place)
        if len(calls) == 1:
            change()
        return original(*args, **kwargs)

    monkeypatch.setattr(message_store, place, changing)
    return calls


@pytest.mark.parametrize("place", ["list_topics", "get_message", "query_message"])
@pytest.mark.parametrize("change", [swap_whole, cut_off_batch])
def test_a_read_across_two_generations_is_repeated(
    directories: tuple[Path, Path],
    place: str,
    change: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with MessageStore.open(*directories) as s:
        right = answers(s)
        calls = change_inside(monkeypatch, place, lambda: change(*directories))
        assert answers(s) == right
        assert len(calls) == 2
        assert answers(s) == right
        assert len(calls) == 3


@pytest.mark.parametrize("place", ["list_topics", "get_message", "query_message"])
def test_a_read_of_a_brokers_files_rebuilt_meanwhile_is_repeated(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root = write_store(tmp_path, sent(60))
    dispatch_all(store_root, store_root, CONFIG)
    forget_progress(store_root)
    (store_root / "broker.conf").write_text(CONF)
    with MessageStore.open(store_root) as s:
        right = answers(s)
        assert len(right["query"]) > 20
        calls = change_inside(monkeypatch, place, lambda: swap_whole(store_root, store_root))
        assert answers(s) == right
        assert len(calls) == 2


def test_a_batch_during_a_read_does_not_change_its_answer(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output = directories
    log_files(store_root)[-1].unlink()
    shutil.rmtree(output)
    dispatch_all(store_root, output, CONFIG, max_bytes=2000)
    with MessageStore.open(store_root, output) as s:
        before = s.max_offset_in_queue("T", 0)

        def dispatch() -> None:
            shutil.rmtree(store_root)
            write_store(store_root.parent, sent(60))
            dispatch_all(store_root, output, CONFIG, max_bytes=2000)

        calls = change_inside(monkeypatch, "get_message", dispatch)
        result = s.get_message("T", 0, 5)
        assert len(result.messages) > 0
        assert len(calls) == 2  # a second time, with the progress of the meantime
        assert result.max_offset == s.max_offset_in_queue("T", 0) > before


# --- a swap or a recovery that is in progress ----------------------------------------------------


def begin_recovery(output: Path) -> Path:
    progress = read_progress(output)
    assert progress is not None
    write_progress(output, replace(progress, is_recovering=True), Disk())
    return output / PROGRESS


READS: list[Callable[[MessageStore], object]] = [
    lambda s: s.topics(),
    lambda s: s.queue_ids("T"),
    lambda s: s.min_offset_in_queue("T", 0),
    lambda s: s.max_offset_in_queue("Absent", 0),
    lambda s: s.get_message("T", 0, 0),
    lambda s: s.offset_in_queue_by_time("T", 0, 0),
    lambda s: s.message_store_timestamp("T", 0, 0),
    lambda s: s.earliest_message_time("T", 0),
    lambda s: s.query_message("T", "common"),
]


@pytest.mark.parametrize("begin", [begin_swap, begin_recovery])
def test_a_read_after_an_interrupted_swap_or_recovery_names_the_command_to_run(
    directories: tuple[Path, Path], begin: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", FOREVER)
    with MessageStore.open(*directories) as s:
        in_log = s.get_message("T", 0, 0).messages[0]
        record = begin(directories[1])
        for read in READS:
            with pytest.raises(StoreIOError, match="was interrupted: no process holds") as raised:
                read(s)
            text = str(raised.value)
            assert raised.value.errno == errno.EBUSY
            for named in (directories[1] / LOCK_FILE, record, "run reput recover", "reput rebuild"):
                assert str(named) in text
        # The log is not touched by it.
        found = s.look_message_by_offset(in_log.commit_log_offset)
        assert found is not None
        assert found.record == in_log.record
        assert (s.min_phy_offset(), s.max_phy_offset() > 0) == (0, True)
        dispatch_all(*directories, CONFIG)
        assert s.get_message("T", 0, 0).messages[0].record == in_log.record


@pytest.mark.parametrize("begin", [begin_swap, begin_recovery])
def test_a_read_that_times_out_names_the_running_process_and_its_start(
    directories: tuple[Path, Path], begin: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", 0.0)
    lock, disk = directories[1] / LOCK_FILE, Disk()
    with MessageStore.open(*directories) as s:
        handle = disk.lock(lock, LOCK_CONTENT)
        record = begin(directories[1])
        os.utime(record, (1_700_000_000, 1_700_000_000))
        message = f"in process {os.getpid()} since 2023-11-14T22:13:20Z; the read waited 0 s"
        for read in READS:
            with pytest.raises(StoreIOError, match=message) as raised:
                read(s)
            assert str(record) in str(raised.value)
        disk.unlock(handle)


def test_a_read_waits_for_another_process_that_changes_the_output(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", FOREVER)
    output = directories[1]
    with MessageStore.open(*directories) as s:
        right, found = answers(s), []
        begin_swap(output)
        code = (
            "import sys; from pathlib import Path; from store.io.disk import Disk; "
            "handle = Disk().lock(Path(sys.argv[1]), b'lock'); print(flush=True); input(); "
            "Path(sys.argv[2]).unlink()"
        )
        command = [sys.executable, "-c", code, str(output / LOCK_FILE), str(output / SWAP)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as owner:
            assert owner.stdout is not None
            owner.stdout.readline()
            readers = [threading.Thread(target=lambda: found.append(answers(s))) for _ in range(3)]
            for reader in readers:
                reader.start()
            assert found == []
            owner.communicate("\n")
            for reader in readers:
                reader.join()
        assert found == [right] * 3


def test_a_read_of_an_output_that_keeps_changing_gives_up(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", 0.5)
    original = get_message

    def changing(*args: Any, **kwargs: Any) -> Any:
        cut_off_batch(*directories)
        return original(*args, **kwargs)

    with MessageStore.open(*directories) as s:
        monkeypatch.setattr(message_store, "get_message", changing)
        with pytest.raises(StoreIOError, match="its files were replaced repeatedly"):
            s.get_message("T", 0, 0)


def test_an_answer_from_files_that_a_swap_had_moved_away_is_not_given(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap begins after the read has looked for one, and is over when its answer is checked."""
    _, output = directories
    before = read_progress(output)
    assert before is not None
    batch = before.batch + 1
    after = replace(before, batch=batch, generation=batch)
    queues, away = output / "consumequeue", output / "away"
    with MessageStore.open(*directories) as store:
        expected = store.message_store_timestamp("T", 0, 9)
        look, find = store._progress_reader.await_generation, store._queue
        steps = iter(range(3))

        def look_then_begin(wait: Any) -> None:
            look(wait)
            if read_progress(output) == before:
                write_progress(output, replace(after, is_recovering=True), HastyDisk())
                queues.rename(away)

        def find_then_end(topic: str, queue_id: int) -> Any:
            found, step = find(topic, queue_id), next(steps)
            if step == 0:  # the progress seems to have changed, so the read is repeated
                monkeypatch.setattr(store._progress_reader, "_data", b"")
            elif step == 1:
                assert found is None
                away.rename(queues)
                write_progress(output, after, HastyDisk())
            return found

        monkeypatch.setattr(store._progress_reader, "await_generation", look_then_begin)
        monkeypatch.setattr(store, "_queue", find_then_end)
        assert store.message_store_timestamp("T", 0, 9) == expected
