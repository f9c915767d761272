"""A dump shows every byte that says something, of real files and of damaged ones."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.config import StoreConfig
from store.dump import Dump, FileKind, dump_file
from store.dump_row import DAMAGE, END, Row
from store.errors import ConfigError, StoreIOError, UnsupportedFormatError
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.dispatching import dispatch_all
from tests.logs import Message, build_log, encode, encode_properties, write_log

FILE_SIZE = 1024
CONF = (
    f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=100\n"
    "mappedFileSizeConsumeQueueExt=100\nenableConsumeQueueExt=true\n"
    "maxHashSlotNum=3\nmaxIndexNum=8\n"
)
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=100,
    mapped_file_size_consume_queue_ext=100,
    enable_consume_queue_ext=True,
    max_hash_slot_num=3,
    max_index_num=8,
)
MESSAGES = [
    Message(
        topic="T",
        queue_offset=n,
        body=f"body {n}".encode() * 10,
        properties=[("KEYS", f"k{n}"), ("TAGS", f"tag{n}")],
        store_timestamp=1_700_000_000_000 + 1000 * n,
    )
    for n in range(7)
]
# Of each kind some: plain, pre-fill, ext with every roll, IPv6 and V2, LMQ, index without entries.
GOLDEN = (
    "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g7b", "g10", "v-qoffsets-ext84-5.3.3",
    "v-qoffsets-ext100-4.8.0", "v-index-nokeys-4.8.0", "v-index-times-5.3.3", "v-magic2-5.1.0",
    "v-schedule-long-5.3.3", "v-slotcount-4.7.0", "v-crc-5.3.3", "v-twopaths-5.3.3",
)  # fmt: skip


def rows_of(dump: Dump) -> list[Row]:
    return [row for section in dump.sections for row in section]


def dumped(path: Path, **how: object) -> list[Row]:
    return rows_of(dump_file(path, **how))  # type: ignore[arg-type]


def damages(rows: list[Row]) -> list[tuple[int, int | None]]:
    """Return where each damage is and where the next readable structure begins."""
    return [(row.at, row.fields["next_at"]) for row in rows if row.kind == DAMAGE]


def found(rows: list[Row], kind: str) -> list[int]:
    return [row.at for row in rows if row.kind == kind]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with its own queues, ext units and index."""
    root = tmp_path_factory.mktemp("store")
    write_log(build_log(MESSAGES, FILE_SIZE), root / "commitlog")
    (root / "broker.conf").write_text(CONF)
    dispatch_all(root, root, CONFIG)
    return root


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Callable[[str], tuple[Path, bytearray]]:
    """Return a function that copies the first file of a directory, under its own settings."""

    def of(directory: str) -> tuple[Path, bytearray]:
        (tmp_path / "broker.conf").write_text(CONF)
        source = min((made / directory).iterdir())
        target = tmp_path / directory / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        return target, bytearray(source.read_bytes())

    return of


# --- real files --------------------------------------------------------------------------------


def store_files(golden: Golden) -> Iterator[tuple[FileKind, Path]]:
    for directory in golden.config.commit_log_paths(golden.store_root):
        yield from ((FileKind.COMMIT_LOG, path) for path in sorted(directory.iterdir()))
    for kind in (FileKind.CONSUME_QUEUE, FileKind.CONSUME_QUEUE_EXT, FileKind.INDEX):
        files = (golden.directory / "expected" / kind).rglob("*")
        yield from ((kind, path) for path in sorted(files) if path.is_file())
    yield FileKind.CHECKPOINT, golden.directory / "expected/checkpoint"


def rebuilt(dump: Dump, config: StoreConfig) -> bytes:
    """Lay the structures that rows tell of out again, with formats of this test's own."""
    data = bytearray(dump.size)
    for row in rows_of(dump):
        f = row.fields
        match row.kind:
            case "record":
                data[row.at : row.at + f["size"]] = record_bytes(f, row.at)
            case "blank":
                struct.pack_into(">iI", data, row.at, f["size"], 0xCBD43194)
            case "unit":
                unit = f["commit_log_offset"], f["size"], f["tags_code"]
                struct.pack_into(">qiq", data, row.at, *unit)
                assert dump.base + row.at == 20 * f["queue_offset"]
            case "pre_fill":
                struct.pack_into(">qiq", data, row.at, 0, 0x7FFFFFFF, 0)
                assert dump.base + row.at == 20 * f["queue_offset"]
            case "ext_unit":
                unit = f["size"], f["tags_code"], f["store_timestamp"], f["bitmap_length"]
                struct.pack_into(">hqqh", data, row.at, *unit)
            case "end_mark":
                struct.pack_into(">h", data, row.at, f["size"])
            case "header":
                struct.pack_into(">qqqqii", data, row.at, *f.values())
            case "slot":
                struct.pack_into(">i", data, 40 + 4 * f["slot"], f["index"])
            case "entry":
                entry = f["key_hash"], f["phy_offset"], f["time_diff_seconds"], f["prev_index"]
                at = 40 + 4 * config.max_hash_slot_num + 20 * f["index"]
                struct.pack_into(">iqii", data, at, *entry)
                assert row.at == at
            case "field":
                struct.pack_into(">q", data, row.at, f["value"])
            case _:
                assert row.kind == END
    return bytes(data)


