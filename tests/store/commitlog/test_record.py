"""Records against the format notes, an independent encoder and parser, and the kernel."""

import random
import subprocess
import sys
import zlib
from dataclasses import fields, replace
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from store import layout
from store.commitlog import record
from store.commitlog.record import (
    IllegalMessageError,
    NewMessage,
    decode_message,
    encode_record,
)
from store.commitlog.scanner import scan_rules
from store.config import BrokerVersion, StoreConfig
from store.errors import ConfigError, DamageError
from store.kernels import record as rk
from tests.logs import build as logs
from tests.logs.random_logs import Mix, message_lists, random_messages
from tests.model.dispatch import ModelConfig
from tests.model.record import parse_by_index, parse_by_split, parse_record
from tests.support.records import PLAIN_FIELDS, as_new, chain

VERSIONS = ["4.8.0", "4.9.4", "5.1.4", "5.3.3", "5.5.0"]
VECTOR = bytes.fromhex("""
    0000008f daa320a7 3610a686 00000003 00000000 0000000000000000 0000000000000000 00000000
    0000018bcfe56800 0a0000010000c350 0000018bcfe5687b 0a00000200002a9f 00000000 0000000000000000
    00000005 68656c6c6f 09 546f70696354657374 0026 554e49515f4b455901554b2d3030303102
    4b455953016b31206b3202 54414753015461674202
""")
# The body, as RocketMQ's Java client compresses it (lz4-java 1.8.0, zstd-jni 1.5.2).
PLAIN = b"hello hello hello hello RocketMQ"
COMPRESSED = {
    0x000: "785ecb48cdc9c957c8c02083f293b3534b7c0301c5390bd7",
    0x100: "04224d18607073120000006e68656c6c6f20060080526f636b65744d5100000000",
    0x200: "28b52ffd0058a400007068656c6c6f20526f636b65744d510100f14a11010000",
}
COMPRESSED[0x300] = COMPRESSED[0x000]
HOSTS = ["127.0.0.1:10911", "0.0.0.0:0", "255.255.255.255:65535", "0:0:0:0:0:0:0:1:40000"]
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)
NEW_MESSAGES = st.builds(
    NewMessage,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    queue_id=I32,
    body=st.binary(max_size=60),
    properties=st.dictionaries(NAMES, NAMES, max_size=4),
    flag=I32,
    sys_flag=I32.map(lambda flag: flag & ~(layout.SYS_COMPRESSED | 0x30)),
    born_timestamp=I64,
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(HOSTS),
    reconsume_times=I32,
    prepared_transaction_offset=I64,
)


def config_of(version: str = "5.3.3", *, crc: bool = False) -> StoreConfig:
    return StoreConfig(version=BrokerVersion.parse(version), enabled_append_prop_crc=crc)


def encode(message: NewMessage, config: StoreConfig | None = None, **place: int) -> bytes:
    place = {"queue_offset": 7, "commit_log_offset": 0, "store_timestamp": 99} | place
    return encode_record(message, config or config_of(), **place)


def test_record_of_the_format_notes_is_encoded_byte_for_byte() -> None:
    new = NewMessage(
        "TopicTest",
        3,
        b"hello",
        record.make_properties(uniq_key="UK-0001", keys=["k1", "k2"], tags="TagB"),
        born_timestamp=1_700_000_000_000,
        born_host="10.0.0.1:50000",
        store_host="10.0.0.2:10911",
    )
    assert encode(new, queue_offset=0, store_timestamp=1_700_000_000_123) == VECTOR


def test_record_of_the_format_notes_is_decoded() -> None:
    message, end = decode_message(b"xx" + VECTOR + b"y", 2, offset=0)
    assert end == 2 + len(VECTOR)
    assert (message.topic, message.queue_id, message.queue_offset) == ("TopicTest", 3, 0)
    assert (message.commit_log_offset, message.size, message.flag) == (0, 143, 0)
    assert (message.born_timestamp, message.store_timestamp) == (1700000000000, 1700000000123)
    assert (message.born_host, message.store_host) == ("10.0.0.1:50000", "10.0.0.2:10911")
    assert (message.tags, message.keys, message.uniq_key) == ("TagB", "k1 k2", "UK-0001")
    bare, _ = decode_message(encode(NewMessage("T")))
    assert (bare.tags, bare.keys, bare.uniq_key, bare.properties) == (None, None, None, {})
    assert (message.body, message.body_crc) == (b"hello", zlib.crc32(b"hello") & 0x7FFFFFFF)
    assert record.offset_msg_id(message) == "0A00000200002A9F0000000000000000"
    assert record.decode_msg_id("0a00000200002A9F0000000000000000") == ("10.0.0.2:10911", 0)


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None)
@given(new=NEW_MESSAGES, crc=st.booleans(), at=st.integers(0, 2**62))
def test_an_encoded_message_is_decoded(version: str, new: NewMessage, crc: bool, at: int) -> None:
    config = config_of(version, crc=crc)
    assume(len(new.topic.encode()) < 128)
    encoded = encode(new, config, commit_log_offset=at)
    message, end = decode_message(
        memoryview(encoded), offset=at, splits_properties=config.splits_properties
    )
    ipv6 = (0x10 if "0:0:" in new.born_host else 0) | (0x20 if "0:0:" in new.store_host else 0)
    properties = dict(message.properties)
    assert ("__CRC32#" in properties) == (crc and version >= "5.2.0")
    properties.pop("__CRC32#", None)
    expected = replace(new, sys_flag=new.sys_flag | ipv6)
    assert expected == replace(as_new(message), properties=properties)
    assert (7, 99, at) == (message.queue_offset, message.store_timestamp, message.commit_log_offset)
    assert end == message.size
    rules = scan_rules(config)
    assert rk.check_record(np.frombuffer(encoded, np.uint8), 0, at, rules).reason == rk.OK


