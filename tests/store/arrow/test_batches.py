"""Messages as Arrow columns, compared record by record with the model's parser."""

import datetime
import ipaddress
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from store import java
from store.arrow import buffers
from store.arrow.batches import message_batches
from store.arrow.schema import MESSAGE_FIELDS, message_schema, rows_of_topics
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Scanner
from store.config import BrokerVersion, StoreConfig
from store.errors import ConfigError, DamageError, StoreError
from store.io.mapped_file import map_file
from store.kernels import message_columns as mk
from tests.conftest import Golden
from tests.logs.build import Message, build_log, flatten
from tests.logs.random_logs import Mix, random_messages
from tests.model.config import ModelConfig
from tests.model.record import Record, parse_record
from tests.support.stores.golden import golden_slice

FILE_SIZE = 8192
ALL = tuple(MESSAGE_FIELDS)
SCANNED = ("topic", "queue_id", "queue_offset", "commit_log_offset", "size", "store_timestamp")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COMPRESSED, COMPRESSION_TYPE = 0x1, 0x700
DECOMPRESS = {
    0x000: zlib.decompress,
    0x100: lz4.frame.decompress,
    0x200: zstandard.ZstdDecompressor().decompress,
    0x300: zlib.decompress,
}
COMPRESS = {
    0x000: zlib.compress,
    0x100: lz4.frame.compress,
    0x200: zstandard.ZstdCompressor().compress,
    0x300: zlib.compress,
}

Stretch = tuple[DispatchRequests, NDArray[np.uint8], int]


def config_of(version: str) -> StoreConfig:
    return StoreConfig(BrokerVersion.parse(version), mapped_file_size_commit_log=FILE_SIZE)


def scan(files: dict[int, NDArray[np.uint8]], config: StoreConfig) -> Iterator[Stretch]:
    for base, view in files.items():
        for requests, _ in Scanner(config).chunks(view, base, 0, len(view)):
            yield requests, view, base


def log_of(messages: Sequence[Message], **options: Any) -> dict[int, NDArray[np.uint8]]:
    files = build_log(messages, options.pop("file_size", FILE_SIZE), **options)
    return {base: np.frombuffer(content, np.uint8) for base, content in files.items()}


def message_batch(*args: Any, **options: Any) -> pa.RecordBatch:
    (batch,) = message_batches(*args, **options)
    return batch


def stretch_of(*messages: Message, version: str = "5.3.3") -> Stretch:
    (stretch,) = scan(log_of(messages, file_size=1 << 18), config_of(version))
    assert len(stretch[0]) == len(messages)
    return stretch


def host_text(host: tuple[bytes, int]) -> str:
    raw, port = host
    address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return f"{':'.join(f'{int(g, 16):x}' for g in address.exploded.split(':'))}:{port}"
        address = address.ipv4_mapped
    return f"{address}:{port}"


def time_of(ms: int) -> datetime.datetime | None:
    """Return a time, None if its microseconds do not fit 64 bits."""
    return EPOCH + datetime.timedelta(milliseconds=ms) if abs(ms) < 2**63 // 1000 else None


def expected_body(record: Record) -> bytes:
    if not record.sys_flag & COMPRESSED or not record.body:
        return record.body
    return bytes(DECOMPRESS[record.sys_flag & COMPRESSION_TYPE](record.body))


def expected_row(record: Record, wanted: Sequence[str]) -> dict[str, Any]:
    properties = record.properties
    row: dict[str, Any] = {name: getattr(record, name, None) for name in wanted}
    texts = {"tags": "TAGS", "keys": "KEYS", "uniq_key": "UNIQ_KEY"}
    row |= {name: properties.get(key) for name, key in texts.items() if name in wanted}
    row["properties"] = dict(properties)
    row["store_timestamp"] = time_of(record.store_timestamp)
    row["born_timestamp"] = time_of(record.born_timestamp)
    row["born_host"] = host_text(record.born_host)
    row["store_host"] = host_text(record.store_host)
    if "body" in wanted:
        row["body"] = expected_body(record)
    return {name: row[name] for name in wanted}


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    rows = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            names = [name for name, _ in row["properties"]]
            assert len(set(names)) == len(names), "a name twice in one map"
            row["properties"] = dict(row["properties"])
    return rows