def record_bytes(f: object, at: int) -> bytes:
    """Encode what a row says of a record, but for properties that a mapping cannot say."""
    fields = dict(f)  # type: ignore[call-overload]
    hosts = [split_host(fields[name]) for name in ("born_host", "store_host")]
    message = Message(
        topic=fields["topic"],
        queue_id=fields["queue_id"],
        queue_offset=fields["queue_offset"],
        body=b"-" * fields["body_length"],
        body_crc=fields["body_crc"],
        sys_flag=fields["sys_flag"],
        flag=fields["flag"],
        born_timestamp=fields["born_timestamp"],
        born_host=hosts[0][0],
        born_port=hosts[0][1],
        store_timestamp=fields["store_timestamp"],
        store_host=hosts[1][0],
        store_port=hosts[1][1],
        reconsume_times=fields["reconsume_times"],
        prepared_transaction_offset=fields["prepared_transaction_offset"],
        is_v2=fields["magic"] == "V2",
        properties=b"-" * (at + fields["size"] - fields["properties_at"]),
    )
    record = encode(message, fields["commit_log_offset"])
    assert len(record) == fields["size"]
    return record


def split_host(text: str) -> tuple[bytes, int]:
    address, _, port = text.rpartition(":")
    if "." in address:
        return bytes(map(int, address.split("."))), int(port)
    groups = [int(group, 16) for group in address.split(":")]
    return b"".join(group.to_bytes(2, "big") for group in groups), int(port)


def compared(data: bytes, dump: Dump) -> bytes:
    """Return a file without what rows do not tell: bodies, properties, and a blank's rest."""
    kept = bytearray(data)
    for row in rows_of(dump):
        f = row.fields
        if row.kind == "record":
            kept[f["body_at"] : f["body_at"] + f["body_length"]] = b"-" * f["body_length"]
            size = row.at + f["size"] - f["properties_at"]
            kept[f["properties_at"] : row.at + f["size"]] = b"-" * size
            if f["topic"].encode() != data[f["topic_at"] : f["properties_at"] - 2]:
                assert "\ufffd" in f["topic"]  # cannot be said again
        elif row.kind == "blank":
            kept[row.at + 8 :] = bytes(len(kept) - row.at - 8)
    return bytes(kept)


@pytest.mark.parametrize(
    "golden",
    [path for path in ARCHIVES if archive_name(path) in GOLDEN],
    ids=archive_name,
    indirect=True,
)
def test_the_rows_of_a_real_file_say_all_of_it(golden: Golden) -> None:
    conf = golden.store_root / "broker.conf"
    kinds = set()
    for kind, path in store_files(golden):

        def dump(path: Path = path) -> Dump:
            return dump_file(path, broker_conf=conf, broker_version=golden.version)

        first = dump()
        assert first.kind is kind
        data = path.read_bytes()
        torn = [row for row in rows_of(dump()) if row.kind == DAMAGE]
        if torn:  # the crash left it so
            assert golden.name.startswith("g6")
            continue
        assert rebuilt(first, golden.config) == compared(data, dump()), path
        kinds.add(kind)
    assert {FileKind.COMMIT_LOG, FileKind.CONSUME_QUEUE, FileKind.CHECKPOINT} <= kinds


# --- damage ------------------------------------------------------------------------------------


def records_of(data: bytes) -> list[int]:
    positions, at = [], 0
    while struct.unpack_from(">I", data, at + 4)[0] == 0xDAA320A7:
        positions.append(at)
        at += struct.unpack_from(">i", data, at)[0]
    return positions


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (4, "bad magic"),
        (1, "lengths do not add up"),
        (30, "another physical offset"),
        (100, "does not match its CRC"),
    ],
)
def test_a_log_goes_on_at_the_next_record(
    copy: Callable[[str], tuple[Path, bytearray]], at: int, reason: str
) -> None:
    path, data = copy("commitlog")
    records = records_of(data)
    data[records[1] + at] ^= 0xFF
    path.write_bytes(data)
    rows = dumped(path)
    assert found(rows, "record") == [records[0], *records[2:]]
    assert damages(rows) == [(records[1], records[2])]
    (row,) = (row for row in rows if row.kind == DAMAGE)
    assert reason in row.fields["reason"]
    assert row.fields["path"] == str(path)


