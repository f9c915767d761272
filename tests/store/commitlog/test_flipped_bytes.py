"""A small log with each byte flipped: detected at its record, harmless, or dispatched as flipped.

docs/operations.md lists the fields with each outcome; the tests compare the lists.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store.commitlog import scanner as scan
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig
from store.errors import DamageError, UnsupportedFormatError
from tests.logs.build import COMMIT, PREPARED, ROLLBACK, Message, build_log, write_log
from tests.model.dispatch import Built, Record, dispatch, multi_dispatch_targets
from tests.support.cases import stride
from tests.support.dispatching import assert_same_content, built_tree, dispatch_all, to_model_config
from tests.support.stores.damaged import built_of

FILE_SIZE = 640
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=60,
    max_hash_slot_num=5,
    max_index_num=6,
    enable_multi_dispatch=True,
    enable_lmq=True,
)
KEYED = [("KEYS", "k1 k2"), ("TAGS", "TagA")]
MESSAGES = [
    Message(topic="T", properties=KEYED),
    Message(topic="主题", queue_offset=3, properties=[("UNIQ_KEY", "UK"), ("TAGS", "😀")]),
    Message(topic="SCHEDULE_TOPIC_XXXX", queue_id=2, properties=[("DELAY", "3"), ("TAGS", "a")]),
    Message(topic="T", queue_offset=1, body=b""),
    Message(topic="V2", is_v2=True, properties=KEYED),
    Message(topic="T", queue_id=1, born_host=bytes(16), properties=[("KEYS", "v6")]),
    Message(
        topic="M",
        body=b"x",
        properties=[
            ("INNER_MULTI_DISPATCH", "%LMQ%a,b"),
            ("INNER_MULTI_QUEUE_OFFSET", "0,7"),
            ("INNER_NUM", "1"),
            ("INNER_BASE", "0"),
        ],
    ),
    Message(topic="T", sys_flag=PREPARED, properties=KEYED),
    Message(topic="T", queue_offset=2, sys_flag=COMMIT, properties=KEYED),
    Message(topic="T", sys_flag=ROLLBACK, properties=KEYED),
    Message(topic="T", queue_offset=3, properties=KEYED),
    Message(topic="Last", body=bytes(300), properties=KEYED),
    Message(topic="T", queue_offset=4, properties=KEYED),
]
SYS_FLAG_LOW_BYTE = 39
CRC_NAME_SIZE, CRC_DIGITS_SIZE = 9, 11
BLANK_MAGIC = bytes.fromhex("cbd43194")
# What a broker accepts: impossible topic names and queue offsets, a malformed property CRC.
STRICTER = ("cannot name a directory", "queue offset", "property CRC")
TABLE = Path(__file__).parents[3] / "docs" / "operations.md"
FOUND, HARMLESS, UNSEEN = "found", "harmless", "unseen"

Row = tuple[Any, ...]


class FlippedLog:
    """A log whose bytes are flipped one at a time."""

    def __init__(self, store: Path, config: StoreConfig) -> None:
        self.store, self.config = store, config
        self.files = build_log(MESSAGES, FILE_SIZE, prop_crc=config.enabled_append_prop_crc)
        self.records = dispatch(self.files, to_model_config(config)).records
        self.scanner = Scanner(config)
        self.last, self.end = self.records[-1].commit_log_offset, FILE_SIZE * len(self.files)
        assert max(self.files) == self.records[-2].commit_log_offset > FILE_SIZE
        write_log(self.files, store / "commitlog")

    def flip(self, position: int, mask: int) -> None:
        """Flip bits of one byte."""
        base = position - position % FILE_SIZE
        content = bytearray(self.files[base])
        content[position - base] ^= mask
        self.files[base] = bytes(content)
        with (self.store / "commitlog" / f"{base:020d}").open("r+b") as file:
            file.seek(position - base)
            file.write(content[position - base : position - base + 1])

    def record_at(self, position: int) -> Record | None:
        """Return the record at a position, None for a blank."""
        for record in self.records:
            if record.commit_log_offset <= position < record.commit_log_offset + record.size:
                return record
        return None

    def field_at(self, position: int) -> str:
        """Return the name of the field at a position."""
        record = self.record_at(position)
        if record is None and position >= self.last:
            return "what follows the last record"
        if record is None:
            magic = self.files[position - position % FILE_SIZE].index(BLANK_MAGIC)
            at = position % FILE_SIZE - magic
            return "magic of a blank" if 0 <= at < len(BLANK_MAGIC) else "rest of a blank"
        at = position - record.commit_log_offset
        for name, width in fields_of(record, has_crc=self.config.enabled_append_prop_crc):
            if at < width:
                return name
            at -= width
        raise AssertionError(position)

    def scan(self) -> tuple[list[Row], Damage | None]:
        """Return the rows up to the first damage, and the damage."""
        log = CommitLog(self.config.commit_log_paths(self.store), self.config)
        rows: list[Row] = []
        for part in LogPlanner(log, lambda: True).plan(0).ranges:
            for stretch in self.scanner.read(part):
                if isinstance(stretch, Damage):
                    return rows, stretch
                rows += rows_of(stretch)
        return rows, None

    def expected(self, records: list[Record]) -> list[Row]:
        """Return the model's records as rows."""
        rows = []
        for r in records:
            hashes = list(r.key_hashes) if r.transaction_type != ROLLBACK else []
            multi = multi_dispatch_targets(r, to_model_config(self.config))
            row = (r.commit_log_offset, r.size, r.topic, r.queue_id, r.tags_code)
            offset = r.queue_offset if r.transaction_type in (0, COMMIT) else None
            rows.append((*row, r.store_timestamp, r.transaction_type, offset, hashes, multi))
        return rows

    def check(self, position: int, built: Built) -> str:
        """Scan the flipped log and return the outcome."""
        is_whole = len(built.records) == len(self.records)
        record = self.record_at(position)
        try:
            rows, damage = self.scan()
        except UnsupportedFormatError:
            assert record is not None
            assert position - record.commit_log_offset == SYS_FLAG_LOW_BYTE
            return "inner batch"
        if damage is None and position >= self.last and len(rows) < len(self.records):
            assert self.expected(self.records[:-1]) == rows
            return "end"
        if damage is None:
            assert is_whole
            assert self.expected(built.records) == rows
            return "taken"
        assert not is_whole or any(reason in damage.reason for reason in STRICTER)
        assert damage.begin == (record.commit_log_offset if is_whole and record else built.end)
        before = [r for r in built.records if r.commit_log_offset < damage.begin]
        assert self.expected(before) == rows
        return "refused" if is_whole else "damage"

    def check_files(self, outcome: str, built: Built, output: Path) -> None:
        """Dispatch the flipped log and compare the files."""
        end = built.end
        try:
            dispatch_all(self.store, output, self.config)
        except DamageError as error:
            assert outcome in ("damage", "refused")
            end = error.offset
        if outcome == "end":
            end = self.last
        before = [r for r in built.records if r.commit_log_offset < end]
        assert_same_content(built_tree(output), built_of(before, self.config))


