"""Exports in this process: the content of the files, refusals, and recovery from a kill."""

import gzip
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import zstandard

from store.errors import (
    ConfigError,
    DamageError,
    LostDataError,
    RootInUseError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from store.io.disk import Disk
from store.reads.message_json import message_json
from store.reads.message_store import MessageStore
from streaming.cli import run
from streaming.export.directory import STAGING, ExportDirectory
from streaming.export.export import ExportOptions, ExportResult, export_part, open_export
from streaming.export.record import RECORD
from streaming.export.run import LocalRunner
from streaming.export.task import NO_VALUE, partition_directory
from tests.logs.build import Message, build_log, write_log
from tests.support.cases import stride
from tests.support.stores.aged import log_files
from tests.support.verify_stores import CONFIG, flip, messages, write_store

CONF = "mappedFileSizeCommitLog=4096\n"
BEGIN = 1_700_000_000_000
ODD_TOPICS = [
    NO_VALUE,
    "a/b",
    "a%b",
    "%52ETRY",
    "a=b:c",
    "Grüße 世界",
    "{x}[y]^?*",
    "tab\t'\"#\\",
    "a b+",
]


class Killed(BaseException):
    """Simulates a kill: nothing that happens after it takes effect."""


def write(root: Path, sent: Sequence[Message], start: int = 0) -> Path:
    store = write_store(root, list(sent), start)
    (store / "broker.conf").write_text(CONF)
    return store


def sent_to(*topics: str, count: int = 3) -> list[Message]:
    return [
        Message(topic, queue_offset=n, body=f"{topic} {n}".encode(), store_timestamp=BEGIN + n)
        for n in range(count)
        for topic in topics
    ]


def export(store: Path, to: Path, **options: Any) -> ExportResult:
    with open_export(store, to, ExportOptions(**options)) as job:
        return job.run(LocalRunner())


def files_of(to: Path) -> list[Path]:
    return sorted(path for path in to.rglob("part-*") if path.is_file())


def offsets_of(to: Path) -> list[int]:
    """Return the commit log offsets of all exported rows."""
    found: list[int] = []
    for path in files_of(to):
        found += pq.ParquetFile(path).read(["commit_log_offset"]).column(0).to_pylist()
    return sorted(found)


def names_in(to: Path) -> set[str]:
    return {path.name for path in to.iterdir()}


def reput(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# --- Files ----------------------------------------------------------------------------------------


def test_parquet_times_are_microseconds_in_utc(tmp_path: Path) -> None:
    store = write(tmp_path, messages(3))
    export(store, tmp_path / "to")
    (path,) = files_of(tmp_path / "to")
    schema = pq.ParquetFile(path).schema
    for name in ("store_timestamp", "born_timestamp"):
        column = schema.column(schema.names.index(name))
        assert column.physical_type == "INT64"
        assert str(column.logical_type).startswith(
            "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds, "
        )
    assert pq.read_schema(path).field("store_timestamp").type == pa.timestamp("us", "UTC")


def test_json_lines_are_what_get_prints(tmp_path: Path) -> None:
    odd = [
        Message(body=b"\xff\0\x01", queue_offset=0, properties=[("K", 'a "b" \\ \n')]),
        Message(body=b'{"a": 1}', queue_offset=1, properties=[("TAGS", "t"), ("TAGS", "u")]),
        Message(body=b"", queue_offset=2, born_timestamp=-1, store_host=bytes(range(16))),
    ]
    store = write(tmp_path, [*odd, *sent_to("Other")])
    export(store, tmp_path / "to", file_format="jsonl")
    with MessageStore.open(store) as reads:
        for path in files_of(tmp_path / "to"):
            assert path.name.endswith(".jsonl")
            for line in path.read_text("utf-8").splitlines():
                found = reads.look_message_by_offset(json.loads(line)["commit_log_offset"])
                assert found is not None
                assert line == json.dumps(message_json(found), ensure_ascii=False)


@pytest.mark.parametrize(
    ("compression", "suffix", "unpack"),
    [
        ("none", ".jsonl", bytes),
        ("gzip", ".jsonl.gz", gzip.decompress),
        (
            "zstd",
            ".jsonl.zst",
            lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(),
        ),
    ],
)
def test_json_lines_are_compressed(
    tmp_path: Path, compression: str, suffix: str, unpack: Callable[[bytes], bytes]
) -> None:
    store = write(tmp_path, sent_to("A"))
    to = tmp_path / "to"
    export(store, to, file_format="jsonl", compression=compression)
    (path,) = files_of(to)
    assert path.name == f"part-{0:020d}-{log_end(store):020d}-000{suffix}"
    lines = unpack(path.read_bytes()).splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["A 0", "A 1", "A 2"]
    table = f"read_json('{to}/**/*{suffix}', hive_partitioning=true)"
    assert duckdb.sql(f"select count(*) from {table} where topic = 'A'").fetchall() == [(3,)]


def log_end(store: Path) -> int:
    with MessageStore.open(store) as reads:
        return reads.max_phy_offset()


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "none"])
def test_parquet_is_compressed(tmp_path: Path, compression: str) -> None:
    store = write(tmp_path, messages(3))
    export(store, tmp_path / "to", compression=compression)
    (path,) = files_of(tmp_path / "to")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression.lower() == compression.replace("none", "uncompressed")


