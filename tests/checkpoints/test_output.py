"""OUTPUT: its one owner, its state files, and the offset at which it resumes."""

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.checkpoint_file import StoreCheckpoint, read_checkpoint, write_checkpoint
from checkpoints.output import DispatchOutput
from store.config import BrokerVersion
from store.errors import ConfigError, OutputInUseError
from store.io.disk import Disk
from store.output.progress import PROGRESS, Fingerprint, read_progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.checkpoints.conftest import (
    CONFIG,
    FILE_SIZE,
    LAST_BASE,
    LAST_OFFSET,
    MESSAGES,
    SIZE,
    opened,
    scanned,
)
from tests.logs.build import Message, build_log, encode, write_log
from tests.support.dispatching import HastyDisk, dispatch_all, tree

# --- The owner ---------------------------------------------------------------------------------

OWNER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        print("refused", flush=True)
    else:
        print("locked", flush=True)
        sys.stdin.read()
"""


@contextmanager
def other_owner(lock: Path) -> Iterator[str]:
    """Lock as a broker does, in another process; yield the result."""
    command = [sys.executable, "-c", OWNER, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def test_an_output_in_use_keeps_a_broker_out_until_it_is_closed(output: Path, store: Path) -> None:
    with opened(output, store), other_owner(output / "lock") as outcome:
        assert outcome == "refused"
    with other_owner(output / "lock") as outcome:
        assert outcome == "locked"
    assert (output / "lock").read_bytes() == b"lock"


def test_an_output_in_use_by_a_broker_is_refused_and_unchanged(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    before = tree(output)
    with other_owner(output / "lock") as outcome:
        assert outcome == "locked"
        with pytest.raises(OutputInUseError, match=str(output / "lock")):
            DispatchOutput.open(output, store, CONFIG)
        assert before == tree(output)
    with opened(output, store):
        pass


def test_an_output_is_not_owned_twice_in_one_process(output: Path, store: Path) -> None:
    with opened(output, store):
        with pytest.raises(OutputInUseError):
            DispatchOutput.open(output / ".." / output.name, store, CONFIG)
        with other_owner(output / "lock") as outcome:
            assert outcome == "refused"


def test_reading_an_output_in_use_does_not_release_it(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    with opened(output, store):
        read_progress(output)
        tree(output / "index")
        with other_owner(output / "lock") as outcome:
            assert outcome == "refused"


def test_an_output_that_is_refused_is_released(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    with pytest.raises(ConfigError):
        DispatchOutput.open(output, store, replace(CONFIG, max_index_num=11))
    with other_owner(output / "lock") as outcome:
        assert outcome == "locked"


# --- State files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "has_pid"),
    [("4.8.0", False), ("4.9.8", False), ("5.0.0", True), ("5.5.0", True)],
)
def test_abort_exists_while_an_output_is_owned(
    output: Path, store: Path, version: str, has_pid: bool
) -> None:
    config = replace(CONFIG, version=BrokerVersion.parse(version))
    content = str(os.getpid()) if has_pid else ""
    with opened(output, store, config):
        assert content == (output / "abort").read_text()
    assert not (output / "abort").exists()


def test_abort_stays_when_an_output_is_not_closed_cleanly(output: Path, store: Path) -> None:
    owned = DispatchOutput.open(output, store, CONFIG)
    owned.close(clean=False)
    assert (output / "abort").exists()


def test_a_new_output_begins_where_the_log_begins(output: Path, tmp_path: Path) -> None:
    aged = tmp_path / "aged"
    write_log(build_log(MESSAGES, FILE_SIZE, start=3 * FILE_SIZE), aged / "commitlog")
    with opened(output, aged) as owned:
        assert (
            owned.progress.reput_from_offset,
            owned.progress.begin_offset,
        ) == (3 * FILE_SIZE, 3 * FILE_SIZE)
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    with opened(tmp_path / "other", tmp_path / "empty") as owned:
        assert owned.progress.reput_from_offset == 0


def test_progress_records_what_was_dispatched(output: Path, store: Path) -> None:
    progress = dispatch_all(store, output, CONFIG)
    assert progress == read_progress(output)
    assert (
        progress.reput_from_offset,
        progress.begin_offset,
        progress.messages,
    ) == (LAST_OFFSET + SIZE, 0, 20)
    record = encode(MESSAGES[-1], LAST_OFFSET)
    body_crc, record_crc = struct.unpack(">i", record[8:12])[0], zlib.crc32(record)
    assert Fingerprint(LAST_OFFSET, SIZE, 1019, body_crc, record_crc) == progress.last_record
    assert (str(store.resolve()), CONFIG.shape()) == (progress.store, progress.shape)
    files = sorted(path.name for path in (output / "index").iterdir())
    assert (files[-1], 2) == (progress.index_file, progress.index_count)
    assert [*progress.drops, *progress.lost] == []


def test_the_log_may_grow_new_files_while_an_output_is_open(output: Path, store: Path) -> None:
    last = store / "commitlog" / f"{LAST_BASE:020d}"
    last.rename(store / "not there yet")
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    (store / "not there yet").rename(last)
    with (
        closing(DispatchSink(owned, CONFIG)) as sink,
        opened(output.with_name("other"), store) as other,
    ):
        sink.apply(scanned(other))  # another process read the log, as Spark's workers do
    progress = read_progress(output)
    assert progress is not None
    assert progress.last_record is not None
    assert progress.last_record.offset == LAST_OFFSET
    assert StoreCheckpoint(1019, 1019, 1017) == read_checkpoint(output)


def test_the_checkpoint_keeps_the_fields_of_a_broker(store: Path) -> None:
    known = StoreCheckpoint(1, 2, 3, master_flushed_offset=44, confirm_phy_offset=55)
    write_checkpoint(store, known, Disk())
    dispatch_all(store, store, CONFIG)
    assert replace(
        known, physic_msg_timestamp=1019, logics_msg_timestamp=1019, index_msg_timestamp=1017
    ) == read_checkpoint(store)


def test_drops_are_counted_over_all_runs(output: Path, tmp_path: Path) -> None:
    offsets = [0, 1, 5, 2, 1, 9]
    messages = [Message(queue_offset=offset) for offset in offsets]
    store = tmp_path / "odd"
    write_log(build_log(messages, FILE_SIZE), store / "commitlog")
    progress = dispatch_all(store, output, CONFIG, one_by_one=True, reopen=True)
    assert progress.drops == {"TopicTest/0": {"repeated": 2, "gaps": 2}}


def test_each_epoch_replaces_the_one_before(output: Path, store: Path) -> None:
    with opened(output, store) as owned:
        epochs = [owned.new_epoch().relative_to(output) for _ in range(3)]
        assert [f"reput/spark/epoch-00000{n}" for n in (1, 2, 3)] == [str(e) for e in epochs]
        assert [p.name for p in (output / "reput" / "spark").iterdir()] == ["epoch-000003"]


# --- STORE = OUTPUT ----------------------------------------------------------------------------


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_brokers_abort_is_remembered_where_output_is_the_store(
    store: Path, was_clean: bool
) -> None:
    if not was_clean:
        (store / "abort").touch()
    for _ in range(2):
        with opened(store, store) as owned:
            assert was_clean == owned.is_log_clean(store)


def test_the_stores_abort_counts_for_a_separate_output(output: Path, store: Path) -> None:
    with opened(output, store) as owned:
        assert owned.is_log_clean(store)
        (store / "abort").touch()
        assert not owned.is_log_clean(store)


def test_from_offset_begins_a_new_output_there_and_leaves_no_hole(
    output: Path, store: Path
) -> None:
    owned = DispatchOutput.open(output, store, CONFIG, from_offset=SIZE, disk=HastyDisk())
    assert (owned.progress.reput_from_offset, owned.progress.begin_offset) == (SIZE, SIZE)
    owned.close(clean=True)
    before, progress = (output / PROGRESS).read_bytes(), owned.progress
    with pytest.raises(ConfigError, match="would leave a hole"):
        DispatchOutput.open(output, store, CONFIG, from_offset=2 * SIZE)
    assert before == (output / PROGRESS).read_bytes()
    owned = DispatchOutput.open(output, store, CONFIG, from_offset=0, disk=HastyDisk())
    assert owned.progress.reput_from_offset == SIZE
    assert progress == replace(owned.progress, stamp=progress.stamp)
    owned.close(clean=True)
