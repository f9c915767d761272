"""MessageStore on generated stores: limits, filters, promises I6 and I8, damage, settings."""

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from store import Boundary, MessageStore
from store.config import BrokerVersion
from store.errors import (
    ConfigError,
    DamageError,
    LostDataError,
    StoreError,
    UnsupportedFormatError,
)
from store.io.disk import Disk
from tests.logs.build import build_log
from tests.support.dispatching import dispatch_all
from tests.support.stores.numbered import (
    CONF,
    CONFIG,
    FILE_SIZE,
    START,
    make_store,
    numbered,
    offsets,
)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """Return a store of 200 messages and an OUTPUT with its queues and index."""
    store_root = make_store(tmp_path / "store", numbered(200))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    return store_root, tmp_path / "out"


# --- reading -----------------------------------------------------------------------------------


def test_a_batch_ends_with_its_file_at_32_messages_and_at_256_kib(tmp_path: Path) -> None:
    big = replace(CONFIG, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000)
    store_root = make_store(tmp_path / "store", numbered(120), big)
    dispatch_all(store_root, tmp_path / "out", big)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        assert offsets(s.get_message("T", 0, 5, 100).messages) == list(range(5, 37))
        assert offsets(s.get_message("T", 0, 90, 100).messages) == list(range(90, 100))
        assert s.get_message("T", 0, 90, 100).next_begin_offset == 100
    store_root = make_store(tmp_path / "large", numbered(5, body=bytes(100_000)), big)
    dispatch_all(store_root, tmp_path / "out2", big)
    with MessageStore.open(store_root, tmp_path / "out2") as s:
        assert offsets(s.get_message("T", 0, 0).messages) == [0, 1]


def test_at_most_800_units_are_examined(tmp_path: Path) -> None:
    big = replace(
        CONFIG, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=40_000
    )
    store_root = make_store(tmp_path / "store", numbered(900), big)
    dispatch_all(store_root, tmp_path / "out", big)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        found = s.get_message("T", 0, 0, tags="none")
        assert (found.status, found.next_begin_offset) == ("NO_MATCHED_MESSAGE", 800)
        assert s.get_message("T", 0, 0, 850, tags="none").next_begin_offset == 850


def test_a_colliding_tag_is_not_returned(tmp_path: Path) -> None:
    store_root = make_store(tmp_path / "store", numbered(10, tags=("AaAa", "BBBB")))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        assert offsets(s.get_message("T", 0, 0, tags="BBBB").messages) == [1, 3, 5, 7, 9]
        assert offsets(s.get_message("T", 0, 0, tags="x || AaAa ").messages) == [0, 2, 4, 6, 8]
        assert s.get_message("T", 0, 0, tags="AaBB").status == "NO_MATCHED_MESSAGE"
        with pytest.raises(ConfigError, match="names no tag"):
            s.get_message("T", 0, 0, tags=" || ")


def test_a_truncated_query_says_so(made: tuple[Path, Path]) -> None:
    with MessageStore.open(*made) as s:
        found = s.query_message("T", "all", 10)
        assert (offsets(found.messages), found.truncated) == (list(range(190, 200)), True)
        found = s.query_message("T", "all", 200)
        assert (offsets(found.messages), found.truncated) == (list(range(200)), False)
        found = s.query_message("T", "all", begin_ms=START + 3000, end_ms=START + 4999)
        assert offsets(found.messages) == [3, 4]
        assert s.query_message("T", "nothing").index_last_update_phy_offset == 0


def test_a_read_waits_for_a_message(tmp_path: Path) -> None:
    store_root = make_store(tmp_path / "store", numbered(3))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        began = time.monotonic()
        assert s.get_message("T", 0, 3, wait_seconds=0.2).status == "OFFSET_OVERFLOW_ONE"
        assert 0.2 <= time.monotonic() - began < 5

        def append() -> None:
            with (store_root / "commitlog" / f"{0:020d}").open("r+b") as f:
                f.write(build_log(numbered(4), FILE_SIZE)[0])
            dispatch_all(store_root, tmp_path / "out", CONFIG, disk=Disk)

        thread = threading.Thread(target=append)
        thread.start()
        found = s.get_message("T", 0, 3, wait_seconds=30)
        thread.join()
        assert offsets(found.messages) == [3]


def test_absent_queues_and_messages_have_the_brokers_values(made: tuple[Path, Path]) -> None:
    with MessageStore.open(*made) as s:
        for topic in ("no", "", "..", "../commitlog", "a\0b", "x" * 300, "\ud800"):
            assert s.queue_ids(topic) == []
            assert s.min_offset_in_queue(topic, 0) == s.max_offset_in_queue(topic, 0) == 0
            assert s.get_message(topic, 0, 0).status == "NO_MESSAGE_IN_QUEUE"
            assert s.offset_in_queue_by_time(topic, 0, START) == 0
            assert s.earliest_message_time(topic, 0) == -1
        assert s.message_store_timestamp("T", 0, 200) == -1
        assert s.look_message_by_offset(-1) is None
        assert s.look_message_by_offset(1) is None
        assert s.look_message_by_offset(1 << 60) is None
        assert s.topics() == ["T"]
    with pytest.raises(StoreError, match="closed"):
        s.topics()