def test_only_the_columns_asked_for_are_written(tmp_path: Path) -> None:
    store = write(tmp_path, sent_to("A", "B"))
    export(store, tmp_path / "p", columns=("body", "day", "queue_offset", "topic"))
    assert pq.ParquetFile(files_of(tmp_path / "p")[0]).schema_arrow.names == [
        "body",
        "queue_offset",
    ]
    found = pa.dataset.dataset(tmp_path / "p", partitioning="hive")
    assert set(found.schema.names) == {"body", "queue_offset", "topic", "day"}
    export(store, tmp_path / "j", file_format="jsonl", columns=("body", "queue_offset"))
    first = files_of(tmp_path / "j")[0].read_text().splitlines()[0]
    assert first == '{"queue_offset": 0, "body_encoding": "utf-8", "body": "A 0"}'


def test_system_topics_are_left_out(tmp_path: Path) -> None:
    system = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102"]
    store = write(tmp_path, sent_to("A", "%RETRY%g", "%DLQ%g", *system, count=1))
    export(store, tmp_path / "to", exclude_system=True)
    found = {path.parts[-3] for path in files_of(tmp_path / "to")}
    assert found == {"topic=A", "topic=%25RETRY%25g", "topic=%25DLQ%25g"}


def test_partition_directories_are_read_back_as_the_topics(tmp_path: Path) -> None:
    store = write(tmp_path, sent_to(*ODD_TOPICS, count=1))
    export(store, tmp_path / "to")
    table = f"read_parquet('{tmp_path}/to/**/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(f"select topic, cast(body as varchar) from {table}").fetchall()
    with MessageStore.open(store) as reads:
        assert reads.max_phy_offset() > 0
    assert sorted(topic for topic, _ in found) == sorted(ODD_TOPICS)
    fields = pa.schema([("topic", pa.string()), ("day", pa.string())])
    hive = pa.dataset.HivePartitioning(fields, null_fallback="none of these")
    rows = pa.dataset.dataset(tmp_path / "to", partitioning=hive).to_table(["topic"])
    assert sorted(rows.column("topic").to_pylist()) == sorted(ODD_TOPICS)


def test_a_day_beyond_the_calendar_is_null(tmp_path: Path) -> None:
    store = write(tmp_path, [Message("A", store_timestamp=2**62), Message("A")])
    export(store, tmp_path / "to")
    assert {"/".join(path.parts[-3:-1]) for path in files_of(tmp_path / "to")} == {
        f"topic=A/day={NO_VALUE}",
        "topic=A/day=2023-11-14",
    }
    assert partition_directory("topic", "") == f"topic={NO_VALUE}"


