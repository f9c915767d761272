"""Messages as record batches, read back by kafka-python's own reader."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import codec
from kafka.partitioner.default import murmur2
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from store.commitlog.commit_log import CommitLog
from store.commitlog.scanner import LogRange, Scanner
from store.config import StoreConfig
from store.errors import ConfigError
from store.io.mapped_file import map_file
from streaming.kafka import record_kernel as rk
from streaming.kafka.producer import _Batch, check_inside
from streaming.kafka.record_batches import CODECS, Encoder, RecordBatch, Route, check_codec
from tests.logs.build import COMMIT, PREPARED, ROLLBACK, Message, build_log, write_log
from tests.logs.build import encode as encode_record

FILE_SIZE = 1 << 20
KEYS = [("KEYS", "k1 k2"), ("UNIQ_KEY", "U1"), ("TAGS", "T")]


def encode(
    directory: Path,
    messages: Sequence[Message],
    routes: dict[str, Route],
    *,
    batch_bytes: int = 1 << 20,
    codec: str = "none",
) -> list[RecordBatch]:
    """Write a log of one file, scan it, and encode the messages."""
    config = StoreConfig(mapped_file_size_commit_log=FILE_SIZE)
    files = build_log(messages, FILE_SIZE)
    write_log(files, directory)
    path = directory / f"{0:020d}"
    end = sum(len(encode_record(message, 0)) for message in messages)
    size = sum(len(r) for s in _stretches(config, path, end) for r in [s.size])
    assert size == len(messages)
    view = map_file(path)
    encoder = Encoder(config, batch_bytes, CODECS[codec][1])
    return [
        batch
        for stretch in _stretches(config, path, end)
        for batch in encoder.encode(stretch, routes, (view, 0, str(path)))
    ]


def _stretches(config: StoreConfig, path: Path, end: int) -> list[Any]:
    scanned = Scanner(config).read(LogRange(0, end, str(path), 0))
    return [s for s in scanned if hasattr(s, "size")]


def records(batch: RecordBatch, codec: str = "none") -> list[Any]:
    """Read a batch as a consumer would."""
    sent = _Batch(batch, CODECS[codec][0])
    sent.records.set_producer_state(7, 1, 0, True)
    sent.records.close()
    (read,) = list(MemoryRecords(sent.records.buffer()))
    assert read.validate_crc()
    assert read.is_transactional
    return list(read)


def test_internals_of_kafka_python_are_as_the_producer_expects() -> None:
    check_inside()


def test_compressions_are_known_or_refused() -> None:
    for name in ("none", "gzip", "lz4", "zstd"):
        check_codec(name)
    with pytest.raises(ConfigError, match="'brotli' is none of none, gzip, snappy, lz4, zstd"):
        check_codec("brotli")
    if codec.has_snappy():
        check_codec("snappy")
    else:
        with pytest.raises(ConfigError, match="needs a package: python-snappy"):
            check_codec("snappy")


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_a_message_is_a_record(tmp_path: Path, compression: str) -> None:
    body = b"body" * 100
    message = Message(
        "Тема%", 3, 41, body, KEYS, store_timestamp=1_700_000_000_123, born_timestamp=17
    )
    (batch,) = encode(tmp_path, [message], {"Тема%": Route("t", 4, 4)}, codec=compression)
    assert (batch.topic, batch.partition, batch.count) == ("t", 3, 1)
    assert batch.is_compressed == (compression != "none")
    (record,) = records(batch, compression)
    assert record.key == b"k1"
    assert record.value == body
    assert record.timestamp == 1_700_000_000_123
    assert record.headers == [
        ("KEYS", b"k1 k2"),
        ("UNIQ_KEY", b"U1"),
        ("TAGS", b"T"),
        ("reput.topic", "Тема%".encode()),
        ("reput.queue_id", b"3"),
        ("reput.queue_offset", b"41"),
        ("reput.commit_log_offset", b"0"),
        ("reput.born_timestamp", b"17"),
        ("reput.born_host", b"10.0.0.1:50000"),
    ]


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ([("UNIQ_KEY", "U"), ("KEYS", "a b")], b"a"),
        ([("KEYS", "a b"), ("UNIQ_KEY", "U")], b"a"),
        ([("KEYS", " a")], b"a"),
        ([("KEYS", " "), ("UNIQ_KEY", "U")], b"U"),
        ([("UNIQ_KEY", "U V")], b"U V"),
        ([("TAGS", "T")], None),
        ([], None),
        ([("KEYSX", "a"), ("KEY", "b")], None),
    ],
)
def test_the_key_is_the_first_of_keys_or_the_unique_key(
    tmp_path: Path, properties: Any, key: bytes | None
) -> None:
    message = Message(properties=properties)
    (batch,) = encode(tmp_path, [message], {"TopicTest": Route("t", 1)})
    assert [r.key for r in records(batch)] == [key]


def test_only_what_is_in_a_queue_and_has_a_route_is_mirrored(tmp_path: Path) -> None:
    kinds = [0, PREPARED, COMMIT, ROLLBACK]
    messages = [Message("A", body=b"%d" % k, sys_flag=k) for k in kinds]
    messages += [Message("B", body=b"other")]
    (batch,) = encode(tmp_path, messages, {"A": Route("t", 1)})
    assert [r.value for r in records(batch)] == [b"0", b"8"]
    assert encode(tmp_path / "none", messages, {"C": Route("t", 1)}) == []


@pytest.mark.parametrize(
    ("queue_id", "route", "properties", "partition"),
    [
        (3, Route("t", 4, 4), KEYS, 3),
        (3, Route("t", 4), KEYS, 3),  # the number of queues is unknown
        (3, Route("t", 8), KEYS, 3),
        (3, Route("t", 4, 8), KEYS, (murmur2(b"k1") & 0x7FFFFFFF) % 4),
        (9, Route("t", 4), KEYS, (murmur2(b"k1") & 0x7FFFFFFF) % 4),
        (9, Route("t", 4, 4), [], 1),
        (3, Route("t", 2, 8), [], 1),
    ],
)
def test_partitions(
    tmp_path: Path, queue_id: int, route: Route, properties: Any, partition: int
) -> None:
    message = Message("A", queue_id, properties=properties)
    (batch,) = encode(tmp_path, [message], {"A": route})
    assert batch.partition == partition


@given(st.binary(max_size=40), st.binary(max_size=5))
@settings(deadline=None)
def test_murmur2_equals_that_of_kafkas_clients(data: bytes, before: bytes) -> None:
    whole = np.frombuffer(before + data + b"x", np.uint8)
    assert rk.murmur2(whole, len(before), len(before) + len(data)) == murmur2(data) & 0xFFFFFFFF


@given(st.integers(-(2**63), 2**63 - 1))
@settings(deadline=None)
def test_numbers_are_written_in_decimal(value: int) -> None:
    out = np.zeros(40, np.uint8)
    end = rk._write_digits(out, 0, np.int64(value))
    text = str(value).encode()
    assert out[:end].tobytes() == bytes([2 * len(text)]) + text
    assert rk._digits(np.int64(value)) == len(text)


def test_log_order_is_kept_in_each_partition_whatever_the_size_of_batches(tmp_path: Path) -> None:
    messages = [
        Message("A" if n % 3 else "B", n % 4, n, b"x" * (n % 50), KEYS, store_timestamp=1000 - n)
        for n in range(300)
    ]
    routes = {"A": Route("a", 4), "B": Route("b", 4)}
    seen = []
    for number, batch_bytes in enumerate((1, 500, 5_000, 1 << 20)):
        batches = encode(tmp_path / str(number), messages, routes, batch_bytes=batch_bytes)
        found: dict[TopicPartition, list[tuple[bytes, int]]] = {}
        for batch in batches:
            assert len(batch.records) <= batch_bytes or batch.count == 1
            read = records(batch)
            assert batch.count == len(read)
            assert batch.max_timestamp == max(r.timestamp for r in read)
            where = TopicPartition(batch.topic, batch.partition)
            found.setdefault(where, []).extend(
                (dict(r.headers)["reput.queue_offset"], r.timestamp) for r in read
            )
        seen.append(found)
    expected: dict[TopicPartition, list[tuple[bytes, int]]] = {}
    for n, message in enumerate(messages):
        where = TopicPartition(str(message.topic).lower(), message.queue_id)
        expected.setdefault(where, []).append((str(n).encode(), 1000 - n))
    assert seen == [expected] * 4


def test_the_largest_message_is_known_by_its_offset(tmp_path: Path) -> None:
    messages = [Message(body=b"x" * size) for size in (10, 5000, 20)]
    (batch,) = encode(tmp_path, messages, {"TopicTest": Route("t", 1)})
    log = CommitLog([tmp_path], StoreConfig(mapped_file_size_commit_log=FILE_SIZE))
    largest = log.find_message(batch.largest_offset)
    assert largest is not None
    assert len(largest.body) == 5000
    assert 5000 < batch.largest_size < 5400
    assert batch.first_offset == 0


texts = st.text(st.characters(exclude_characters="\x00\x01\x02", codec="utf-8"), max_size=300)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=6),
            st.integers(0, 2**58),  # a queue cannot hold more
            st.integers(-(2**50), 2**50),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(deadline=None, max_examples=60)
def test_any_message_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[Any, ...]]
) -> None:
    messages = [
        Message("A", 0, offset, body, list(properties.items()), born_timestamp=born)
        for body, properties, offset, born in parts
    ]
    batches = encode(
        tmp_path_factory.mktemp("log"), messages, {"A": Route("t", 1)}, batch_bytes=400
    )
    found = [r for batch in batches for r in records(batch)]
    assert [r.value for r in found] == [m.body for m in messages]
    for record, (_, properties, offset, born) in zip(found, parts, strict=True):
        headers = record.headers
        assert headers[: len(properties)] == [(k, v.encode()) for k, v in properties.items()]
        ours = dict(headers[len(properties) :])
        assert int(ours["reput.queue_offset"]) == offset
        assert int(ours["reput.born_timestamp"]) == born
