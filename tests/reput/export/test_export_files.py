"""The files of an export: names, formats, compression, columns, partitions, and times."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import zstandard

from reput.export.options import ExportOptions
from reput.export.run import open_export
from reput.export.task import NO_VALUE, partition_directory
from store.commitlog.message_json import message_json
from store.output.progress import Fingerprint
from store.reads.message_store import MessageStore
from tests.logs.build import Message
from tests.support.exporting import (
    BEGIN,
    export,
    files_of,
    make_store,
    offsets_of,
    sent_to,
)
from tests.support.verify_stores import messages

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


def test_parquet_times_are_microseconds_in_utc(tmp_path: Path) -> None:
    store = make_store(tmp_path, messages(3))
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


def test_json_lines_equal_the_output_of_get(tmp_path: Path) -> None:
    odd = [
        Message(body=b"\xff\0\x01", queue_offset=0, properties=[("K", 'a "b" \\ \n')]),
        Message(body=b'{"a": 1}', queue_offset=1, properties=[("TAGS", "t"), ("TAGS", "u")]),
        Message(body=b"", queue_offset=2, born_timestamp=-1, store_host=bytes(range(16))),
    ]
    store = make_store(tmp_path, [*odd, *sent_to("Other")])
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
    store = make_store(tmp_path, sent_to("A"))
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
    store = make_store(tmp_path, messages(3))
    export(store, tmp_path / "to", compression=compression)
    (path,) = files_of(tmp_path / "to")
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.compression.lower() == compression.replace("none", "uncompressed")


def test_only_the_selected_columns_are_written(tmp_path: Path) -> None:
    store = make_store(tmp_path, sent_to("A", "B"))
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


def test_system_topics_are_excluded(tmp_path: Path) -> None:
    system = ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102"]
    store = make_store(tmp_path, sent_to("A", "%RETRY%g", "%DLQ%g", *system, count=1))
    export(store, tmp_path / "to", exclude_system=True)
    found = {path.parts[-3] for path in files_of(tmp_path / "to")}
    assert found == {"topic=A", "topic=%25RETRY%25g", "topic=%25DLQ%25g"}


def test_partition_directories_are_read_back_as_the_topics(tmp_path: Path) -> None:
    store = make_store(tmp_path, sent_to(*ODD_TOPICS, count=1))
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
    store = make_store(tmp_path, [Message("A", store_timestamp=2**62), Message("A")])
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
    store = make_store(tmp_path, sent)
    to = tmp_path / "to"
    export(store, to, from_time=BEGIN + 5, to_time=BEGIN + 8)
    (path,) = files_of(to)
    bodies = pq.ParquetFile(path).read(["body"]).column(0).to_pylist()
    assert bodies == [b"5", b"6", b"7"]


def test_the_last_record_of_an_export_is_fingerprinted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = make_store(tmp_path, messages(60)), list[int]()

    def note(**fields: int) -> Fingerprint:
        read.append(fields["offset"])
        return Fingerprint(**fields)

    monkeypatch.setattr("checkpoints.recovery.fingerprint.Fingerprint", note)
    export(store, tmp_path / "to")
    assert read == offsets_of(tmp_path / "to")[-1:]


def test_the_report_counts_bytes_of_the_log(tmp_path: Path) -> None:
    store = make_store(tmp_path, messages(60))
    reports: list[tuple[int, int]] = []
    with open_export(store, tmp_path / "to", ExportOptions()) as job:
        done = job.run(lambda *progress: reports.append(progress))
    total = done.end_offset - done.begin_offset
    assert len(reports) > 1
    assert [counted for counted, _ in reports] == sorted(counted for counted, _ in reports)
    assert reports[-1] == (total, total)
    assert {all_bytes for _, all_bytes in reports} == {total}
