"""Damaged logs: records before the damage are kept, its place is named, a skip is recorded."""

import itertools
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.export.task import FileSpec, export_part
from store.commitlog.commit_log import CommitLog
from store.commitlog.live_end import LiveEnd
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, Scanner
from store.errors import DamageError, StoreIOError
from store.output.progress import LostRange
from tests.logs.build import build_log
from tests.model.dispatch import Record, dispatch
from tests.support.dispatching import (
    to_model_config,
)
from tests.support.stores.damaged import (
    CONFIG,
    FILE_SIZE,
    FILES,
    LAST_BASE,
    MESSAGES,
    RECORDS,
    WHOLE,
    Store,
)

Damager = Callable[[bytearray, int, int], None]


def put(format_: str, at: int, value: int) -> Damager:
    """Return a function that writes a number into a record."""

    def damage(content: bytearray, begin: int, _size: int) -> None:
        struct.pack_into(format_, content, begin + at, value)

    return damage


def flip(at: int) -> Damager:
    """Return a function that flips a bit of a record; a negative position counts from its end."""

    def damage(content: bytearray, begin: int, size: int) -> None:
        content[begin + at % size] ^= 1

    return damage


def zero(content: bytearray, begin: int, size: int) -> None:
    """Zero a record."""
    content[begin : begin + size] = bytes(size)


CASES: dict[str, tuple[Damager, str]] = {
    "bad magic": (put(">I", 4, 0xDAA320A8), "bad magic"),
    "longer": (flip(3), "lengths do not add up"),
    "longer than the file": (put(">i", 0, 1 << 20), "lengths do not add up"),
    "no length": (put(">i", 0, 0), "lengths do not add up"),
    "negative length": (put(">i", 0, -143), "lengths do not add up"),
    "other offset": (flip(35), "another physical offset"),
    "far offset": (flip(28), "another physical offset"),
    "body": (flip(88), "body does not match its CRC"),
    "body CRC": (flip(8), "body does not match its CRC"),
    "body length": (flip(87), "lengths do not add up"),
    "topic length": (flip(95), "lengths do not add up"),
    "tag": (flip(-24), "property CRC"),
    "digit of the property CRC": (flip(-3), "property CRC"),
    "zeros": (zero, "zeroed space"),
}


def damaged(number: int, damage: Damager) -> tuple[Record, dict[int, bytes]]:
    """Damage one record; return it and the damaged log."""
    record = RECORDS[number]
    at = record.commit_log_offset % FILE_SIZE
    base = record.commit_log_offset - at
    content = bytearray(FILES[base])
    damage(content, at, record.size)
    return record, {**FILES, base: bytes(content)}


def number_in(base: int) -> int:
    """Return the number of the second record of a file."""
    return 1 + next(n for n, r in enumerate(RECORDS) if r.commit_log_offset >= base)


