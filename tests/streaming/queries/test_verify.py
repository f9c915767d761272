"""What verify accepts as equal, what it only counts, and what it rejects. No JVM."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from reput.cli import run
from store.commitlog.dispatch_request import DispatchRequests
from store.compare.store import Counts
from store.errors import ConfigError, DamageError
from store.index.writer import IndexService
from store.layout import EXT_UNIT, EXT_UNIT_SIZE
from streaming.queries.verify import verify
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.logs.build import build_log, write_log
from tests.logs.random_logs import Mix, random_messages
from tests.support.dispatching import HastyDisk, assert_same_content, dispatch_all, tree
from tests.support.verify_stores import (
    CONFIG,
    EXT_CONFIG,
    EXT_QUEUE,
    IN_A_BODY,
    QUEUE,
    VARIANTS,
    flip,
    forget_progress,
    make,
    messages,
    requests_of,
    write_store,
)

REFUSED = "v-magic2-5.0.0"  # its log continues with records that its broker cannot read


def stores(*names: str) -> pytest.MarkDecorator:
    """Run a test with these golden stores only."""
    archives = [path for path in ARCHIVES if archive_name(path) in names]
    return pytest.mark.parametrize("golden", archives, ids=archive_name, indirect=True)


EXT_CONF = """
mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=13
enableConsumeQueueExt=true
mappedFileSizeConsumeQueueExt=130
"""
READABLE = stores(*(name for name in map(archive_name, ARCHIVES) if name != REFUSED))


@READABLE
def test_a_dispatched_store_is_equal(golden: Golden, tmp_path: Path) -> None:
    progress = dispatch_all(golden.store_root, tmp_path, golden.config)
    before = tree(tmp_path)
    result = verify(golden.store_root, tmp_path, golden.config)
    assert result.differences == ()
    assert result.is_dispatched
    assert result.end_offset == progress.reput_from_offset
    assert result.messages == progress.messages
    counts = result.counts
    assert counts == Counts(units=counts.units, entries=counts.entries)
    drops = {f"{t}/{q}": {"repeated": d.repeated, "gaps": d.gaps}
             for (t, q), d in result.drops.items()}  # fmt: skip
    assert drops == progress.drops
    assert_same_content(tree(tmp_path), before)


@READABLE
def test_a_brokers_own_files_are_equal(golden: Golden) -> None:
    result = verify(golden.store_root, golden.expected, golden.config)
    assert result.differences == ()
    counts = result.counts
    assert counts == Counts(units=counts.units, entries=counts.entries)


@stores("g6", "g6b")
def test_the_remains_of_a_broker_crash_are_counted(golden: Golden) -> None:
    result = verify(golden.store_root, golden.directory / "expected", golden.config)
    assert result.differences == ()
    left = {"g6": Counts(doubled_entries=1), "g6b": Counts(stale_units=41, doubled_entries=2)}
    assert replace(result.counts, units=0, entries=0) == left[golden.name]


@stores("g6b")
def test_queues_and_index_ahead_of_the_log_are_counted(golden: Golden) -> None:
    result = verify(golden.store_root, golden.directory / "crashed", golden.config)
    assert result.differences == ()
    left = replace(result.counts, units=0, entries=0)
    assert left == Counts(stale_units=44, stale_entries=94)


@stores("g6")
def test_queues_and_index_behind_the_log_differ(golden: Golden) -> None:
    result = verify(golden.store_root, golden.directory / "crashed", golden.config)
    units = [d for d in result.differences if d.part == "unit"]
    assert {d.path.parent.parent.name for d in units} == {"MyTopic", "OrderTopic"}
    assert all(d.actual == "nothing (zeros)" for d in units)
    assert "entry" in {d.part for d in result.differences}


@stores("g1", "g2", "g3", "g4", "g5", "g6", "g6b", "g7", "g9", "g10")
def test_units_and_entries_older_than_the_log_are_counted(golden: Golden, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "output"
    shutil.copytree(golden.store_root, store)
    dispatch_all(store, output, golden.config)
    min((store / "commitlog").iterdir()).unlink()
    for compared in (output, golden.directory / "expected"):
        whole = verify(golden.store_root, compared, golden.config)
        aged = verify(store, compared, golden.config)
        assert aged.differences == ()
        assert aged.counts.older_units > 0
        assert aged.counts.older_units + aged.counts.units == whole.counts.units
        older = aged.counts.older_entries
        assert (older > 0) == golden.config.message_index_enable
        assert older + aged.counts.entries == whole.counts.entries


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(3))
def test_odd_logs_are_equal_in_a_dispatched_output_and_in_a_brokers(
    tmp_path: Path, variant: str, seed: int
) -> None:
    config = replace(VARIANTS[variant], mapped_file_size_commit_log=8192)
    sent = random_messages(Random(seed), 120, Mix())
    write_log(build_log(sent, 8192), tmp_path / "store/commitlog")
    progress = dispatch_all(tmp_path / "store", tmp_path / "output", config)
    result = verify(tmp_path / "store", tmp_path / "output", config)
    assert result.differences == ()
    assert sum(d.repeated for d in result.drops.values()) == sum(
        d["repeated"] for d in progress.drops.values()
    )
    forget_progress(tmp_path / "output")
    brokers = verify(tmp_path / "store", tmp_path / "output", config)
    assert brokers.differences == ()
    assert not brokers.is_dispatched


def test_records_appended_since_are_not_compared(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    write_store(tmp_path, messages(20))
    result = verify(store, output, CONFIG)
    assert result.differences == ()
    assert result.messages == 12
    assert result.end_offset < result.log_end_offset


def test_units_of_an_interrupted_dispatch_beyond_progress_are_counted(tmp_path: Path) -> None:
    store, output = make(tmp_path, count=10)
    before = (output / "reput/progress").read_bytes()
    write_store(tmp_path, messages(12))
    dispatch_all(store, output, CONFIG)
    (output / "reput/progress").write_bytes(before)
    assert not verify(store, output, CONFIG).is_equal
    (output / "abort").touch()
    result = verify(store, output, CONFIG)
    assert result.differences == ()
    left = replace(result.counts, units=0, entries=0)
    assert left == Counts(stale_units=2, stale_entries=4)


def first_keys(requests: DispatchRequests, count: int) -> DispatchRequests:
    """Return requests up to a number of keys; the last record may keep only some of its keys."""
    rows = int(np.searchsorted(requests.key_end, count)) + 1
    part = requests.slice(0, rows)
    key_end = np.minimum(part.key_end, count).astype(np.int32)
    return replace(part, key_end=key_end, key_hash=part.key_hash[:count])


@pytest.mark.parametrize(
    ("max_index_num", "count", "keys", "again"),
    [(100, 6, 12, 5), (100, 6, 10, 4), (13, 7, 12, 5), (12, 7, 11, 5), (100, 6, 9, 4)],
    ids=["at the end", "between", "into the next file", "rest in the next file", "half-way"],
)
def test_a_record_indexed_again_by_a_restart_is_counted(
    tmp_path: Path, max_index_num: int, count: int, keys: int, again: int
) -> None:
    config = replace(CONFIG, max_index_num=max_index_num)
    store, output = make(tmp_path, config, count)
    forget_progress(output)
    shutil.rmtree(output / "index")
    requests, disk = requests_of(store, config), HastyDisk()
    service = IndexService(output, config, disk)
    service.build_index(first_keys(requests, keys))
    service.build_index(requests.slice(again, count))
    disk.close()
    result = verify(store, output, config)
    assert result.differences == ()
    assert result.counts == Counts(units=count, entries=2 * count, doubled_entries=keys - 2 * again)


def test_a_displaced_queue_is_known_on_an_aged_output(tmp_path: Path) -> None:
    sent = messages(60)
    gap = [m if n < 5 else replace(m, queue_offset=n + 3) for n, m in enumerate(sent)]
    store, output = write_store(tmp_path, gap), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    min((store / "commitlog").iterdir()).unlink()
    result = verify(store, output, CONFIG)
    assert result.differences == ()
    assert result.counts.displaced_queues == 1
    assert result.counts.older_units + result.counts.units == 60


def test_a_topic_created_again_is_known_on_an_aged_output(tmp_path: Path) -> None:
    """Of the messages sent after the topic was created again, 1 to 11 are in no queue."""
    first = messages(12)
    again = [replace(m, queue_offset=n) for n, m in enumerate(messages(60))]
    store, output = write_store(tmp_path, [*first, *again]), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    assert verify(store, output, CONFIG).differences == ()
    whole = len(list((store / "commitlog").iterdir()))
    for _ in range(whole // 4):
        min((store / "commitlog").iterdir()).unlink()
    result = verify(store, output, CONFIG)
    assert result.differences == ()
    assert result.counts.units + result.counts.older_units == 60
    for path in sorted((output / "consumequeue").glob("*/*/*")):  # the fault is found
        data = path.read_bytes()
        path.write_bytes(bytes(len(data)))
        assert verify(store, output, CONFIG).differences
        path.write_bytes(data)


def test_ranges_that_the_dispatch_skipped_are_not_compared(tmp_path: Path) -> None:
    store, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    flip(store / "commitlog" / f"{0:020}", IN_A_BODY)
    dispatch_all(store, output, CONFIG, fail_on_data_loss=False)
    result = verify(store, output, CONFIG)
    assert result.differences == ()
    assert len(result.lost) == 1
    assert 0 < result.messages < 60


# --- What cannot be verified --------------------------------------------------------------------


def test_damage_of_the_log_is_an_error(tmp_path: Path) -> None:
    store, output = make(tmp_path, count=60)
    flip(store / "commitlog" / f"{4096:020}", IN_A_BODY)
    with pytest.raises(DamageError, match=f"{4096:020}"):
        verify(store, output, CONFIG)


def truncate_log(store: Path) -> None:
    path = max((store / "commitlog").iterdir())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(0)
        file.truncate(size)


def change_last_record(store: Path) -> None:
    write_store(store.parent, [*messages(59), replace(messages(60)[-1], store_timestamp=1)])


@pytest.mark.parametrize("change", [truncate_log, change_last_record])
def test_another_log_is_an_error(tmp_path: Path, change: Callable[[Path], None]) -> None:
    store, output = make(tmp_path, count=60)
    change(store)
    with pytest.raises(DamageError, match="the log changed"):
        verify(store, output, CONFIG)


def test_other_settings_than_those_of_the_output_are_refused(tmp_path: Path) -> None:
    store, output = make(tmp_path)
    with pytest.raises(ConfigError, match="maxIndexNum"):
        verify(store, output, replace(CONFIG, max_index_num=14))
    with pytest.raises(ConfigError, match="not a directory"):
        verify(store, tmp_path / "nowhere", CONFIG)


@stores(REFUSED)
def test_a_log_that_its_broker_cannot_read_is_an_error(golden: Golden) -> None:
    with pytest.raises(DamageError, match="V2"):
        verify(golden.store_root, golden.expected, golden.config)


# --- The command --------------------------------------------------------------------------------


def test_the_command_reports_equality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = make(tmp_path)
    assert run(["verify", str(store), "--output", str(output)]) == 0
    assert capsys.readouterr().out == (
        f"equal: {output} matches its log (12 messages, offsets 0 to 2,666: "
        "12 queue units, 24 index entries)\n"
    )


def test_the_command_names_what_differs_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = make(tmp_path)
    path = output / QUEUE / f"{100:020}"
    flip(path, 19)
    assert run(["verify", str(store), "--output", str(output)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"differs: 1 file of {output}")
    assert f"{path}: unit 0 (position 5) expected" in out
    assert run(["verify", str(store), "--output", str(output), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["equal"], result["messages"], result["made_by"]) == (False, 12, "reput")
    assert [d["queue_offset"] for d in result["differences"]] == [5]


def test_the_command_reports_what_a_brokers_rules_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = messages(10)
    sent[6] = replace(sent[6], queue_offset=2)
    store, output = write_store(tmp_path, sent), tmp_path / "output"
    dispatch_all(store, output, CONFIG)
    assert run(["verify", str(store), "--output", str(output)]) == 0
    out = capsys.readouterr().out
    assert "a broker's own rules dropped 1 message of TopicTest/0" in out
    assert "a broker's own rules misplaced 3 messages of TopicTest/0" in out


def test_the_command_exits_with_3_on_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = make(tmp_path, count=60)
    flip(store / "commitlog" / f"{4096:020}", IN_A_BODY)
    assert run(["verify", str(store), "--output", str(output)]) == 3
    assert "cannot be derived" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "recover", "rebuild"])
def test_filter_bitmaps_are_recognised_without_their_setting(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, compared = make(tmp_path, EXT_CONFIG)
    forget_progress(compared)
    (store / "broker.conf").write_text(EXT_CONF)
    last = compared / EXT_QUEUE / f"{EXT_CONFIG.mapped_file_size_consume_queue_ext:020}"
    unit = np.fromfile(last, EXT_UNIT, 2, offset=3 * EXT_UNIT_SIZE)
    assert unit["size"].tolist() == [EXT_UNIT_SIZE, EXT_UNIT_SIZE]
    unit[0]["size"], unit[0]["bitmap_length"] = EXT_UNIT_SIZE + 4, 4
    unit[1:] = np.frombuffer(b"\0\0\0\1".ljust(EXT_UNIT_SIZE, b"\0"), EXT_UNIT)
    with last.open("r+b") as file:
        file.seek(3 * EXT_UNIT_SIZE)
        file.write(unit.tobytes())
    before = tree(compared)
    assert run([command, str(store), "--output", str(compared)]) == 5
    said = f"{last}: the ext unit at byte {3 * EXT_UNIT_SIZE} holds a bitmap of filters"
    assert said in capsys.readouterr().err
    assert_same_content(tree(compared), before)