def test_messages_between_two_times_are_exported_where_the_clock_stepped_back(
    tmp_path: Path,
) -> None:
    times = [0, 5, 6, 2, 7, 9, 8, 20]
    sent = [
        Message(queue_offset=n, store_timestamp=BEGIN + t, body=b"%d" % t)
        for n, t in enumerate(times)
    ]
    store = write(tmp_path, sent)
    to = tmp_path / "to"
    export(store, to, from_time=BEGIN + 5, to_time=BEGIN + 8)
    (path,) = files_of(to)
    bodies = pq.ParquetFile(path).read(["body"]).column(0).to_pylist()
    assert bodies == [b"5", b"6", b"7"]


def test_the_report_counts_bytes_of_the_log(tmp_path: Path) -> None:
    store = write(tmp_path, messages(60))
    told: list[tuple[int, int]] = []
    with open_export(store, tmp_path / "to", ExportOptions()) as job:
        done = job.run(LocalRunner(), lambda *progress: told.append(progress))
    total = done.end_offset - done.begin_offset
    assert len(told) > 1
    assert [counted for counted, _ in told] == sorted(counted for counted, _ in told)
    assert told[-1] == (total, total)
    assert {all_bytes for _, all_bytes in told} == {total}


# --- What is refused ------------------------------------------------------------------------------


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
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    code, _, err = reput(capsys, "export", store, "--to", to, *options)
    assert code == 2
    assert reason in err
    assert not to.exists()


def test_a_directory_that_holds_other_things_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    to.mkdir()
    (to / "mine").touch()
    for options, reason in (
        ([], "exists and is not empty: give a new directory"),
        (["--append"], "holds no export to append to"),
    ):
        code, _, err = reput(capsys, "export", store, "--to", to, *options)
        assert (code, reason in err) == (2, True), err
    inside = store / "commitlog/export"
    code, _, err = reput(capsys, "export", store, "--to", inside)
    assert (code, "is inside the commit log" in err) == (2, True)
    assert (names_in(to), inside.exists()) == ({"mine"}, False)


def test_a_directory_is_exported_into_by_one_at_a_time(tmp_path: Path) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    with (
        open_export(store, to, ExportOptions(append=True)) as job,
        pytest.raises(RootInUseError, match="in use by another export"),
    ):
        export(store, to, append=True)
    assert job.ranges
    assert names_in(to) >= {RECORD}