PLACES = {
    "first file": number_in(0),
    "middle file": number_in(FILE_SIZE),
    "last": number_in(LAST_BASE),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", PLACES)
def test_damage_keeps_what_precedes_it_and_names_the_place(
    store: Store, place: str, case: str
) -> None:
    damage, reason = CASES[case]
    number = PLACES[place]
    record, files = damaged(number, damage)
    store.write(files)
    base = record.commit_log_offset - record.commit_log_offset % FILE_SIZE
    for _ in range(2):  # a second start finds the same damage and changes nothing
        with pytest.raises(DamageError, match=reason) as caught:
            store.dispatch()
        assert (store.path(base), record.commit_log_offset) == (
            caught.value.path,
            caught.value.offset,
        )
        assert str(store.path(base)) in str(caught.value)
        assert str(record.commit_log_offset) in str(caught.value)
        store.assert_built(RECORDS[:number])
        assert not (store.output / "abort").exists()
    store.write(FILES)
    store.dispatch()
    store.assert_built(RECORDS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", PLACES)
def test_damage_is_skipped_when_asked_and_recorded(store: Store, place: str, case: str) -> None:
    damage, reason = CASES[case]
    number = PLACES[place]
    record, files = damaged(number, damage)
    store.write(files)
    progress = store.dispatch(fail_on_data_loss=False)
    [lost] = progress.lost
    begin, end = record.commit_log_offset, record.commit_log_offset + record.size
    base = begin - begin % FILE_SIZE
    assert LostRange(begin, end, str(store.path(base)), lost.reason) == lost
    assert reason in lost.reason
    store.assert_built([r for r in RECORDS if r is not record])
    assert WHOLE.end == progress.reput_from_offset
    assert store.recovered() == ()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", [p for p, n in PLACES.items() if RECORDS[n] is not RECORDS[-1]])
def test_damage_of_dispatched_records_rolls_nothing_back(
    store: Store, place: str, case: str
) -> None:
    store.write(FILES)
    store.dispatch()
    _, files = damaged(PLACES[place], CASES[case][0])
    store.write(files)
    assert store.recovered() == ()
    store.assert_built(RECORDS)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_last_file_of_a_live_log_ends_where_a_broker_would_cut_it(
    store: Store, case: str, fail_on_data_loss: bool, caplog: pytest.LogCaptureFixture
) -> None:
    damage, reason = CASES[case]
    number = PLACES["last"]
    record, files = damaged(number, damage)
    store.write(files, has_abort=True)
    progress = store.dispatch(fail_on_data_loss=fail_on_data_loss)
    assert (record.commit_log_offset, ()) == (progress.reput_from_offset, progress.lost)
    store.assert_built(RECORDS[:number])
    [warning] = caplog.messages
    assert f"ends at offset {record.commit_log_offset} (" in warning
    assert reason in warning


@pytest.mark.parametrize("has_abort", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("case", CASES)
def test_a_bad_last_record_is_the_end_of_the_log(
    store: Store, case: str, has_abort: bool, caplog: pytest.LogCaptureFixture
) -> None:
    record, files = damaged(-1, CASES[case][0])
    store.write(files, has_abort=has_abort)
    progress = store.dispatch(fail_on_data_loss=False)
    assert (record.commit_log_offset, ()) == (progress.reput_from_offset, progress.lost)
    store.assert_built(RECORDS[:-1])
    assert caplog.messages == []


def test_damage_in_two_files_is_skipped_twice(store: Store) -> None:
    numbers = [PLACES["first file"], PLACES["middle file"], PLACES["last"]]
    files = dict(FILES)
    for number, case in zip(numbers, ("bad magic", "zeros", "longer"), strict=True):
        record, other = damaged(number, CASES[case][0])
        base = record.commit_log_offset - record.commit_log_offset % FILE_SIZE
        files[base] = other[base]
    store.write(files)
    progress = store.dispatch(fail_on_data_loss=False)
    expected = [RECORDS[number].commit_log_offset for number in numbers]
    assert expected == [lost.begin for lost in progress.lost]
    store.assert_built([r for n, r in enumerate(RECORDS) if n not in numbers])


def test_small_ranges_of_a_damaged_last_file_still_tile_it(store: Store) -> None:
    config = replace(CONFIG, mapped_file_size_commit_log=4096)
    files = build_log(MESSAGES, 4096, prop_crc=True)
    records = dispatch(files, to_model_config(config)).records
    content = bytearray(files[0])
    content[records[12].commit_log_offset + 4] ^= 1
    store.write({0: bytes(content)})
    planner = LogPlanner(
        CommitLog(config.commit_log_paths(store.store_root), config), lambda: True, range_bytes=1
    )
    bounds = [record.commit_log_offset for record in records[:13]]
    bounds += [record.commit_log_offset + record.size for record in records[13:]]
    expected = list(itertools.pairwise(bounds))
    assert expected == [(part.begin, part.end) for part in planner.plan(0).ranges]


def test_the_reported_end_is_beyond_damage_in_a_clean_log_only(store: Store) -> None:
    record, files = damaged(PLACES["last"], CASES["bad magic"][0])
    store.write(files)
    log = CommitLog(CONFIG.commit_log_paths(store.store_root), CONFIG)
    assert WHOLE.end == LogPlanner(log, lambda: True).end()
    assert record.commit_log_offset == LogPlanner(log, lambda: False).end()


@pytest.mark.parametrize("has_abort", [False, True], ids=["clean", "abort"])
@pytest.mark.parametrize("case", ["bad magic", "zeros", "body"])
def test_a_closed_file_is_damaged_whether_the_log_is_live_or_not(
    store: Store, case: str, has_abort: bool
) -> None:
    record, files = damaged(PLACES["middle file"], CASES[case][0])
    store.write(files, has_abort=has_abort)
    with pytest.raises(DamageError, match=CASES[case][1]):
        store.dispatch()
    progress = store.dispatch(fail_on_data_loss=False)
    assert [record.commit_log_offset] == [lost.begin for lost in progress.lost]
    store.assert_built([r for r in RECORDS if r is not record])


def test_a_closed_file_without_its_blank_is_lost_from_there_on(store: Store) -> None:
    last = [r for r in RECORDS if r.commit_log_offset < FILE_SIZE][-1]
    end = last.commit_log_offset + last.size
    content = FILES[0][:end] + bytes(FILE_SIZE - end)
    store.write({**FILES, 0: content})
    with pytest.raises(DamageError, match="zeroed space") as caught:
        store.dispatch()
    assert end == caught.value.offset
    [lost] = store.dispatch(fail_on_data_loss=False).lost
    assert (end, FILE_SIZE) == (lost.begin, lost.end)
    store.assert_built(RECORDS)


def test_records_inside_a_blank_are_never_found(store: Store) -> None:
    files = build_log(MESSAGES, FILE_SIZE, prop_crc=True, stale_blank=True)
    _record, _ = damaged(PLACES["first file"], CASES["zeros"][0])
    content = bytearray(files[0])
    last = [r for r in RECORDS if r.commit_log_offset < FILE_SIZE][-1]
    zero(content, last.commit_log_offset, last.size)
    store.write({**files, 0: bytes(content)})
    [lost] = store.dispatch(fail_on_data_loss=False).lost
    assert (last.commit_log_offset, last.commit_log_offset + last.size) == (lost.begin, lost.end)
    store.assert_built([r for r in RECORDS if r is not last])


def test_a_file_that_is_truncated_after_planning_is_damage_from_there_on(store: Store) -> None:
    """It ends where a record ends, so no record of the range fails its checks."""
    store.write(FILES)
    log = CommitLog(CONFIG.commit_log_paths(store.store_root), CONFIG)
    (part,) = LogPlanner(log, lambda: True).plan(0, until=FILE_SIZE).ranges
    cuts = [r.commit_log_offset + r.size for r in RECORDS if r.commit_log_offset < FILE_SIZE]
    for cut in [*cuts[-2::-1], 0]:
        os.truncate(store.path(0), cut)
        *read, damage = Scanner(CONFIG).read(part)
        assert isinstance(damage, Damage)
        assert (damage.begin, damage.end, damage.path) == (cut, part.end, str(store.path(0)))
        assert f"truncated to {cut} bytes" in damage.reason
        assert sum(len(s) for s in read if not isinstance(s, Damage)) == sum(c <= cut for c in cuts)


@pytest.mark.parametrize("skip", [False, True])
def test_an_export_of_a_file_that_is_truncated_after_planning_loses_nothing_silently(
    store: Store, tmp_path: Path, skip: bool
) -> None:
    store.write(FILES)
    log = CommitLog(CONFIG.commit_log_paths(store.store_root), CONFIG)
    (part,) = LogPlanner(log, lambda: True).plan(0, until=FILE_SIZE).ranges
    cut = RECORDS[2].commit_log_offset
    os.truncate(store.path(0), cut)
    (tmp_path / "staging").mkdir()
    columns = ("commit_log_offset",)
    spec = FileSpec(tmp_path / "staging", CONFIG, "parquet", "none", columns, skip_damage=skip)
    if skip:
        done = export_part(Scanner(CONFIG), part, spec)
        (lost,) = done.lost
        assert (done.messages, lost.begin, lost.end) == (2, cut, part.end)
    else:
        with pytest.raises(DamageError, match=f"truncated to {cut} bytes"):
            export_part(Scanner(CONFIG), part, spec)


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_the_search_after_the_live_end_names_a_file_that_is_gone(store: Store, change: str) -> None:
    _, files = damaged(PLACES["last"], zero)
    store.write(files)
    log = CommitLog(CONFIG.commit_log_paths(store.store_root), CONFIG)
    last, path = log.last_file(), store.path(LAST_BASE)
    assert last is not None
    content = last.map()[:]
    path.rename(path.with_name("elsewhere"))
    if change == "replaced":
        path.write_bytes(content)
    with pytest.raises(StoreIOError, match=f"{LAST_BASE:020}"):
        LiveEnd(log, lambda: True).find()
