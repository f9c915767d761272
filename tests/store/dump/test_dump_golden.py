"""The rows of real brokers' files contain every significant byte of them."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from store.config import StoreConfig
from store.dump.file import Dump, FileKind, dump_file
from store.dump.rows import DAMAGE, END
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.logs.build import Message, encode
from tests.support.dumping import rows_of

# Some of each kind: plain, pre-fill, ext with rolls, IPv6 and V2, LMQ, an index without entries.
GOLDEN = (
    "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g7b", "g10", "v-qoffsets-ext84-5.3.3",
    "v-qoffsets-ext100-4.8.0", "v-index-nokeys-4.8.0", "v-index-times-5.3.3", "v-magic2-5.1.0",
    "v-schedule-long-5.3.3", "v-slotcount-4.7.0", "v-crc-5.3.3", "v-twopaths-5.3.3",
)  # fmt: skip


def store_files(golden: Golden) -> Iterator[tuple[FileKind, Path]]:
    for directory in golden.config.commit_log_paths(golden.store_root):
        yield from ((FileKind.COMMIT_LOG, path) for path in sorted(directory.iterdir()))
    for kind in (FileKind.CONSUME_QUEUE, FileKind.CONSUME_QUEUE_EXT, FileKind.INDEX):
        files = (golden.directory / "expected" / kind).rglob("*")
        yield from ((kind, path) for path in sorted(files) if path.is_file())
    yield FileKind.CHECKPOINT, golden.directory / "expected/checkpoint"


def rebuilt(dump: Dump, config: StoreConfig) -> bytes:
    """Write the structures of the rows into a file again, with this test's own formats."""
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


def record_bytes(fields: Mapping[str, Any], at: int) -> bytes:
    """Encode the record of a row, except properties that a mapping cannot represent."""
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
    """Return a file without what rows omit: bodies, properties, and the rest of a blank."""
    kept = bytearray(data)
    for row in rows_of(dump):
        f = row.fields
        if row.kind == "record":
            kept[f["body_at"] : f["body_at"] + f["body_length"]] = b"-" * f["body_length"]
            size = row.at + f["size"] - f["properties_at"]
            kept[f["properties_at"] : row.at + f["size"]] = b"-" * size
            if f["topic"].encode() != data[f["topic_at"] : f["properties_at"] - 2]:
                assert "\ufffd" in f["topic"]  # cannot be encoded back
        elif row.kind == "blank":
            kept[row.at + 8 :] = bytes(len(kept) - row.at - 8)
    return bytes(kept)


@pytest.mark.parametrize(
    "golden",
    [path for path in ARCHIVES if archive_name(path) in GOLDEN],
    ids=archive_name,
    indirect=True,
)
def test_the_rows_of_a_real_file_are_complete(golden: Golden) -> None:
    conf = golden.store_root / "broker.conf"
    kinds = set()
    for kind, path in store_files(golden):

        def dump(path: Path = path) -> Dump:
            return dump_file(path, broker_conf=conf, broker_version=golden.version)

        first = dump()
        assert first.kind is kind
        data = path.read_bytes()
        torn = [row for row in rows_of(dump()) if row.kind == DAMAGE]
        if torn:  # after the crash
            assert golden.name.startswith("g6")
            continue
        assert rebuilt(first, golden.config) == compared(data, dump()), path
        kinds.add(kind)
    assert {FileKind.COMMIT_LOG, FileKind.CONSUME_QUEUE, FileKind.CHECKPOINT} <= kinds