def test_expired_files_move_the_queues_begin(made: tuple[Path, Path]) -> None:
    store_root, output = made
    with MessageStore.open(store_root, output) as s:
        assert s.min_offset_in_queue("T", 0) == 0
        (store_root / "commitlog" / f"{0:020d}").unlink()
        first = s.min_offset_in_queue("T", 0)
        assert 0 < first < 200
        assert s.get_message("T", 0, 0).status == "OFFSET_TOO_SMALL"
        assert s.get_message("T", 0, 0).next_begin_offset == first
        assert s.earliest_message_time("T", 0) == START + 1000 * first
        assert s.offset_in_queue_by_time("T", 0, START) == first
        assert s.offset_in_queue_by_time("T", 0, START, Boundary.UPPER) == first
        assert s.look_message_by_offset(0) is None
        assert offsets(s.query_message("T", "all", 999).messages) == list(range(first, 200))


# --- files beyond progress are not valid (promise I8) ------------------------------------------


def test_units_and_entries_beyond_progress_do_not_count(tmp_path: Path) -> None:
    messages = numbered(200)
    store_root, out = make_store(tmp_path / "store", messages[:130]), tmp_path / "out"
    dispatch_all(store_root, out, CONFIG)
    progress = (out / "reput/progress").read_bytes()
    with MessageStore.open(store_root, out) as s:
        expected = s.query_message("T", "all", 500)
    more = [replace(m, topic="New") for m in numbered(20)]
    make_store(store_root, [*messages, *more])
    dispatch_all(store_root, out, CONFIG)
    (out / "reput/progress").write_bytes(progress)  # as if the batch were in flight
    with MessageStore.open(store_root, out) as s:
        assert s.topics() == ["T"]
        assert s.queue_ids("New") == []
        assert s.get_message("New", 0, 0).status == "NO_MESSAGE_IN_QUEUE"
        assert s.max_offset_in_queue("T", 0) == 130
        assert s.get_message("T", 0, 130).status == "OFFSET_OVERFLOW_ONE"
        assert offsets(s.get_message("T", 0, 125).messages) == list(range(125, 130))
        assert s.offset_in_queue_by_time("T", 0, 2**62) == 130
        assert s.query_message("T", "all", 500) == expected
        assert s.query_message("T", "k150").messages == ()
        assert s.max_phy_offset() > s.reput_from_offset() > 0  # type: ignore[operator]


def test_an_output_before_its_first_batch_is_empty(tmp_path: Path) -> None:
    store_root = make_store(tmp_path / "store", [])
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        assert s.topics() == []
        assert s.query_message("T", "k").messages == ()
        assert (s.min_phy_offset(), s.max_phy_offset()) == (0, 0)


# --- damage ------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("at", [3, 7, 11, 30, 90], ids=["size", "magic", "crc", "offset", "body"])
def test_a_damaged_record_is_never_a_wrong_answer(made: tuple[Path, Path], at: int) -> None:
    store_root, output = made
    with MessageStore.open(store_root, output) as s:
        third = s.get_message("T", 0, 2, 1).messages[0]
        at = third.spans.body_at if at == 90 else at
        flip(store_root / "commitlog" / f"{0:020d}", third.commit_log_offset + at)
        calls = [
            lambda: s.get_message("T", 0, 0),
            lambda: s.message_store_timestamp("T", 0, 2),
            lambda: s.look_message_by_offset(third.commit_log_offset),
            lambda: s.query_message("T", "k2"),
        ]
        for call in calls:
            with pytest.raises(DamageError, match=r"damaged: .*00000000000000000000"):
                call()
        assert offsets(s.get_message("T", 0, 3, 2).messages) == [3, 4]


def test_a_missing_or_short_log_file_is_damage(made: tuple[Path, Path]) -> None:
    store_root, output = made
    second = store_root / "commitlog" / f"{FILE_SIZE:020d}"
    with MessageStore.open(store_root, output) as s:
        inside = next(
            m.queue_offset
            for m in s.query_message("T", "all", 200).messages
            if m.commit_log_offset >= FILE_SIZE
        )
        second.rename(store_root / "kept")
        with pytest.raises(LostDataError):
            s.get_message("T", 0, inside)
        with pytest.raises(LostDataError):
            s.look_message_by_offset(FILE_SIZE)
        second.write_bytes((store_root / "kept").read_bytes()[:-1])
        with pytest.raises(DamageError, match="bytes"):
            s.get_message("T", 0, inside)


def test_a_unit_that_names_no_record_of_its_queue_is_damage(made: tuple[Path, Path]) -> None:
    store_root, output = made
    file = output / "consumequeue/T/0" / f"{0:020d}"
    for at in (5 * 20 + 7, 5 * 20 + 11):
        flip(file, at)
        with MessageStore.open(store_root, output) as s, pytest.raises(DamageError):
            s.get_message("T", 0, 0)
        flip(file, at)