@pytest.mark.parametrize("crc", [False, True])
@given(new=NEW_MESSAGES)
def test_encoder_agrees_with_an_independent_one(crc: bool, new: NewMessage) -> None:
    assume(len(new.topic.encode()) < 128 and new.sys_flag >= 0)  # the other encoder's are unsigned
    values = {f.name: getattr(new, f.name) for f in fields(new) if not f.name.endswith("host")}
    for kind in ("born", "store"):
        address, _, port = getattr(new, f"{kind}_host").rpartition(":")
        values[f"{kind}_host"] = ip_address(address).packed
        values[f"{kind}_port"] = int(port)
    values |= {"properties": list(new.properties.items()), "queue_offset": 7, "store_timestamp": 99}
    expected = logs.encode(logs.Message(**values), 12345, prop_crc=crc)
    assert expected == encode(new, config_of(crc=crc), commit_log_offset=12345)


@pytest.mark.parametrize("version", [(4, 8, 0), (5, 3, 3)])
def test_decoder_agrees_with_a_second_parser(version: tuple[int, ...]) -> None:
    """Includes odd properties and text that is not UTF-8."""
    config = ModelConfig(commit_log_file_size=8192, version=version)
    for seed in range(8):
        mix = Mix(version=version, malformed_topics=True)
        files = logs.build_log(random_messages(random.Random(seed), 60, mix), 8192)
        for message in chain(files, splits=version < (4, 9, 1)):
            base = message.commit_log_offset - message.commit_log_offset % 8192
            at = message.commit_log_offset - base
            expected = parse_record(files[base], at, message.commit_log_offset, config)
            for name in (*PLAIN_FIELDS, "properties", "size"):
                assert getattr(expected, name) == getattr(message, name), name
            assert expected.body == message.raw_body
            assert expected.store_host[1] == int(message.store_host.rpartition(":")[2])


