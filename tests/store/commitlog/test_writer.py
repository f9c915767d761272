"""The writer's files against an independent builder, and against what the scan reads."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.record import (
    IllegalMessageError,
    Message,
    NewMessage,
    decode_message,
    make_properties,
)
from store.commitlog.scanner import Damage, Scanner
from store.commitlog.writer import CommitLogWriter, schedule
from store.config import BrokerVersion, StoreConfig
from store.errors import DamageError, StoreIOError
from store.io.disk import Disk
from tests.logs import build as logs
from tests.model.dispatch import Built, ModelConfig, dispatch
from tests.support.bulk_writer import BulkWriter, numbered

FILE_SIZE = 1024
CLOCK = 1_700_000_000_000
COMMIT, PREPARED, ROLLBACK = 0x8, 0x4, 0xC
Item = NewMessage | list[NewMessage]


def config_of(version: str = "5.3.3", size: int = FILE_SIZE, **settings: bool | str) -> StoreConfig:
    parsed = BrokerVersion.parse(version)
    return StoreConfig(version=parsed, mapped_file_size_commit_log=size, **settings)  # type: ignore[arg-type]


def writer_of(store_root: Path, config: StoreConfig | None = None, ticks: int = 0) -> BulkWriter:
    """Open a writer whose clock ticks once per append."""
    return BulkWriter(store_root, config or config_of(), clock=count(CLOCK + ticks).__next__)


def write(writer: CommitLogWriter, items: Sequence[Item]) -> list[int]:
    offsets = []
    for item in items:
        offsets += writer.append_batch(item) if isinstance(item, list) else [writer.append(item)]
    return offsets


def contents(store_root: Path) -> dict[int, bytes]:
    return {int(p.name): p.read_bytes() for p in sorted((store_root / "commitlog").iterdir())}


def messages_of(store_root: Path, config: StoreConfig) -> list[Message]:
    """Scan the log as a dispatch does, and decode the messages."""
    log = CommitLog(config.commit_log_paths(store_root), config)
    plan = LogPlanner(log, lambda: True).plan(0)
    assert log.max_offset() == plan.end
    messages: list[Message] = []
    for part in plan.ranges:
        for found in Scanner(config).read(part):
            assert not isinstance(found, Damage), found
            data = Path(part.path).read_bytes()
            offsets = found.commit_log_offset.tolist()
            messages += [decode_message(data, o - part.base, offset=o)[0] for o in offsets]
    return messages


def expected_log(items: Sequence[Item], size: int = FILE_SIZE) -> dict[int, bytes]:
    """Return the log of the independent builder, with queue offsets counted one by one."""
    next_offsets: Counter[tuple[str, int]] = Counter()

    def stored(message: NewMessage, stamp: int) -> logs.Message:
        is_queued = message.sys_flag & 0xC in (0, COMMIT)
        queue = (message.topic, message.queue_id)
        next_offsets[queue] += is_queued
        return logs.Message(
            topic=message.topic,
            queue_id=message.queue_id,
            queue_offset=next_offsets[queue] - 1 if is_queued else 0,
            body=message.body,
            properties=list(message.properties.items()),
            sys_flag=message.sys_flag,
            born_timestamp=stamp,
            born_host=b"\x7f\0\0\1",
            store_timestamp=stamp,
            store_host=b"\x7f\0\0\1",
        )

    stamped: list[logs.Message | logs.Batch] = []
    for stamp, item in enumerate(items, CLOCK):
        if isinstance(item, list):
            stamped.append([stored(message, stamp) for message in item])
        else:
            stamped.append(stored(item, stamp))
    return logs.build_log(stamped, size)


def a_message(size: int, **fields: int | str) -> NewMessage:
    """Return a message whose record has ``size`` bytes."""
    return NewMessage("T", body=b"b" * (size - 92), **fields)  # type: ignore[arg-type]


MESSAGES = st.builds(
    NewMessage,
    topic=st.sampled_from(["TopicA", "主题", "t" * 130]),
    queue_id=st.integers(0, 2),
    body=st.integers(0, 300).map(bytes),
    properties=st.sampled_from([{}, {"TAGS": "TagA"}, {"KEYS": "k1 k2", "UNIQ_KEY": "U1"}]),
    sys_flag=st.sampled_from([0, 0, COMMIT, PREPARED, ROLLBACK]),
)
PLAIN = MESSAGES.map(lambda m: replace(m, topic="TopicA", queue_id=1, sys_flag=0))
ITEMS = st.lists(
    MESSAGES | st.lists(PLAIN.filter(lambda m: len(m.body) < 150), min_size=1, max_size=3),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(items=ITEMS, stop=st.integers(0, 12), is_killed=st.booleans())
def test_log_layout_is_a_brokers_across_restarts_too(
    tmp_path_factory: pytest.TempPathFactory, items: list[Item], stop: int, is_killed: bool
) -> None:
    store_root = tmp_path_factory.mktemp("store")
    first, rest = items[:stop], items[stop:]
    writer = writer_of(store_root)
    offsets = write(writer, first)
    if is_killed:
        writer.kill()
    else:
        writer.close()
    with writer_of(store_root, ticks=len(first)) as writer:
        offsets += write(writer, rest)
    expected = expected_log(items)
    if items:
        assert expected == contents(store_root)
    messages = messages_of(store_root, config_of())
    assert offsets == [message.commit_log_offset for message in messages]


def test_record_that_leaves_eight_bytes_fits(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        assert write(writer, [a_message(500), a_message(516), a_message(100)]) == [0, 500, 1024]
    assert contents(tmp_path)[0][-8:].hex() == "00000008cbd43194"
    with writer_of(tmp_path / "b") as writer:
        assert write(writer, [a_message(500), a_message(517)]) == [0, 1024]
    blank = contents(tmp_path / "b")[0][500:]
    assert blank == bytes.fromhex("0000020ccbd43194") + bytes(FILE_SIZE - 508)


def test_batch_is_stored_at_one_time_in_one_file(tmp_path: Path) -> None:
    batch = [a_message(300, prepared_transaction_offset=9) for _ in range(3)]
    with writer_of(tmp_path) as writer:
        assert writer.append_batch(batch) == [0, 300, 600]
        assert writer.append_batch(batch) == [1024, 1324, 1624]
    messages = messages_of(tmp_path, config_of())
    assert [m.queue_offset for m in messages] == list(range(6))
    assert [m.store_timestamp - CLOCK for m in messages] == [0, 0, 0, 1, 1, 1]
    assert {m.prepared_transaction_offset for m in messages} == {0}


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [NewMessage("A"), NewMessage("B")],
        [NewMessage("A", 0), NewMessage("A", 1)],
        [NewMessage("A", sys_flag=COMMIT)],
        [NewMessage("A", properties={"DELAY": "1"})],
    ],
    ids=["empty", "topics", "queues", "transaction", "delay"],
)
def test_odd_batch_is_refused(tmp_path: Path, batch: list[NewMessage]) -> None:
    with writer_of(tmp_path) as writer, pytest.raises(IllegalMessageError):
        writer.append_batch(batch)


def test_prepared_and_rollback_take_no_queue_offset(tmp_path: Path) -> None:
    flags = [0, PREPARED, COMMIT, ROLLBACK, 0]
    with writer_of(tmp_path) as writer:
        write(writer, [NewMessage("T", sys_flag=flag) for flag in flags])
        assert writer.next_queue_offset("T", 0) == 3
    assert [m.queue_offset for m in messages_of(tmp_path, config_of())] == [0, 0, 1, 0, 2]


def test_message_that_fits_no_file_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append(a_message(FILE_SIZE - 8))
        with pytest.raises(IllegalMessageError, match="do not fit"):
            writer.append(a_message(FILE_SIZE - 7))
        assert writer.end == FILE_SIZE - 8
    assert len(messages_of(tmp_path, config_of())) == 1


def test_live_log_has_abort_and_a_file_ahead(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "abort"]
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    writer.append(a_message(600))
    assert {base: any(c) for base, c in contents(tmp_path).items()} == {0: True, 1024: False}
    writer.append(a_message(600))
    assert list(contents(tmp_path)) == [0, 1024, 2048]
    writer.close()
    assert list(contents(tmp_path)) == [0, 1024]
    assert not (tmp_path / "abort").exists()
    with pytest.raises(AssertionError):
        writer.append(a_message(100))


def test_abort_is_empty_before_5_0(tmp_path: Path) -> None:
    with writer_of(tmp_path, config_of("4.9.4")):
        assert (tmp_path / "abort").read_bytes() == b""


def test_a_writer_that_raises_leaves_the_files_of_a_killed_broker(tmp_path: Path) -> None:
    with pytest.raises(IllegalMessageError), writer_of(tmp_path) as writer:
        write(writer, [a_message(600), a_message(FILE_SIZE)])
    assert (tmp_path / "abort").exists()
    assert list(contents(tmp_path)) == [0, 1024]
    with writer_of(tmp_path) as writer:
        assert list(contents(tmp_path)) == [0]
        assert writer.append(a_message(600)) == 1024


def test_torn_record_at_the_end_is_overwritten(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    write(writer, [a_message(300), a_message(300)])
    writer.kill()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(550)
        file.write(bytes(474))
    with writer_of(tmp_path) as writer:
        assert (writer.end, writer.next_queue_offset("T", 0)) == (300, 1)


@pytest.mark.parametrize("is_killed", [False, True])
def test_damage_before_the_end_is_not_overwritten(tmp_path: Path, is_killed: bool) -> None:
    writer = writer_of(tmp_path)
    write(writer, [a_message(300)] * 4)
    writer.kill() if is_killed else writer.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(400)
        file.write(b"x")
    before = contents(tmp_path)
    with pytest.raises(DamageError, match="at offset 300: the body does not match"):
        writer_of(tmp_path)
    assert before == contents(tmp_path)
    assert (tmp_path / "abort").exists() == is_killed


def test_offsets_continue_after_the_last_message_of_a_queue(tmp_path: Path) -> None:
    restarted = [logs.Message(topic="T", queue_offset=offset) for offset in (5, 6, 0, 1)]
    logs.write_log(
        logs.build_log(restarted, FILE_SIZE, start=3 * FILE_SIZE), tmp_path / "commitlog"
    )
    with writer_of(tmp_path) as writer:
        assert writer.next_queue_offset("T", 0) == 2
        assert writer.append(NewMessage("T")) > 3 * FILE_SIZE


def test_files_alternate_between_several_directories(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("c", "a", "b")]
    config = config_of(store_path_commit_log=",".join(map(str, paths)))
    items = [a_message(600)] * 5
    with writer_of(tmp_path, config) as writer:
        write(writer, items[:3])
    with writer_of(tmp_path, config, ticks=3) as writer:
        write(writer, items[3:])
    found = {p.name: sorted(int(f.name) // FILE_SIZE for f in p.iterdir()) for p in paths}
    assert found == {"a": [0, 3], "b": [1, 4], "c": [2]}
    assert len(messages_of(tmp_path, config)) == 5


def test_failed_write_raises_and_takes_no_offset(tmp_path: Path) -> None:
    class FullDisk(Disk):
        is_full = False

        def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super()._pwrite(fd, data, offset)

    disk = FullDisk()
    writer = BulkWriter(tmp_path, config_of(), disk=disk)
    disk.is_full = True
    with pytest.raises(StoreIOError, match="No space left"):
        writer.append(NewMessage("T"))
    disk.is_full = False
    assert (writer.append(NewMessage("T")), writer.next_queue_offset("T", 0)) == (0, 1)
    writer.close()
    disk.close()


def test_delayed_message_waits_in_the_schedule_topic() -> None:
    message = NewMessage("Orders", 5, properties={"TAGS": "a"})
    waiting = schedule(message, 3)
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    delay = {"DELAY": "3", "REAL_TOPIC": "Orders", "REAL_QID": "5"}
    assert waiting.properties == {"TAGS": "a", **delay}
    capped = schedule(message, 99, StoreConfig(message_delay_level="1s 2s"))
    assert (capped.queue_id, capped.properties["DELAY"]) == (1, "2")
    with pytest.raises(IllegalMessageError):
        schedule(message, 0)


# --- many messages at once ---------------------------------------------------------------------


def templates() -> Iterator[NewMessage]:
    for n in range(7):
        properties = make_properties(
            uniq_key=f"7F0000012F864E0E{'#' * 16}", keys=["order-####", f"u{'#' * 20}"], tags="Tag#"
        )
        body = b"payload ###### ## #" if n % 2 else b"plain" * n
        host = "::1:10911" if n == 5 else "10.0.0.1:10911"
        yield NewMessage(f"Topic{n % 2}", n % 3, body, properties, store_host=host)


@pytest.mark.parametrize("size", [FILE_SIZE, 10_000, 1 << 20])
@pytest.mark.parametrize("version", ["4.8.0", "4.9.4", "5.3.3"])
def test_many_are_written_as_one_by_one(tmp_path: Path, size: int, version: str) -> None:
    config = config_of(version, size)
    made = list(templates())
    with writer_of(tmp_path / "one", config) as one, writer_of(tmp_path / "all", config) as many:
        for n in range(3, 203):
            one.append(numbered(made[n % len(made)], n))
        many.append_many(made, 120, first=3)
        many.append_many(made, 80, first=123)
        assert one.end == many.end
        assert one.next_queue_offset("Topic0", 2) == many.next_queue_offset("Topic0", 2)
    assert contents(tmp_path / "one") == contents(tmp_path / "all")
    assert len(messages_of(tmp_path / "all", config)) == 200


def test_number_fills_runs_of_two_to_eighteen() -> None:
    template = NewMessage("T##", body=b"# ## ###", properties={"KEYS": "a#" + "#" * 18 + "#"})
    message = numbered(template, 1234)
    assert (message.topic, message.body) == ("T##", b"# 34 234")
    assert message.properties == {"KEYS": f"a{1234:018d}34"}


def test_model_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    with writer_of(tmp_path) as writer:
        writer.append_many(list(templates()), 100)
        writer.append(schedule(NewMessage("T", 1, b"later"), 2))
    built: Built = dispatch(contents(tmp_path), ModelConfig(commit_log_file_size=FILE_SIZE))
    assert len(built.records) == 101
    assert built.drops == []
    last = built.records[-1]
    assert last.tags_code == last.store_timestamp + 5000