def records_of(stretch: Stretch, config: StoreConfig) -> list[Record]:
    requests, view, base = stretch
    model = ModelConfig(
        version=tuple(config.version), message_delay_level=config.message_delay_level
    )
    return [
        parse_record(view[offset - base : offset - base + size].tobytes(), 0, offset, model)
        for offset, size in zip(
            requests.commit_log_offset.tolist(), requests.size.tolist(), strict=True
        )
    ]


def compress(message: Message, random: Random) -> Message:
    """Compress the body of a message whose flag marks it as compressed."""
    if not message.sys_flag & COMPRESSED:
        return message
    kind = random.choice(list(COMPRESS))
    body = COMPRESS[kind](message.body * random.randrange(1, 4)) if message.body else b""
    flag = message.sys_flag & ~COMPRESSION_TYPE | kind
    return replace(message, body=body, sys_flag=flag)


@pytest.mark.parametrize("version", ["4.8.0", "4.9.4", "5.3.3"])
def test_random_logs_read_as_the_model_reads_them(version: str) -> None:
    config = config_of(version)
    seen = 0
    for seed in range(25):
        random = Random(seed)
        mix = Mix(version=tuple(config.version), malformed_topics=seed % 2 == 0)
        messages = [compress(m, random) for m in flatten(random_messages(random, 60, mix))]
        for stretch in scan(log_of(messages, start=FILE_SIZE * (seed % 3)), config):
            expected = [expected_row(r, ALL) for r in records_of(stretch, config)]
            assert rows_of(message_batch(*stretch, ALL, config=config)) == expected
            seen += len(expected)
    assert seen > 25 * 60


@golden_slice
def test_golden_logs_read_as_the_model_reads_them(golden: Golden) -> None:
    config, seen, liars, compressed = golden.config, 0, 0, 0
    wanted = [name for name in ALL if name != "body"]
    paths = config.commit_log_paths(golden.store_root)
    files = {int(file.name): map_file(file) for path in paths for file in path.iterdir()}
    for stretch in scan(files, config):
        records = records_of(stretch, config)
        assert rows_of(message_batch(*stretch, wanted, config=config)) == [
            expected_row(record, wanted) for record in records
        ]
        # Some bodies of g7 are not compressed although their flag is set: see below.
        rows = np.array([r for r, record in enumerate(records) if decompresses(record)], np.int64)
        batch = message_batch(*stretch, ["body"], config=config)
        assert batch["body"].to_pylist() == [
            expected_body(record) if decompresses(record) else bytes(record.body)
            for record in records
        ]
        seen += len(records)
        liars += len(records) - len(rows)
        compressed += sum(records[r].sys_flag & COMPRESSED for r in rows)
    assert seen > 0
    if golden.name.startswith("g4"):  # A real client wrote these.
        assert compressed > 0
    assert (liars > 0) == golden.name.startswith("g7")


def decompresses(record: Record) -> bool:
    try:
        expected_body(record)
    except zlib.error:
        return False
    return True


SEPARATORS = st.sampled_from([b"\x01", b"\x02"])
NAMES = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b"b", b"\xff", b"\xfe", b"\xed\xa0"])
TEXTS = st.sampled_from([b"\xef\xbf\xbd", "主😀".encode(), b"\xe4\xb8", b"\x80", b"\x00", b" "])
PROPERTIES = st.lists(SEPARATORS | NAMES | TEXTS | st.binary(max_size=3), max_size=30).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(PROPERTIES, min_size=1, max_size=4), st.sampled_from(["4.9.0", "5.3.3"]))
def test_any_properties_read_as_the_model_reads_them(parts: list[bytes], version: str) -> None:
    config = config_of(version)
    stretch = stretch_of(*(Message(properties=part) for part in parts), version=version)
    wanted = ["tags", "properties", "keys", "uniq_key"]
    expected = [expected_row(r, wanted) for r in records_of(stretch, config)]
    assert rows_of(message_batch(*stretch, wanted, config=config)) == expected


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(TEXTS | st.binary(max_size=4), max_size=5).map(b"".join), max_size=4))
def test_malformed_utf8_is_replaced_as_java_decodes_it(texts: list[bytes]) -> None:
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    expected = [java.decode(text).encode() for text in texts]
    sizes = np.empty(len(texts), np.int64)
    assert mk.sanitized_sizes(data, offsets, sizes) == (expected != texts)
    assert sizes.tolist() == [len(text) for text in expected]
    out = np.empty(int(sizes.sum()), np.uint8)
    mk.sanitize_utf8(data, offsets, out)
    assert out.tobytes() == b"".join(expected)