def fields_of(record: Record, *, has_crc: bool) -> list[tuple[str, int]]:
    """Return a record's fields and their widths."""
    topic, body = len(record.topic.encode()), len(record.body)
    fields = [
        ("total size", 4), ("magic", 4), ("body CRC" if body else "CRC of an empty body", 4),
        ("queue id", 4), ("flag", 4), ("queue offset", 8), ("physical offset", 8), ("sys flag", 4),
        ("born timestamp", 8), ("born host", len(record.born_host[0]) + 4),
        ("store timestamp", 8), ("store host", len(record.store_host[0]) + 4),
        ("reconsume times", 4), ("prepared transaction offset", 8),
        ("body length" if body else "length of an empty body", 4), ("body", body),
        ("topic length", 2 if record.topic == "V2" else 1), ("topic", topic),
        ("properties length" if record.properties or has_crc else "length of no properties", 2),
    ]  # fmt: skip
    crc = [("name of the property CRC", CRC_NAME_SIZE), ("property CRC", CRC_DIGITS_SIZE)]
    crc = crc if has_crc else []
    rest = record.size - sum(width for _, width in fields + crc)
    return [*fields, ("properties", rest), *crc]


def rows_of(requests: DispatchRequests) -> list[Row]:
    """Return requests as comparable rows."""
    rows = []
    queues = list(zip(requests.topics, requests.queue_ids.tolist(), strict=True))
    key_ends = [0, *requests.key_end.tolist()]
    for n in range(len(requests)):
        topic, queue_id = queues[requests.queue[n]]
        transaction = int(requests.transaction[n])
        is_queued = transaction in (0, COMMIT)
        rows.append(
            (
                int(requests.commit_log_offset[n]),
                int(requests.size[n]),
                topic,
                queue_id,
                int(requests.tags_code[n]),
                int(requests.store_timestamp[n]),
                transaction,
                int(requests.queue_offset[n]) if is_queued else None,
                requests.key_hash[key_ends[n] : key_ends[n + 1]].tolist(),
                [
                    (*queues[requests.multi_queue[m]], int(requests.multi_offset[m]))
                    for m in range(len(requests.multi_row))
                    if requests.multi_row[m] == n
                ],
            )
        )
    return rows


