"""A dump of a damaged file reports the damage, and shows everything else."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.dump.file import FileKind, dump_file
from store.dump.rows import DAMAGE, END
from store.errors import ConfigError
from tests.logs.build import encode_properties
from tests.support.dumping import (
    CONF,
    FILE_SIZE,
    MESSAGES,
    damages,
    dumped,
    found,
    records_of,
)


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


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (4, "bad magic"),
        (1, "lengths do not add up"),
        (30, "another physical offset"),
        (100, "does not match its CRC"),
    ],
)
def test_a_log_continues_at_the_next_record(
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


def test_damage_names_the_file_and_the_offset_in_its_stream(made: Path, tmp_path: Path) -> None:
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


def test_a_torn_last_record_is_reported(copy: Callable[[str], tuple[Path, bytearray]]) -> None:
    path, data = copy("commitlog")
    records = records_of(data)
    last, end = records[-2], records[-1]
    for written in range(4, end - last):  # the first three bytes of its size are zero
        torn = data[: last + written] + bytes(len(data) - last - written)
        path.write_bytes(torn)
        rows = dumped(path)
        if damages(rows) == [(last, None)]:
            continue
        # The missing bytes are properties, which no checksum covers.
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


def test_a_blank_of_another_size_gets_a_note(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("commitlog")
    (blank,) = (row for row in dumped(path) if row.kind == "blank")
    assert (blank.fields["size"], blank.fields["note"]) == (FILE_SIZE - blank.at, None)
    data[blank.at] ^= 0x40
    path.write_bytes(data)
    (blank,) = (row for row in dumped(path) if row.kind == "blank")
    assert blank.fields["note"].startswith(f"{FILE_SIZE - blank.at} bytes remain")


def test_an_invalid_unit_is_reported_and_the_next_one_shown(
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


def test_a_unit_that_steps_back_gets_a_note(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("consumequeue/T/0")
    data[40:48] = bytes(8)
    path.write_bytes(data)
    notes = [row.at for row in dumped(path) if row.fields["note"]]
    assert notes == [40]


def test_an_ext_file_continues_at_the_next_unit(
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


def test_invalid_slots_and_entries_are_reported(
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


def test_inconsistent_entries_get_a_note(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    rows = dumped(path)
    entries = {row.fields["index"]: row for row in rows if row.kind == "entry"}
    assert [row.fields["note"] for row in entries.values()] == [None] * 7
    chained = max(n for n, row in entries.items() if row.fields["prev_index"] > 1)
    data[entries[chained].at + 3] ^= 0x01  # of its hash: it now falls into another slot
    struct.pack_into(">q", data, entries[2].at + 4, 10_000)
    path.write_bytes(data)
    notes = {
        row.fields["index"]: row.fields["note"]
        for row in dumped(path)
        if row.kind == "entry" and row.fields["note"]
    }
    assert list(notes) == [3, chained]
    assert "precedes the message of the previous entry" in notes[3]
    assert "another slot" in notes[chained]


def test_entries_are_shown_if_the_header_is_damaged(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    entries = found(dumped(path), "entry")
    struct.pack_into(">i", data, 36, -5)
    path.write_bytes(data)
    rows = dumped(path)
    assert damages(rows) == [(0, 40)]
    assert found(rows, "entry") == entries


def test_a_truncated_index_file_shows_its_remaining_entries(
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


def test_a_truncated_or_overwritten_checkpoint(tmp_path: Path) -> None:
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
def test_any_byte_is_shown_or_reported_once(
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


def test_bytes_after_the_entries_are_reported(
    copy: Callable[[str], tuple[Path, bytearray]],
) -> None:
    path, data = copy("index")
    struct.pack_into(">i", data, 36, 4)
    for slot in range(3):
        struct.pack_into(">i", data, 40 + 4 * slot, 0)
    path.write_bytes(data)
    rows = dumped(path)
    assert len(found(rows, "entry")) == 3
    assert "unexpected bytes follow" in rows[-1].fields["reason"]
    assert np.frombuffer(data, np.uint8)[rows[-1].at :].any()
