"""Messages as Kafka records: key, value, headers, time and partition."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.arrow.batches import BodyLimits
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import LogRange, Scanner
from store.config import StoreConfig
from store.errors import BodyTooLargeError, ConfigError
from store.io.mapped_file import map_file
from streaming.kafka.records import BY_KEY, LogFile, Record, RecordReader, Route
from tests.logs.build import COMMIT, PREPARED, ROLLBACK, Message, build_log, write_log
from tests.logs.build import encode as encode_record

FILE_SIZE = 1 << 20
CONFIG = StoreConfig(mapped_file_size_commit_log=FILE_SIZE)
KEYS = [("KEYS", "k1 k2"), ("UNIQ_KEY", "U1"), ("TAGS", "T")]
ROUTES = {"TopicTest": Route("t", 1)}


def read(
    directory: Path,
    messages: Sequence[Message],
    routes: dict[str, Route],
    limits: BodyLimits | None = None,
) -> list[Record]:
    """Write a log of one file, scan it, and read the records of its messages."""
    write_log(build_log(messages, FILE_SIZE), directory)
    path = directory / f"{0:020d}"
    end = sum(len(encode_record(message, 0)) for message in messages)
    reader = RecordReader(CONFIG, limits or BodyLimits())
    file = LogFile(map_file(path), 0, str(path))
    found: list[Record] = []
    for stretch in Scanner(CONFIG).read(LogRange(0, end, str(path), 0)):
        assert isinstance(stretch, DispatchRequests)
        found += reader.read(stretch, routes, file)
    return found


def test_a_message_is_a_record(tmp_path: Path) -> None:
    body = b"body" * 100
    message = Message(
        "Тема%", 3, 41, body, KEYS, store_timestamp=1_700_000_000_123, born_timestamp=17
    )
    (record,) = read(tmp_path, [message], {"Тема%": Route("t", 4, 4)})
    headers = [
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
    assert record == Record("t", body, b"k1", 3, 1_700_000_000_123, headers, 0)


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
    (record,) = read(tmp_path, [Message(properties=properties)], ROUTES)
    assert record.key == key


def test_only_what_is_in_a_queue_and_has_a_route_is_mirrored(tmp_path: Path) -> None:
    kinds = [0, PREPARED, COMMIT, ROLLBACK]
    messages = [Message("A", body=b"%d" % k, sys_flag=k) for k in kinds]
    messages += [Message("B", body=b"other")]
    found = read(tmp_path, messages, {"A": Route("t", 1)})
    assert [r.value for r in found] == [b"0", b"8"]
    assert read(tmp_path / "none", messages, {"C": Route("t", 1)}) == []


@pytest.mark.parametrize(
    ("queue_id", "route", "key", "partition"),
    [
        (3, Route("t", 4, 4), b"k", 3),
        (3, Route("t", 4), b"k", 3),  # the number of queues is unknown
        (3, Route("t", 8), b"k", 3),
        (3, Route("t", 4, 8), b"k", BY_KEY),
        (9, Route("t", 4), b"k", BY_KEY),
        (9, Route("t", 4), b"", BY_KEY),
        (9, Route("t", 4, 4), None, 1),
        (3, Route("t", 2, 8), None, 1),
        (-1, Route("t", 4), None, 3),
    ],
)
def test_partitions(queue_id: int, route: Route, key: bytes | None, partition: int) -> None:
    assert route.partition(queue_id, key) == partition


def test_a_nul_in_a_propertys_name_is_refused_after_what_precedes_it(tmp_path: Path) -> None:
    messages = [Message(), Message(properties=[("a\0b", "v")])]
    write_log(build_log(messages, FILE_SIZE), tmp_path)
    path = tmp_path / f"{0:020d}"
    sizes = [len(encode_record(message, 0)) for message in messages]
    (stretch,) = Scanner(CONFIG).read(LogRange(0, sum(sizes), str(path), 0))
    assert isinstance(stretch, DispatchRequests)
    reader = RecordReader(CONFIG, BodyLimits())
    records = reader.read(stretch, ROUTES, LogFile(map_file(path), 0, str(path)))
    assert next(records).commit_log_offset == 0
    with pytest.raises(ConfigError, match=rf"offset {sizes[0]} of {path} has a property .*NUL"):
        next(records)


def test_a_nul_in_a_value_is_kept(tmp_path: Path) -> None:
    (record,) = read(tmp_path, [Message(properties=[("a", "b\0c")])], ROUTES)
    assert record.headers[0] == ("a", b"b\0c")


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    body, flag = zlib.compress(bytes(5_000)), 1
    messages = [Message(body=b"small"), Message(body=body, sys_flag=flag)]
    found = read(tmp_path / "whole", messages, ROUTES)
    assert [len(r.value) for r in found] == [5, 5_000]
    with pytest.raises(BodyTooLargeError, match="decompresses to more than 4000 bytes"):
        read(tmp_path / "limited", messages, ROUTES, BodyLimits(4_000))


texts = st.text(st.characters(exclude_characters="\x00\x01\x02", codec="utf-8"), max_size=300)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=6),
            st.integers(0, 2**58),  # a queue cannot hold more
            st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(deadline=None, max_examples=60)
def test_any_message_is_a_record(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[Any, ...]]
) -> None:
    messages = [
        Message("A", 0, offset, body, list(properties.items()), born_timestamp=born)
        for body, properties, offset, born in parts
    ]
    found = read(tmp_path_factory.mktemp("log"), messages, {"A": Route("t", 1)})
    assert [r.value for r in found] == [m.body for m in messages]
    for record, (_, properties, offset, born) in zip(found, parts, strict=True):
        headers = record.headers
        assert headers[: len(properties)] == [(k, v.encode()) for k, v in properties.items()]
        ours = dict(headers[len(properties) :])
        assert int(ours["reput.queue_offset"]) == offset
        assert int(ours["reput.born_timestamp"]) == born