def masks_of(field: str, random: Random) -> list[int]:
    """Return the masks to flip a byte with: each bit of the sys flag, two random ones otherwise."""
    if field == "sys flag":
        return [1 << bit for bit in range(8)]
    return [1 << random.randrange(8), random.randrange(1, 256)]


def documented(column: int) -> dict[str, set[str]]:
    """Return the three documented lists of fields."""
    lists: dict[str, set[str]] = {}
    for line in TABLE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > column + 1 and cells[1] in (FOUND, HARMLESS, UNSEEN):
            names = cells[column + 1].split(";")
            lists[cells[1]] = {n.partition("(")[0].strip() for n in names} - {"", "nothing"}
    return lists


def sampled(log: FlippedLog, stride: int) -> list[int]:
    """Return each byte, or the first of each field and some of the others."""
    fields = [(log.field_at(at), log.record_at(at)) for at in range(log.end)]
    return [
        at for at in range(log.end)
        if at % stride == 0 or at == 0 or fields[at - 1] != fields[at]
    ]  # fmt: skip


@stride(11)
@pytest.mark.parametrize("prop_crc", [False, True], ids=["", "property CRC"])
def test_every_flipped_byte_is_found_or_harmless_or_dispatched_as_the_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prop_crc: bool, stride: int
) -> None:
    monkeypatch.setattr(scan, "_RETRY_SECONDS", 0)
    log = FlippedLog(tmp_path / "store", replace(CONFIG, enabled_append_prop_crc=prop_crc))
    random = Random(3)
    whole = log.expected(log.records)
    seen: dict[str, set[str]] = {FOUND: set(), HARMLESS: set(), UNSEEN: set()}
    for position in sampled(log, stride):
        field = log.field_at(position)
        for mask in masks_of(field, random):
            log.flip(position, mask)
            built = dispatch(log.files, to_model_config(log.config))
            outcome = log.check(position, built)
            if random.randrange(40) == 0 and outcome != "inner batch":
                log.check_files(outcome, built, tmp_path / f"{position} {mask}")
            log.flip(position, mask)
            if outcome != "taken":
                seen[FOUND].add(field)
            else:
                is_same = log.expected(built.records) == whole
                seen[HARMLESS if is_same else UNSEEN].add(field)
    known = documented(1 + prop_crc)
    assert set().union(*seen.values()) == set().union(*known.values())
    if stride == 1:
        assert known == seen
    else:
        assert all(seen[kind] <= known[kind] for kind in known)