def test_repeated_names_keep_the_last_value_even_when_only_decoding_makes_them_equal() -> None:
    pairs = [("a", "1"), ("TAGS", "x"), (b"\xff", "2"), ("a", "3"), (b"\xfe", "4"), ("TAGS", "y")]
    batch = message_batch(
        *stretch_of(Message(properties=pairs)), ["tags", "properties"], config=config_of("5.3.3")
    )
    assert batch.to_pylist() == [
        {"tags": "y", "properties": [("a", "3"), ("TAGS", "y"), ("\ufffd", "4")]}
    ]


def test_as_many_properties_as_a_record_can_hold() -> None:
    many = b"\x01v\x02" + b"".join(b"%x\x01v\x02" % n for n in range(5300))
    assert 32000 < len(many) < 32768
    shortest = b"\x01v\x02" * 10_922  # one empty name, repeated
    stretch = stretch_of(Message(properties=many), Message(properties=shortest), version="4.9.0")
    batch = message_batch(*stretch, ["properties"], config=config_of("4.9.0"))
    first, second = (row["properties"] for row in rows_of(batch))
    assert len(first) == 5301
    assert second == {"": "v"}


def test_hosts_are_written_as_java_writes_them() -> None:
    mapped = bytes(10) + b"\xff\xff\x01\x02\x03\x04"
    address = bytes.fromhex("20010db8000000000000000a00b0ffff")
    messages = [
        Message(born_host=mapped, born_port=0, store_host=address, store_port=65535),
        Message(born_host=bytes(16), born_port=9, store_host=b"\xff" * 16, store_port=-(2**31)),
        Message(born_host=bytes(4), born_port=2**31 - 1, store_host=b"\xff" * 4, store_port=10),
    ]
    batch = message_batch(
        *stretch_of(*messages), ["born_host", "store_host"], config=config_of("5.3.3")
    )
    assert batch.to_pylist() == [
        {"born_host": "1.2.3.4:0", "store_host": "2001:db8:0:0:0:a:b0:ffff:65535"},
        {
            "born_host": "0:0:0:0:0:0:0:0:9",
            "store_host": ":".join(["ffff"] * 8) + ":-2147483648",
        },
        {"born_host": "0.0.0.0:2147483647", "store_host": "255.255.255.255:10"},
    ]


def test_timestamp_that_does_not_fit_is_null() -> None:
    most = (2**63 - 1) // 1000
    times = [0, -1, most, -most, most + 1, -most - 1, 2**63 - 1, -(2**63)]
    stretch = stretch_of(*(Message(born_timestamp=t, store_timestamp=t) for t in times))
    wanted = ["born_timestamp", "store_timestamp"]
    batch = message_batch(*stretch, wanted, config=config_of("5.3.3"))
    expected = [0, -1000, most * 1000, -most * 1000, None, None, None, None]
    assert [batch[name].cast(pa.int64()).to_pylist() for name in wanted] == [expected] * 2


@pytest.fixture(scope="module")
def stretch() -> Stretch:
    random = Random(5)
    drawn = flatten(random_messages(random, 200, Mix(malformed_topics=True)))
    return stretch_of(*(compress(m, random) for m in drawn))


@pytest.mark.parametrize("name", ALL)
def test_a_single_column_equals_the_same_column_of_all(stretch: Stretch, name: str) -> None:
    config = config_of("5.3.3")
    everything = message_batch(*stretch, ALL, config=config)
    alone = message_batch(*stretch, [name], config=config)
    assert alone.schema == message_schema([name])
    assert alone[name].equals(everything[name])


