"""Shared by the tests of dumps: a small store with all kinds of file, and queries on its rows."""

import struct
from pathlib import Path

from store.config import StoreConfig
from store.dump.file import Dump, dump_file
from store.dump.rows import DAMAGE, Row
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

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
    for n in range(9)
]


def make_store(store_root: Path) -> None:
    """Write a log and dispatch it in place; broker.conf and progress hold its settings."""
    write_log(build_log(MESSAGES, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF)
    dispatch_all(store_root, store_root, CONFIG)


def rows_of(dump: Dump) -> list[Row]:
    return [row for section in dump.sections for row in section]


def dumped(path: Path, **how: object) -> list[Row]:
    return rows_of(dump_file(path, **how))  # type: ignore[arg-type]


def damages(rows: list[Row]) -> list[tuple[int, int | None]]:
    """Return the offset of each damage and of the next readable structure."""
    return [(row.at, row.fields["next_at"]) for row in rows if row.kind == DAMAGE]


def found(rows: list[Row], kind: str) -> list[int]:
    return [row.at for row in rows if row.kind == kind]


def records_of(data: bytes) -> list[int]:
    """Return the offsets of the records of a file."""
    positions, at = [], 0
    while struct.unpack_from(">I", data, at + 4)[0] == 0xDAA320A7:
        positions.append(at)
        at += struct.unpack_from(">i", data, at)[0]
    return positions
