"""The kind of a file, where a dump begins, and the names of its fields."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from store.dump.file import FileKind, dump_file
from store.dump.rows import END
from store.errors import ConfigError, StoreIOError, UnsupportedFormatError
from tests.logs.build import build_log, write_log
from tests.support.dumping import (
    FILE_SIZE,
    MESSAGES,
    damages,
    dumped,
    found,
    records_of,
    rows_of,
)


def test_a_dump_begins_at_the_given_position(made: Path) -> None:
    log = min((made / "commitlog").iterdir())
    records = records_of(log.read_bytes())
    assert found(dumped(log, start=records[2]), "record") == records[2:]
    rows = dumped(log, start=records[2] + 1)
    assert found(rows, "record") == records[3:]
    assert damages(rows)[0] == (records[2] + 1, records[3])
    queue = min((made / "consumequeue/T/0").iterdir())
    assert found(dumped(queue, start=21), "unit") == [40, 60, 80]
    index = min((made / "index").iterdir())
    whole = dumped(index)
    entries, slots = found(whole, "entry"), found(whole, "slot")
    assert found(dumped(index, start=entries[2]), "entry") == entries[2:]
    assert found(dumped(index, start=slots[1]), "slot") == slots[1:]
    assert found(dumped(index, start=slots[1]), "header") == []
    with pytest.raises(ConfigError, match="position 1024"):
        dump_file(log, start=FILE_SIZE)


def test_the_kind_follows_from_directory_or_content(made: Path, tmp_path: Path) -> None:
    log = min((made / "commitlog").iterdir())
    moved = tmp_path / "moved"
    moved.write_bytes(log.read_bytes())
    dump = dump_file(moved)
    assert (dump.kind, dump.base) == (FileKind.COMMIT_LOG, 0)
    topic = tmp_path / "consumequeue/index/0" / ("0" * 20)
    topic.parent.mkdir(parents=True)
    topic.write_bytes(bytes(20))
    assert dump_file(topic).kind is FileKind.CONSUME_QUEUE
    assert dump_file(topic, kind=FileKind.COMMIT_LOG).kind is FileKind.COMMIT_LOG
    batch = tmp_path / "batchconsumequeue/T/0" / ("0" * 20)
    batch.parent.mkdir(parents=True)
    batch.write_bytes(bytes(46))
    with pytest.raises(UnsupportedFormatError, match="batchconsumequeue"):
        dump_file(batch)
    unknown = tmp_path / "unknown"
    unknown.write_bytes(b"what is this?")
    with pytest.raises(ConfigError, match="--kind commitlog, consumequeue"):
        dump_file(unknown)
    with pytest.raises(ConfigError, match="is a directory"):
        dump_file(tmp_path)
    with pytest.raises(StoreIOError):
        dump_file(tmp_path / "none")
    unknown.write_bytes(b"")
    assert [row.kind for row in dumped(unknown, kind=FileKind.INDEX)] == [END]


def test_a_moved_second_file_keeps_its_offset(made: Path, tmp_path: Path) -> None:
    second = sorted((made / "commitlog").iterdir())[1]
    moved = tmp_path / "moved"
    moved.write_bytes(second.read_bytes())
    dump = dump_file(moved)
    assert dump.base == FILE_SIZE
    assert damages(rows_of(dump)) == []


def test_settings_come_from_the_output_and_else_must_be_given(made: Path, tmp_path: Path) -> None:
    index = min((made / "index").iterdir())
    moved = tmp_path / "index" / index.name
    moved.parent.mkdir()
    moved.write_bytes(index.read_bytes())
    conf = made / "broker.conf"
    expected = dumped(index)
    assert dumped(moved, broker_conf=conf) == expected
    assert dumped(moved) == expected  # its entries show the numbers
    moved.write_bytes(bytes(index.stat().st_size))  # it has none
    with pytest.raises(ConfigError, match="--broker-conf"):
        dump_file(moved)
    (tmp_path / "reput").mkdir()
    progress = (made / "reput/progress").read_bytes()
    (tmp_path / "reput/progress").write_bytes(progress)  # an OUTPUT records its own settings
    assert dumped(moved)
    (tmp_path / "reput/progress").write_bytes(progress[:-3])
    with pytest.raises(ConfigError, match="--broker-conf"):
        dump_file(moved)


def test_the_values_of_a_record_are_named(tmp_path: Path) -> None:
    message = replace(MESSAGES[0], sys_flag=0x8 | 0x201, store_host=bytes(16), body=b"\0\xff")
    write_log(build_log([message], FILE_SIZE), tmp_path / "commitlog")
    row = dumped(tmp_path / "commitlog" / ("0" * 20))[0]
    assert row.fields["sys_flags"] == ["compressed zstd", "COMMIT", "store host IPv6"]
    assert (row.fields["tags"], row.fields["keys"]) == ("tag0", "k0")
    assert row.fields["properties"] == {"KEYS": "k0", "TAGS": "tag0"}
    assert row.fields["body"].read_body() == b"\0\xff"


def test_entries_show_approximate_store_times(made: Path) -> None:
    """A rolled file's first difference counts from the previous file, not from its own begin."""
    first, second = sorted((made / "index").iterdir())[:2]
    for path, begin in ((first, 0), (second, 7)):
        rows = [row.fields for row in dumped(path) if row.kind == "entry"]
        numbers = range(begin, len(MESSAGES))[: len(rows)]
        times = [MESSAGES[n].store_timestamp for n in numbers]
        assert [row["about_timestamp"] for row in rows] == times
    assert rows[0]["time_diff_seconds"] == 1


def test_units_of_the_schedule_topic_show_their_due_time(tmp_path: Path) -> None:
    path = tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/2" / ("0" * 20)
    path.parent.mkdir(parents=True)
    path.write_bytes(struct.pack(">qiq", 0, 100, 1_700_000_010_000))
    assert dumped(path)[0].fields["due_timestamp"] == 1_700_000_010_000
    ext = tmp_path / "consumequeue/T/0" / ("0" * 20)
    ext.parent.mkdir(parents=True)
    ext.write_bytes(struct.pack(">qiq", 0, 100, -(2**63) + 40))
    fields = dumped(ext)[0].fields
    assert (fields["ext_offset"], fields["due_timestamp"]) == (40, None)


def test_every_field_has_a_meaning(made: Path) -> None:
    for directory in ("commitlog", "consumequeue/T/0", "consumequeue_ext/T/0", "index"):
        dump = dump_file(min((made / directory).iterdir()))
        for row in rows_of(dump):
            assert list(row.fields) == list(dump.meanings[row.kind]), row.kind
    dump = dump_file(made / "checkpoint")
    assert [list(row.fields) for row in rows_of(dump)][:1] == [list(dump.meanings["field"])]