def test_a_damage_names_file_and_offset_of_its_stream(made: Path, tmp_path: Path) -> None:
    second = sorted((made / "commitlog").iterdir())[1]
    data = bytearray(second.read_bytes())
    data[4] ^= 0xFF
    path = tmp_path / "commitlog" / second.name
    path.parent.mkdir()
    path.write_bytes(data)
    (row,) = (row for row in dumped(path) if row.kind == DAMAGE)
    assert (row.at, row.fields["offset"]) == (0, FILE_SIZE)


def test_zeros_in_a_log_are_damage_where_records_follow(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("commitlog")
    records = records_of(data)
    data[records[1] : records[3]] = bytes(records[3] - records[1])
    path.write_bytes(data)
    assert damages(dumped(path)) == [(records[1], records[3])]
    data[records[3] :] = bytes(len(data) - records[3])
    path.write_bytes(data)
    rows = dumped(path)
    assert damages(rows) == []
    assert (rows[-1].kind, rows[-1].at) == (END, records[1])


def test_a_torn_last_record_is_told(copy: Callable[[str], tuple[Path, bytearray]]) -> None:
    path, data = copy("commitlog")
    records = records_of(data)
    last, end = records[-2], records[-1]
    for written in range(4, end - last):  # the first three bytes of its size are zero
        torn = data[: last + written] + bytes(len(data) - last - written)
        path.write_bytes(torn)
        rows = dumped(path)
        if damages(rows) == [(last, None)]:
            continue
        # What is missing is in the properties, which nothing protects.
        assert [row.at for row in rows if row.kind == "record" and row.fields["note"]] == [last]
        assert written >= end - last - len(encode_properties(MESSAGES[0].properties))


def test_each_flipped_byte_of_a_log_costs_one_record_at_most(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("commitlog")
    records, whole = records_of(data), dumped(path)
    blank = found(whole, "blank")
    assert len(blank) == 1
    for position in range(blank[0]):
        data[position] ^= 0x55
        path.write_bytes(data)
        data[position] ^= 0x55
        rows = dumped(path)
        hit = max(at for at in records if at <= position)
        others = [at for at in records if at != hit]
        assert [at for at in found(rows, "record") if at != hit] == others, position
        assert found(rows, "blank") == blank
        assert hit in [at for at, _ in damages(rows)] or hit in found(rows, "record")


def test_a_unit_that_is_none_is_told_and_the_next_one_shown(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("consumequeue/T/0")
    assert found(dumped(path), "unit") == [0, 20, 40, 60, 80]
    data[20] |= 0x80
    data[40:60] = bytes(20)
    path.write_bytes(data)
    rows = dumped(path)
    assert found(rows, "unit") == [0, 60, 80]
    assert damages(rows) == [(20, 60)]
    data[60:] = bytes(40)
    path.write_bytes(data[:-7])
    rows = dumped(path)
    assert found(rows, "unit") == [0]
    assert damages(rows) == [(20, None), (80, None)]
    assert [(row.at, row.fields["size"]) for row in rows if row.kind == END] == [(40, 53)]


def test_a_unit_that_steps_back_is_remarked(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("consumequeue/T/0")
    data[40:48] = bytes(8)
    path.write_bytes(data)
    notes = [row.at for row in dumped(path) if row.fields["note"]]
    assert notes == [40]


def test_an_ext_file_goes_on_at_the_next_unit(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("consumequeue_ext/T/0")
    assert found(dumped(path), "ext_unit") == [0, 20, 40, 60]
    data[21] ^= 0x04
    path.write_bytes(data)
    rows = dumped(path)
    assert found(rows, "ext_unit") == [0, 40, 60]
    assert damages(rows) == [(20, 40)]
    assert found(rows, "end_mark") == [80]


def test_slots_and_entries_that_cannot_be_are_told(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    entries_at = 40 + 4 * 3
    whole = dumped(path)
    assert damages(whole) == []
    slots = found(whole, "slot")
    entries = found(whole, "entry")
    assert entries == [entries_at + 20 * n for n in range(1, 8)]
    struct.pack_into(">i", data, slots[0], 99)
    struct.pack_into(">i", data, entries[1] + 16, 6)  # the chain would go up
    path.write_bytes(data)
    rows = dumped(path)
    assert damages(rows) == [(slots[0], slots[0] + 4), (entries[1], entries[2])]
    assert found(rows, "slot") == slots[1:]
    assert found(rows, "entry") == [entries[0], *entries[2:]]


def test_entries_are_shown_though_the_header_cannot_be(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    entries = found(dumped(path), "entry")
    struct.pack_into(">i", data, 36, -5)
    path.write_bytes(data)
    rows = dumped(path)
    assert damages(rows) == [(0, 40)]
    assert found(rows, "entry") == entries


def test_an_index_file_that_was_cut_off_shows_what_is_left(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    entries = found(dumped(path), "entry")
    path.write_bytes(data[: entries[3] + 3])
    rows = dumped(path)
    assert (0, 0) in damages(rows)
    assert found(rows, "entry") == entries[:3]
    path.write_bytes(data[:17])
    assert damages(dumped(path)) == [(0, None)]


def test_a_checkpoint_that_was_cut_off_or_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    data = struct.pack(">6q", 5, 6, -7, 0, 8, 0).ljust(4096, b"\0")
    path.write_bytes(data)
    rows = dumped(path)
    fields = {row.fields["field"]: row.fields["value"] for row in rows if row.kind == "field"}
    assert list(fields.values()) == [5, 6, 0, 8, 0]
    assert damages(rows) == [(16, 24)]
    assert rows[-1].kind == END
    path.write_bytes(data[:60])
    assert damages(dumped(path)) == [(16, 24), (60, None)]
    path.write_bytes(data[:20])
    assert damages(dumped(path)) == [(16, None)]
    path.write_bytes(data[:100] + b"x" + data[101:])
    assert damages(dumped(path)) == [(16, 24), (100, None)]


@given(data=st.binary(max_size=400), kind=st.sampled_from(FileKind), start=st.integers(0, 400))
@settings(max_examples=400)
def test_any_bytes_are_shown_or_told_and_never_twice(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: FileKind, start: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    conf = tmp_path_factory.getbasetemp() / "any.conf"
    conf.write_text(CONF)
    path.write_bytes(data)
    try:
        dump = dump_file(path, kind=kind, start=start, broker_conf=conf)
    except ConfigError:
        assert (start and start >= len(data)) or (kind is FileKind.INDEX and len(data) > 212)
        return
    for section in dump.sections:
        positions = [row.at for row in section if row.kind not in (DAMAGE, END)]
        assert positions == sorted(set(positions))
        assert all(start <= at < len(data) for at in positions)


# --- where to begin, and what it is ------------------------------------------------------------


def test_a_dump_begins_where_it_is_told(made: Path) -> None:
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


def test_the_kind_is_told_by_place_or_content(made: Path, tmp_path: Path) -> None:
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


def test_a_moved_second_file_knows_where_it_was(made: Path, tmp_path: Path) -> None:
    second = sorted((made / "commitlog").iterdir())[1]
    moved = tmp_path / "moved"
    moved.write_bytes(second.read_bytes())
    dump = dump_file(moved)
    assert dump.base == FILE_SIZE
    assert damages(rows_of(dump)) == []


def test_settings_come_from_the_root_and_else_must_be_given(made: Path, tmp_path: Path) -> None:
    index = min((made / "index").iterdir())
    moved = tmp_path / "index" / index.name
    moved.parent.mkdir()
    moved.write_bytes(index.read_bytes())
    with pytest.raises(ConfigError, match="--broker-conf"):
        dump_file(moved)
    conf = made / "broker.conf"
    expected = dumped(index)
    assert dumped(moved, broker_conf=conf) == expected
    (tmp_path / "reput").mkdir()
    progress = (made / "reput/progress").read_bytes()
    (tmp_path / "reput/progress").write_bytes(progress)  # a root of ours knows its own
    assert dumped(moved) == expected
    (tmp_path / "reput/progress").write_bytes(progress[:-3])
    with pytest.raises(ConfigError, match="--broker-conf"):
        dump_file(moved)


def test_what_a_record_says_is_named(tmp_path: Path) -> None:
    message = replace(MESSAGES[0], sys_flag=0x8 | 0x201, store_host=bytes(16), body=b"\0\xff")
    write_log(build_log([message], FILE_SIZE), tmp_path / "commitlog")
    row = dumped(tmp_path / "commitlog" / ("0" * 20))[0]
    assert row.fields["sys_flags"] == ["compressed zstd", "COMMIT", "store host IPv6"]
    assert (row.fields["tags"], row.fields["keys"]) == ("tag0", "k0")
    assert row.fields["properties"] == {"KEYS": "k0", "TAGS": "tag0"}
    assert row.fields["body"] == b"\0\xff"


def test_units_of_the_schedule_topic_name_their_time(tmp_path: Path) -> None:
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


def test_bytes_behind_the_entries_are_told(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    struct.pack_into(">i", data, 36, 4)
    for slot in range(3):
        struct.pack_into(">i", data, 40 + 4 * slot, 0)
    path.write_bytes(data)
    rows = dumped(path)
    assert len(found(rows, "entry")) == 3
    assert "something lies behind" in rows[-1].fields["reason"]
    assert np.frombuffer(data, np.uint8)[rows[-1].at :].any()