def test_an_unknown_topic_is_an_error_that_names_those_near(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = write(tmp_path, sent_to("Orders", "Payments")), tmp_path / "to"
    with pytest.raises(UnknownTopicError, match="topic 'orderz' is not in the log"):
        export(store, to, topics=("Payments", "orderz"))
    assert not to.exists()
    to.mkdir()
    with pytest.raises(UnknownTopicError, match=r"did you mean 'Orders'\?"):
        export(store, to, topics=("orderz",), from_time=BEGIN + 10**9)
    assert names_in(to) == set()
    code, _, err = reput(
        capsys, "export", store, "--to", to, "--topic", "zzz", "--to-time", BEGIN - 1
    )
    assert (code, err.strip()) == (1, f"reput: topic 'zzz' is not in the log of {store}")
    assert names_in(to) == set()


def test_a_topic_without_messages_in_the_time_range_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = [Message("Late", store_timestamp=BEGIN + 1000)]
    store, to = write(tmp_path, [*sent_to("A"), *late]), tmp_path / "to"
    done = export(store, to, topics=("A", "Late"), to_time=BEGIN + 999)
    assert (done.messages, done.without_messages) == (3, ("Late",))
    (store / "consumequeue/Idle").mkdir(parents=True)
    for topic, time in (("Late", BEGIN + 999), ("Idle", BEGIN + 2000)):
        done = export(store, tmp_path / "no", topics=(topic,), to_time=time)
        assert (done.messages, done.without_messages) == (0, (topic,))
        assert not (tmp_path / "no").exists()
    options = ("--topic", "A", "--to-time", BEGIN - 1, "--json", "--to", tmp_path / "no")
    code, out, _ = reput(capsys, "export", store, *options)
    assert (code, json.loads(out)["status"]) == (1, "NO_MESSAGE")
    assert not (tmp_path / "no").exists()


def test_a_damaged_log_leaves_nothing(tmp_path: Path) -> None:
    store, to = write(tmp_path, messages(60)), tmp_path / "to"
    flip(log_files(store)[1], 100)
    with pytest.raises(DamageError, match="at offset 4096"):
        export(store, to)
    assert not to.exists()
    done = export(store, to, fail_on_data_loss=False)
    assert 30 < done.messages < 60
    assert len(offsets_of(to)) == done.messages


# --- Appending ------------------------------------------------------------------------------------


def grow(store: Path, count: int) -> None:
    write_log(build_log(messages(count), CONFIG.mapped_file_size_commit_log), store / "commitlog")


def test_appending_exports_exactly_what_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = write(tmp_path, messages(20)), tmp_path / "to"
    first = export(store, to, append=True)
    grow(store, 50)
    second = export(store, to, append=True)
    assert (first.messages, second.messages) == (20, 30)
    assert second.begin_offset == first.end_offset
    export(store, tmp_path / "all")
    assert offsets_of(to) == offsets_of(tmp_path / "all")
    code, out, _ = reput(capsys, "export", store, "--to", to, "--append", "--json")
    assert (code, json.loads(out)["messages"], json.loads(out)["files"]) == (0, 0, 0)
    assert offsets_of(to) == offsets_of(tmp_path / "all")


def test_a_time_to_stop_at_loses_nothing_where_the_clock_stepped_back(tmp_path: Path) -> None:
    times = [0, 5, 6, 2, 9, 3, 20]
    sent = [Message(queue_offset=n, store_timestamp=BEGIN + t) for n, t in enumerate(times)]
    store, to = write(tmp_path, sent), tmp_path / "to"
    counts = [export(store, to, append=True, to_time=BEGIN + t).messages for t in (5, 5, 8, 1, 100)]
    assert sum(counts) == len(times)
    assert len(set(offsets_of(to))) == len(times)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"file_format": "jsonl"}, "file_format is 'parquet' there, 'jsonl' here"),
        ({"compression": "zstd"}, "compression is 'snappy' there, 'zstd' here"),
        ({"columns": ("body",)}, "columns is"),
        ({"topics": ("TopicTest",)}, "topics is all there, TopicTest here"),
        ({"exclude_system": True}, "exclude_system is false there, true here"),
        ({"from_time": BEGIN}, "from_time is none there"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    before = offsets_of(to), names_in(to)
    with pytest.raises(ConfigError, match=reason):
        export(store, to, append=True, **options)
    other = write(tmp_path / "other", messages(3))
    with pytest.raises(ConfigError, match="store is "):
        export(other, to, append=True)
    assert (offsets_of(to), names_in(to)) == before


def test_what_expired_since_the_last_export_is_lost_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, to = write(tmp_path, messages(5)), tmp_path / "to"
    end = export(store, to).end_offset
    grow(store, 60)
    log_files(store)[0].unlink()
    with pytest.raises(LostDataError, match=f"offsets {end} to 4096 are lost"):
        export(store, to, append=True)
    code, _, err = reput(capsys, "export", store, "--to", to, "--append")
    assert (code, err.count("\n")) == (3, 1)
    done = export(store, to, append=True, fail_on_data_loss=False)
    assert done.begin_offset == 4096
    assert len(offsets_of(to)) == 5 + done.messages


def test_a_log_that_changed_where_the_last_export_ended_is_refused(tmp_path: Path) -> None:
    store, to = write(tmp_path, messages(5)), tmp_path / "to"
    export(store, to)
    other = [replace(m, properties=[("TAGS", "B"), ("KEYS", "k0 common")]) for m in messages(9)]
    write_log(build_log(other, CONFIG.mapped_file_size_commit_log), store / "commitlog")
    before = offsets_of(to)
    with pytest.raises(DamageError, match="the log changed"):
        export(store, to, append=True)
    assert offsets_of(to) == before


class DyingDisk(Disk):
    """Simulates a kill at the n-th change of the disk."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self._steps = steps

    def _step(self) -> None:
        self._steps[0] -= 1
        if self._steps[0] < 0:
            raise Killed

    def _rename(self, source: Path, target: Path) -> None:
        self._step()
        super()._rename(source, target)

    def _mkdir(self, path: Path) -> None:
        self._step()
        super()._mkdir(path)

    def _create(self, path: Path) -> int:
        self._step()
        return super()._create(path)

    def _unlink(self, path: Path) -> None:
        self._step()
        super()._unlink(path)

    def _rmdir(self, path: Path) -> None:
        self._step()
        super()._rmdir(path)


@stride(5)
def test_an_export_killed_anywhere_leaves_no_duplicate_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    store, to = write(tmp_path, messages(50)), tmp_path / "to"
    export(store, tmp_path / "all")
    expected = offsets_of(tmp_path / "all")
    kills = 0
    for first in (20, 50):
        for step in range(0, 200, stride):
            if not killed_at(store, to, (first, step), monkeypatch):
                break
            kills += 1
            grow(store, 50)
            export(store, to, append=True)
            assert offsets_of(to) == expected, (first, step)
            assert not (to / STAGING).exists()
            Disk().remove_tree(to)
    assert kills * stride >= 20


def killed_at(
    store: Path, to: Path, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Export a log of so many messages, at once or after the first 20, and die at a step."""
    count, step = place
    grow_to = [count] if count == 20 else [20, count]
    for path in log_files(store)[1:]:
        path.unlink()
    for number, messages_now in enumerate(grow_to):
        grow(store, messages_now)
        if number < len(grow_to) - 1:
            export(store, to, append=True)
    with monkeypatch.context() as patch:
        patch.setattr("streaming.export.directory.Disk", lambda: DyingDisk([step]))
        patch.setattr(ExportDirectory, "roll_back", lambda _: None)
        try:
            export(store, to, append=True)
        except Killed:
            return True
    Disk().remove_tree(to)
    return False


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": 2}, UnsupportedFormatError),
        ({"format": "1"}, DamageError),
        ({"store": None}, DamageError),
        ({"columns": "body"}, DamageError),
        ({"columns": [1]}, DamageError),
        ({"topics": None}, DamageError),
        ({"exclude_system": 0}, DamageError),
        ({"from_time": "x"}, DamageError),
        ({"begin_offset": -1}, DamageError),
        ({"end_offset": 1e3}, DamageError),
        ({"end_offset": 2**70}, DamageError),
        ({"end_offset": True}, DamageError),
        ({"messages": []}, DamageError),
        ({"last_record": 1}, DamageError),
        ({"last_record": {"offset": 1}}, DamageError),
    ],
)
def test_a_forged_record_is_refused_by_name(
    tmp_path: Path, changes: dict[str, object], error: type[Exception]
) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    values = json.loads((to / RECORD).read_text())
    (to / RECORD).write_text(json.dumps(values | changes))
    before = offsets_of(to)
    with pytest.raises(error, match=RECORD):
        export(store, to, append=True)
    assert offsets_of(to) == before


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": NaN}'])
def test_a_record_that_is_not_json_is_damage(tmp_path: Path, content: bytes) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    export(store, to)
    (to / RECORD).write_bytes(content)
    with pytest.raises(DamageError, match=RECORD):
        export(store, to, append=True)
    (to / RECORD).unlink()
    (to / RECORD).symlink_to("/dev/zero")
    with pytest.raises(DamageError, match="not a regular, small file"):
        export(store, to, append=True)


def test_a_task_of_an_export_that_ended_writes_nothing(tmp_path: Path) -> None:
    store, to = write(tmp_path, messages(3)), tmp_path / "to"
    late: list[Any] = []

    class RunLater(LocalRunner):
        def __call__(self, function: Any, tasks: Any, advance: Any) -> Any:
            late.extend(tasks)
            raise Killed

    with pytest.raises(Killed), open_export(store, to, ExportOptions()) as job:
        job.run(RunLater())
    with pytest.raises(Exception, match="has ended"):
        export_part(late[0])
    assert not to.exists()
