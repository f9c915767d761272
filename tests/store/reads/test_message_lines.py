"""The lines of an export equal, byte for byte, the objects that reads print with --json."""

import json
import zlib
from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from store.arrow.batches import message_batches
from store.commitlog.record import decode_message
from store.commitlog.scanner import Scanner
from store.config import BrokerVersion, StoreConfig
from store.reads.message_json import BODY_FIELDS, JSON_FIELDS, message_json
from store.reads.message_lines import columns_of, json_lines
from tests.logs.build import Message, build_log, flatten
from tests.logs.random_logs import Mix, random_messages

FIELDS = (*JSON_FIELDS, *BODY_FIELDS)
FILE_SIZE = 1 << 18
V6 = bytes(range(16))
MAPPED = bytes(10) + b"\xff\xff\x0a\x00\x00\x01"
TEXT = 'a "quoted" \\ line\n\t\x01\x7f \u2028 é 世界 😀'


def lines_of(sent: Sequence[Message], version: str = "5.3.3") -> tuple[list[str], list[str]]:
    """Return the lines formatted in bulk, and those of reads."""
    config = StoreConfig(BrokerVersion.parse(version), mapped_file_size_commit_log=FILE_SIZE)
    bulk, single = [], []
    for base, content in build_log(sent, FILE_SIZE).items():
        view = np.frombuffer(content, np.uint8)
        for requests, _ in Scanner(config).chunks(view, base, 0, len(view)):
            for batch in message_batches(requests, view, base, columns_of(FIELDS), config=config):
                bulk += json_lines(batch, FIELDS).to_pylist()
            for offset in requests.commit_log_offset.tolist():
                message, _ = decode_message(
                    content, offset - base, splits_properties=config.splits_properties
                )
                single.append(json.dumps(message_json(message), ensure_ascii=False) + "\n")
    return bulk, single


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", ["4.8.0", "5.3.3"])
def test_lines_of_random_messages_equal_those_of_reads(seed: int, version: str) -> None:
    mix = Mix(version=BrokerVersion.parse(version))
    sent = flatten(random_messages(Random(seed), 300, mix))
    bulk, single = lines_of(sent, version)
    assert len(bulk) == len(sent)
    assert bulk == single


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([Message(body=b"")], id="empty"),
        pytest.param([Message(body=TEXT.encode(), topic=TEXT)], id="escapes"),
        pytest.param([Message(body=b"text"), Message(body=b"\xff\0"), Message()], id="binary"),
        pytest.param([Message(body=b"a\0b"), Message(body=b"")], id="zero byte"),
        pytest.param([Message(body=b"\xed\xa0\x80"), Message(body=b"\xc0\x80")], id="not UTF-8"),
        pytest.param([Message(body=zlib.compress(b"text"), sys_flag=1)], id="compressed"),
        pytest.param([Message(body=b"not zlib", sys_flag=1)], id="not compressed"),
        pytest.param([Message(topic=b"\xff\xfe", properties=b"\xff\x01\xfe\x02")], id="bad text"),
        pytest.param(
            [Message(properties=[("K", "1"), ("TAGS", TEXT), ("K", "2\x013")]), Message()],
            id="odd properties",
        ),
        pytest.param(
            [
                Message(store_host=V6, born_host=MAPPED),
                Message(),
                Message(store_host=MAPPED, born_host=V6),
            ],
            id="hosts",
        ),
        pytest.param(
            [Message(store_timestamp=2**63 - 1, born_timestamp=-(2**63)), Message(flag=-1)],
            id="extreme numbers",
        ),
    ],
)
def test_lines_of_odd_messages_equal_those_of_reads(messages: list[Message]) -> None:
    bulk, single = lines_of(messages)
    assert len(bulk) == len(messages)
    assert bulk == single


def test_a_line_has_the_selected_fields() -> None:
    batch = pa.RecordBatch.from_pydict({"queue_id": [3], "body": [None]})
    batch = batch.cast(pa.schema([("queue_id", pa.int32()), ("body", pa.binary())]))
    lines = json_lines(batch, ("queue_id", "body_encoding", "body"))
    assert lines.to_pylist() == ['{"queue_id": 3, "body_encoding": null, "body": null}\n']