def test_a_hole_in_a_queue_is_damage(made: tuple[Path, Path]) -> None:
    store_root, output = made
    (output / "consumequeue/T/0" / f"{400:020d}").unlink()
    with MessageStore.open(store_root, output) as s, pytest.raises(DamageError, match="missing"):
        s.get_message("T", 0, 0)


def test_a_replaced_log_is_detected(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, output = made
    other = make_store(tmp_path / "other", numbered(200, body=b"other"))
    with pytest.raises(ConfigError, match=f"^{output} was made from {made[0]}, not from {other}: "):
        MessageStore.open(other, output)
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    with MessageStore.open(copy, output) as s:  # the same log at another path is fine
        assert s.max_offset_in_queue("T", 0) == 200
    shutil.rmtree(made[0])
    other.rename(made[0])
    with pytest.raises(DamageError, match="dispatched last"):
        MessageStore.open(made[0], output)


def test_a_torn_progress_record_is_damage(made: tuple[Path, Path]) -> None:
    flip(made[1] / "reput/progress", 10)
    with pytest.raises(DamageError, match="checksum"):
        MessageStore.open(*made)


# --- settings ----------------------------------------------------------------------------------


def test_the_reasons_for_no_answer_are_distinct(made: tuple[Path, Path], tmp_path: Path) -> None:
    store_root, output = made
    with MessageStore.open(store_root, output) as s:
        with pytest.raises(ConfigError, match="does not index tags"):
            s.query_message("T", "A", index_type="T")
        with pytest.raises(ConfigError, match="neither 'K'"):
            s.query_message("T", "A", index_type="X")
    with MessageStore.open(store_root) as s:
        assert s.look_message_by_offset(0) is not None
        with pytest.raises(ConfigError, match="nothing has been dispatched"):
            s.get_message("T", 0, 0)
        with pytest.raises(ConfigError, match="no index files"):
            s.query_message("T", "k1")
    for given, out in ((tmp_path / "none", output), (store_root, tmp_path / "none")):
        with pytest.raises(ConfigError, match="not a directory"):
            MessageStore.open(given, out)
    (tmp_path / "empty").mkdir()
    with pytest.raises((ConfigError, UnsupportedFormatError), match="does not exist"):
        MessageStore.open(tmp_path / "empty")


def test_a_missing_index_file_is_an_error_not_an_empty_answer(
    made: tuple[Path, Path],
) -> None:
    index = sorted((made[1] / "index").iterdir())
    assert len(index) > 2
    for path in index:
        moved = path.rename(made[1] / "moved")
        with MessageStore.open(*made) as s, pytest.raises(DamageError, match="index files from"):
            s.query_message("T", "k1")
        moved.rename(path)
    with MessageStore.open(*made) as s:
        assert len(s.query_message("T", "k1").messages) == 1


def test_tags_are_found_where_they_are_indexed(tmp_path: Path) -> None:
    config = replace(CONFIG, version=BrokerVersion.parse("5.5.0"))
    store_root = make_store(tmp_path / "store", numbered(30, tags=("AaAa", "BBBB")))
    dispatch_all(store_root, tmp_path / "out", config)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        found = s.query_message("T", "BBBB", 5, index_type="T")
        assert (offsets(found.messages), found.truncated) == ([21, 23, 25, 27, 29], True)
        assert s.query_message("T", "BBBB").messages == ()


def test_a_dispatched_output_records_its_settings(made: tuple[Path, Path], tmp_path: Path) -> None:
    store_root, output = made
    (store_root / "broker.conf").unlink()
    moved = store_root.rename(tmp_path / "moved")
    with MessageStore.open(moved, output) as s:
        assert s.config.shape() == CONFIG.shape()
        assert s.max_phy_offset() > 0
    moved.rename(store_root)
    with pytest.raises(ConfigError, match="version="):
        MessageStore.open(store_root, output, broker_version="4.8")
    conf = tmp_path / "other.conf"
    conf.write_text(CONF.replace("=40\n", "=41\n"))
    with pytest.raises(ConfigError, match="maxIndexNum=40"):
        MessageStore.open(store_root, output, conf)
    conf.write_text(CONF)
    with MessageStore.open(store_root, output, conf, "5.3.3") as s:
        assert s.max_offset_in_queue("T", 0) == 200


def test_reading_a_dispatched_output_loads_no_kernel_and_no_spark(made: tuple[Path, Path]) -> None:
    code = f"""
import sys, store
assert "numpy" not in sys.modules
with store.MessageStore.open({str(made[0])!r}, {str(made[1])!r}) as s:
    assert len(s.get_message("T", 0, 10).messages) == 10
    assert len(s.query_message("T", "k7").messages) == 1
    assert s.offset_in_queue_by_time("T", 0, {START + 5000}) == 5
print([m for m in ("numba", "pyspark", "py4j") if m in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