def test_only_the_selected_rows_are_read_in_their_order(stretch: Stretch) -> None:
    config = config_of("5.3.3")
    rows = np.array([150, 3, 3, 77], np.int64)
    everything = message_batch(*stretch, ALL, config=config)
    some = message_batch(*stretch, ALL, rows=rows, config=config)
    assert some.to_pylist() == everything.take(pa.array(rows)).to_pylist()


def test_no_rows_give_an_empty_batch(stretch: Stretch) -> None:
    batch = message_batch(*stretch, ALL, rows=np.empty(0, np.int64), config=config_of("5.3.3"))
    assert batch.num_rows == 0
    assert batch.schema == message_schema()


def test_scanned_columns_do_not_touch_the_log(stretch: Stretch) -> None:
    requests, _, base = stretch
    nothing = np.empty(0, np.uint8)
    wanted = [*SCANNED, "tags_code"]
    batch = message_batch(requests, nothing, base, wanted, config=config_of("5.3.3"))
    assert batch.num_rows == len(requests)


def test_body_that_does_not_decompress_is_returned_as_stored() -> None:
    stretch = stretch_of(Message(), Message(sys_flag=COMPRESSED, body=b"not zlib"), Message())
    batch = message_batch(*stretch, ALL, config=config_of("5.3.3"), path=Path("/log/0"))
    assert batch["body"].to_pylist()[1] == b"not zlib"


def test_record_that_changed_since_the_scan_is_damage() -> None:
    requests, view, base = stretch_of(Message(), Message())
    other = view.copy()
    other[int(requests.commit_log_offset[1]) + 84] ^= 0x01  # in the body length
    with pytest.raises(DamageError, match="changed while it was read"):
        message_batch(requests, other, base, ["keys"], config=config_of("5.3.3"))


def test_more_bytes_than_a_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_DATA_SIZE_MAX", 9)
    stretch = stretch_of(Message(body=b"12345"), Message(body=b"12345"))
    with pytest.raises(StoreError, match="10 bytes, more than the 9 of a batch"):
        message_batch(*stretch, ["body"], config=config_of("5.3.3"))


def test_unknown_column_is_refused(stretch: Stretch) -> None:
    with pytest.raises(ConfigError, match="no column 'offset'; the columns are topic, queue_id"):
        message_batch(*stretch, ["topic", "offset"], config=config_of("5.3.3"))


def test_topics_are_asked_for_once(stretch: Stretch) -> None:
    requests = stretch[0]
    asked = []

    def is_wanted(topic: str) -> bool:
        asked.append(topic)
        return topic.startswith("%")

    chosen = rows_of_topics(requests, is_wanted)
    assert sorted(asked) == sorted(set(requests.topics))
    topics = message_batch(*stretch, ["topic"], config=config_of("5.3.3"))["topic"].to_pylist()
    assert chosen.tolist() == [topic.startswith("%") for topic in topics]
    assert 0 < chosen.sum() < len(requests)


def test_schema_is_what_spark_makes_of_the_columns() -> None:
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_schema

    kinds: dict[pa.DataType, spark.DataType] = {
        pa.string(): spark.StringType(),
        pa.binary(): spark.BinaryType(),
        pa.int32(): spark.IntegerType(),
        pa.int64(): spark.LongType(),
        pa.timestamp("us", tz="UTC"): spark.TimestampType(),
        pa.map_(pa.string(), pa.string()): spark.MapType(spark.StringType(), spark.StringType()),
    }
    fields = [spark.StructField(name, kinds[kind]) for name, kind in MESSAGE_FIELDS.items()]
    assert to_arrow_schema(spark.StructType(fields), timezone="UTC").equals(message_schema())


@pytest.mark.parametrize("left", [0, 50, 200])
def test_a_file_that_became_shorter_since_the_scan_is_damage(left: int) -> None:
    requests, view, base = stretch_of(Message(), Message())
    with pytest.raises(DamageError) as caught:
        message_batch(requests, view[:left], base, ["body"], config=config_of("5.3.3"))
    assert "truncated" in caught.value.reason or "changed" in caught.value.reason
