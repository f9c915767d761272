"""What an export refuses: options, directories, topics, and a damaged log."""

import json
from pathlib import Path

import pytest

from reput.export.export_record import RECORD
from reput.export.options import ExportOptions
from reput.export.run import open_export
from store.errors import (
    DamageError,
    OutputInUseError,
    StoreIOError,
    UnknownTopicError,
)
from tests.logs.build import Message
from tests.support.exporting import (
    BEGIN,
    export,
    make_store,
    names_in,
    offsets_of,
    reput_here,
    sent_to,
)
from tests.support.stores.aged import log_files
from tests.support.verify_stores import flip, messages


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--columns", "tgas"], "parquet files have no column 'tgas'; did you mean 'tags'"),
        (["--columns", "xyz"], "no column 'xyz'; known are topic, queue_id"),
        (["--columns", "topic"], "at least one column besides topic and day"),
        (["--columns", ""], "no column ''"),
        (["--format", "jsonl", "--columns", "tags_code"], "jsonl files have no column"),
        (["--compression", "lz4"], "parquet files can have snappy, zstd, gzip, none"),
        (["--format", "jsonl", "--compression", "snappy"], "jsonl files can have none, gzip, zstd"),
        (["--format", "csv"], "known are parquet, jsonl"),
        (["--from-time", "2", "--to-time", "1"], "--from-time 2 is after --to-time 1"),
        (["--exclude-system", "--topic", "TBW102"], "is a system topic: omit --exclude-system"),
    ],
)
def test_invalid_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    code, _, err = reput_here(capsys, "export", store, "--to", to, *options)
    assert code == 2
    assert reason in err
    assert not to.exists()


def test_a_directory_with_other_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    to.mkdir()
    (to / "mine").touch()
    for options, reason in (
        ([], "exists and is not empty: give a new directory"),
        (["--append"], "holds no export to append to"),
    ):
        code, _, err = reput_here(capsys, "export", store, "--to", to, *options)
        assert (code, reason in err) == (2, True), err
    inside = store / "commitlog/export"
    code, _, err = reput_here(capsys, "export", store, "--to", inside)
    assert (code, "is inside the commit log" in err) == (2, True)
    assert (names_in(to), inside.exists()) == ({"mine"}, False)


def test_a_directory_in_use_by_another_export_is_refused(tmp_path: Path) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"
    with (
        open_export(store, to, ExportOptions(append=True)) as job,
        pytest.raises(OutputInUseError, match="in use by another export"),
    ):
        export(store, to, append=True)
    assert job.ranges
    assert names_in(to) >= {RECORD}


def test_an_unknown_topic_is_an_error_that_suggests_similar_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = make_store(tmp_path, sent_to("Orders", "Payments")), tmp_path / "to"
    with pytest.raises(UnknownTopicError, match="topic 'orderz' is not in the log"):
        export(store, to, topics=("Payments", "orderz"))
    assert not to.exists()
    to.mkdir()
    with pytest.raises(UnknownTopicError, match=r"did you mean 'Orders'\?"):
        export(store, to, topics=("orderz",), from_time=BEGIN + 10**9)
    assert names_in(to) == set()
    code, _, err = reput_here(
        capsys, "export", store, "--to", to, "--topic", "zzz", "--to-time", BEGIN - 1
    )
    assert (code, err.strip()) == (1, f"reput: topic 'zzz' is not in the log of {store}")
    assert names_in(to) == set()


def test_a_topic_without_messages_in_the_time_range_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [Message("Late", store_timestamp=BEGIN + 1000)]
    store, to = make_store(tmp_path, [*sent_to("A"), *late]), tmp_path / "to"
    done = export(store, to, topics=("A", "Late"), to_time=BEGIN + 999)
    assert (done.messages, done.without_messages) == (3, ("Late",))
    (store / "consumequeue/Idle").mkdir(parents=True)
    for topic, time in (("Late", BEGIN + 999), ("Idle", BEGIN + 2000)):
        done = export(store, tmp_path / "no", topics=(topic,), to_time=time)
        assert (done.messages, done.without_messages) == (0, (topic,))
        assert not (tmp_path / "no").exists()
    options = ("--topic", "A", "--to-time", BEGIN - 1, "--json", "--to", tmp_path / "no")
    code, out, _ = reput_here(capsys, "export", store, *options)
    assert (code, json.loads(out)["status"]) == (1, "NO_MESSAGE")
    assert not (tmp_path / "no").exists()


def test_a_damaged_log_exports_nothing(tmp_path: Path) -> None:
    store, to = make_store(tmp_path, messages(60)), tmp_path / "to"
    flip(log_files(store)[1], 100)
    with pytest.raises(DamageError, match="at offset 4096"):
        export(store, to)
    assert not to.exists()
    done = export(store, to, fail_on_data_loss=False)
    assert 30 < done.messages < 60
    assert len(offsets_of(to)) == done.messages


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_directory_that_is_moved_away_is_named(tmp_path: Path, *, is_replaced: bool) -> None:
    store, to, moved = make_store(tmp_path, messages(3)), tmp_path / "to", tmp_path / "moved"

    def export_and_move() -> None:
        with open_export(store, to, ExportOptions()) as job:
            to.rename(moved)
            if is_replaced:
                to.mkdir()
            job.run()

    with pytest.raises(StoreIOError, match=f"cannot export to {to}: the directory was moved or de"):
        export_and_move()
    assert to.exists() == is_replaced
    assert (moved / RECORD).exists()