@settings(max_examples=150, deadline=None)
@given(message_lists(max_size=1), st.data())
def test_decoder_accepts_what_the_kernel_accepts(
    messages: list[logs.Message | logs.Batch], data: st.DataObject
) -> None:
    assume(messages)
    encoded = bytearray(logs.encode(logs.flatten(messages)[0], 500))
    for _ in range(data.draw(st.integers(0, 2))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(encoded[: data.draw(st.integers(0, len(encoded)))]) or b"\0"
    rules = scan_rules(config_of())
    reason = rk.check_record(np.frombuffer(content, np.uint8), 0, 500, rules).reason
    if reason != rk.OK:
        with pytest.raises(DamageError) as caught:
            decode_message(content, offset=500)
        assert caught.value.offset == 500
        if reason not in (rk.BLANK, rk.NO_ROOM):
            assert rk.REASONS[reason] == caught.value.reason
        return
    message, end = decode_message(content, offset=500)
    assert end == message.size
    assert {type(value) for value in message.properties.values()} <= {str}
    assert (type(message.topic), type(message.born_host)) == (str, str)


def test_damage_names_path_offset_and_reason() -> None:
    with pytest.raises(DamageError, match="some/file at offset 5: the record names another"):
        decode_message(VECTOR, 0, offset=5, path="some/file")
    with pytest.raises(DamageError, match="does not match its CRC"):
        decode_message(VECTOR.replace(b"hello", b"hellO"))
    with pytest.raises(DamageError, match="zeroed space"):
        decode_message(bytes(200))
    with pytest.raises(DamageError, match="blank record"):
        decode_message(bytes.fromhex("00000010 cbd43194") + bytes(8))


@pytest.mark.parametrize(
    ("text", "by_index", "by_split"),
    [
        ("", {}, {}),
        ("a\x01b\x02k\x01v", {"a": "b", "k": "v"}, {"a": "b", "k": "v"}),
        ("k\x01v\x01w\x02", {"k": "v\x01w"}, {}),
        ("k\x01v\x01\x02", {"k": "v\x01"}, {"k": "v"}),
        ("\x01v\x02", {}, {"": "v"}),
        ("k\x01\x02x\x01y\x02", {"x": "y"}, {"x": "y"}),
        ("k\x01\x01v\x02", {"k": "\x01v"}, {}),
        ("k\x01a\x02k\x01b\x02", {"k": "b"}, {"k": "b"}),
        ("\x02\x02k\x01v\x02\x02", {"k": "v"}, {"k": "v"}),
    ],
)
def test_properties_as_both_parsers_read_them(
    text: str, by_index: dict[str, str], by_split: dict[str, str]
) -> None:
    assert record.parse_properties(text) == by_index
    assert record.parse_properties(text, splits=True) == by_split


@given(st.text("ab\x01\x02", max_size=12))
def test_properties_agree_with_a_second_parser(text: str) -> None:
    assert record.parse_properties(text) == parse_by_index(text)
    assert record.parse_properties(text, splits=True) == parse_by_split(text)


@pytest.mark.parametrize(
    ("version", "ended"),
    [("4.8.0", True), ("4.9.0", True), ("4.9.1", False), ("5.1.4", False), ("5.2.0", True)],
)
def test_last_property_is_ended_by_version(version: str, ended: bool) -> None:
    encoded = encode(NewMessage("T", properties={"a": "b", "c": "d"}), config_of(version))
    assert encoded.endswith(b"a\x01b\x02c\x01d" + (b"\x02" if ended else b""))
    assert encode(NewMessage("T"), config_of(version)).endswith(b"\x01T\x00\x00")


def test_property_crc_has_its_digits_reversed() -> None:
    config = config_of(crc=True)
    encoded = encode(NewMessage("T", properties={"__CRC32#": "old", "a": "b"}), config)
    crc = zlib.crc32(encoded[:-20]) & 0x7FFFFFFF
    tail = b"a\x01b\x02__CRC32#\x01" + str(crc)[::-1].ljust(10, "0").encode() + b"\x02"
    assert encoded.endswith(tail)
    assert b"old" not in encoded
    assert b"__CRC32#" not in encode(NewMessage("T"), config_of("5.1.4", crc=True))


LONG_TOPICS = [("t" * 127, False), ("t" * 128, True), ("😀" * 64, True), ("é" * 63, False)]


@pytest.mark.parametrize(("topic", "is_v2"), LONG_TOPICS)
def test_topic_of_many_utf16_units_makes_a_v2_record(topic: str, is_v2: bool) -> None:
    message, _ = decode_message(encode(NewMessage(topic)))
    assert (message.topic, message.magic == layout.MAGIC_V2) == (topic, is_v2)


NOT_ENCODABLE = [
    NewMessage("t" * 128),  # before V2
    NewMessage("长" * 43),  # V1, as it has few characters, but 129 bytes
    NewMessage("T", 2**31),
    NewMessage("T", properties={"k": "v" * 32766}),
    NewMessage("T", born_host="localhost:1"),
    NewMessage("T", store_host="1.2.3.4"),
    NewMessage("T", store_host="1.2.3.4:99999999999"),
]


@pytest.mark.parametrize("new", NOT_ENCODABLE, ids=range(len(NOT_ENCODABLE)))
def test_a_message_that_does_not_fit_a_record_is_refused(new: NewMessage) -> None:
    with pytest.raises(IllegalMessageError):
        encode(new, config_of("5.0.0"))


PRINTED_HOSTS = {
    "7f000001 00002a9f": "127.0.0.1:10911",
    "00000000000000000000000000000001 00000050": "0:0:0:0:0:0:0:1:80",
    "20010db80000000000000000000000ab 00000050": "2001:db8:0:0:0:0:0:ab:80",
    "00000000000000000000ffff01020304 00000050": "1.2.3.4:80",
}


def test_hosts_are_printed_as_java_does() -> None:
    assert {h: record.host_text(bytes.fromhex(h)) for h in PRINTED_HOSTS} == PRINTED_HOSTS


def test_msg_id_names_host_and_offset() -> None:
    new = NewMessage("T", store_host="fe80::1:10911")
    message, _ = decode_message(encode(new, commit_log_offset=2**40 + 3))
    text = record.offset_msg_id(message)
    assert text == "FE80000000000000000000000000000100002A9F0000010000000003"
    assert record.decode_msg_id(text) == ("fe80:0:0:0:0:0:0:1:10911", 2**40 + 3)


@pytest.mark.parametrize("text", ["", "0A", "0" * 31, "0" * 33, "g" * 32, " " * 32, "0" * 55])
def test_malformed_msg_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="hexadecimal"):
        record.decode_msg_id(text)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_body_is_decompressed_by_the_algorithm_of_its_flag(kind: int) -> None:
    stored = bytes.fromhex(COMPRESSED[kind])
    new = NewMessage("T", body=stored, sys_flag=layout.SYS_COMPRESSED | kind)
    message, _ = decode_message(encode(new))
    assert message.body == PLAIN
    assert message.raw_body == stored
    short, _ = decode_message(encode(replace(new, body=stored[:-5])))
    assert short.body == stored[:-5]  # its producer's flag is wrong, its CRC is valid


def test_message_keeps_no_reference_to_the_buffer() -> None:
    data = bytearray(VECTOR)
    message, _ = decode_message(memoryview(data))
    data[:] = bytes(len(data))
    assert (message.topic, message.body, message.keys) == ("TopicTest", b"hello", "k1 k2")


def test_decoding_loads_no_kernel() -> None:
    code = "import store.commitlog.commit_log, sys; print('numba' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, cwd=Path(__file__).parents[3]) == b"False\n"
