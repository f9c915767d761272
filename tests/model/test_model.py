"""The executable model against the format description's own vectors and rules."""

import struct
from dataclasses import replace

import pytest

from tests.logs.build import PREPARED, ROLLBACK, Message, build_log, encode
from tests.model.dispatch import Built, Drop, ModelConfig, dispatch
from tests.model.record import (
    Properties,
    decode_utf8,
    index_hash,
    is_blank,
    parse_integer,
    parse_properties,
    split,
    string_hash,
)

SPEC_RECORD = bytes.fromhex(
    "0000008f daa320a7 3610a686 00000003 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe56800 0a0000010000c350 0000018bcfe5687b 0a00000200002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 09 546f70696354657374 0026"
    "554e49515f4b455901554b2d3030303102 4b455953016b31206b3202 54414753015461674202"
)
SPEC_MESSAGE = Message(
    queue_id=3,
    properties=[("UNIQ_KEY", "UK-0001"), ("KEYS", "k1 k2"), ("TAGS", "TagB")],
)
SMALL = ModelConfig(
    commit_log_file_size=4096, consume_queue_file_size=400, max_hash_slot_num=7, max_index_num=24
)


def build(*messages: Message, config: ModelConfig = SMALL) -> Built:
    """Dispatch a log of these messages."""
    return dispatch(build_log(messages, config.commit_log_file_size), config)


def with_version(*version: int) -> ModelConfig:
    """Return the small configuration, with slots that do not collide, for another version."""
    return replace(SMALL, max_hash_slot_num=97, version=version)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("标签😀", 825518074),
        ("polygenelubricants", -2147483648),
        ("TopicTest#UK-0001", -303458154),
        ("TopicTest#k1", 2746024),
        ("TopicTest#k2", 2746025),
    ],
)
def test_string_hash_is_javas(text: str, code: int) -> None:
    assert string_hash(text) == code
    assert index_hash(text) == (0 if code == -2147483648 else abs(code))


def test_encoder_writes_the_record_of_the_format_description() -> None:
    assert encode(SPEC_MESSAGE, 0) == SPEC_RECORD


def test_record_of_the_format_description_is_dispatched_as_described() -> None:
    log = SPEC_RECORD.ljust(4096, b"\x00")
    built = dispatch({0: log}, ModelConfig(commit_log_file_size=4096))
    assert built.end == len(SPEC_RECORD) == 143
    assert list(built.consume_queue) == ["TopicTest/3/00000000000000000000"]
    queue = built.consume_queue["TopicTest/3/00000000000000000000"]
    assert queue[:20].hex(" ", 4) == "00000000 00000000 0000008f 00000000 0027a808"
    assert len(queue) == 6_000_000
    assert not any(queue[20:])
    [index] = built.index_files
    assert index.size == 420_000_040
    times = bytes.fromhex("0000018bcfe5687b 0000018bcfe5687b")
    assert index.read(0, 40) == times + bytes(16) + struct.pack(">ii", 3, 4)
    for number, (slot_at, key_hash) in enumerate(
        [(13832656, "1216676a"), (10984136, "0029e6a8"), (10984140, "0029e6a9")], 1
    ):
        assert index.read(slot_at, 4) == struct.pack(">i", number)
        entry = index.read(20_000_040 + 20 * number, 20)
        assert entry == bytes.fromhex(key_hash) + bytes(16)


def test_tags_hash_is_sign_extended_in_the_queue() -> None:
    built = build(Message(properties=[("TAGS", "polygenelubricants")]))
    queue = built.consume_queue["TopicTest/0/00000000000000000000"]
    assert queue[12:20].hex() == "ffffffff80000000"


def test_encoded_surrogates_decode_to_one_replacement_each() -> None:
    assert decode_utf8(b"a\xed\xa0\x80b\xed\xbf\xffc") == "a\ufffdb\ufffd\ufffdc"


@pytest.mark.parametrize(
    ("text", "since_4_9_1", "until_4_9_0"),
    [
        ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}, {"a": "b", "c": "d"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}, {"a": "c"}),
        ("k\x01v\x01w\x02", {"k": "v\x01w"}, {}),
        ("k\x01v\x01\x02", {"k": "v\x01"}, {"k": "v"}),
        ("\x01v\x02", {}, {"": "v"}),
        ("k\x01\x02", {}, {}),
        ("\x02\x02a\x01b\x02\x02", {"a": "b"}, {"a": "b"}),
    ],
)
def test_property_parsers(text: str, since_4_9_1: Properties, until_4_9_0: Properties) -> None:
    assert parse_properties(text, (4, 9, 1)) == since_4_9_1
    assert parse_properties(text, (4, 9, 0)) == until_4_9_0


def test_java_helpers() -> None:
    assert [split(text, ",") for text in ("", ",", "a,,", ",a")] == [[""], [], ["a"], ["", "a"]]
    assert [is_blank(text) for text in ("", " \t\x1c", "\u00a0", "x")] == [True, True, False, False]
    numbers = ["+7", "-1", "٣", "", "+", " 1", "1_0", "2147483648"]
    assert [parse_integer(text, 32) for text in numbers] == [7, -1, 3, *[None] * 5]


def test_first_file_of_a_queue_is_filled_up_to_its_offset() -> None:
    built = build(Message(queue_offset=33))
    [(name, queue)] = built.consume_queue.items()
    assert name == "TopicTest/0/00000000000000000400"
    assert queue[: 13 * 20] == struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 13
    assert queue[13 * 20 :] == struct.pack(">qiq", 0, 105, 0) + bytes(400 - 14 * 20)
    assert built.drops == []


def test_misplaced_units_are_named() -> None:
    size = len(encode(Message(), 0))
    built = build(*[Message(queue_offset=at) for at in (0, 2, 1, 0)])
    queue = built.consume_queue["TopicTest/0/00000000000000000000"]
    offsets = [offset for offset, *_ in struct.iter_unpack(">qiq", queue[:60])]
    assert offsets == [0, size, 3 * size]
    assert built.drops == [
        Drop(size, "TopicTest", 0, "gap"),
        Drop(2 * size, "TopicTest", 0, "repeated"),
        Drop(3 * size, "TopicTest", 0, "restarted"),
    ]


def test_dropped_unit_leaves_an_ext_unit_and_an_empty_file_after_a_full_one() -> None:
    config = ModelConfig(
        commit_log_file_size=4096,
        consume_queue_file_size=40,
        consume_queue_ext_file_size=60,
        enable_consume_queue_ext=True,
        message_index_enable=False,
    )
    built = build(*[Message(queue_offset=at) for at in (0, 1, 1)], config=config)
    assert built.consume_queue["TopicTest/0/00000000000000000040"] == bytes(40)
    assert built.index == []
    unit = struct.pack(">hqqh", 20, 0, 1_700_000_000_123, 0)
    assert built.consume_queue_ext == {
        "TopicTest/0/00000000000000000000": unit + unit + b"\xff\xff" + bytes(18),
        "TopicTest/0/00000000000000000060": unit + bytes(40),
    }


def test_ext_unit_may_leave_exactly_the_four_bytes_of_an_end_mark() -> None:
    config = replace(SMALL, consume_queue_ext_file_size=64, enable_consume_queue_ext=True)
    built = build(*[Message(queue_offset=at) for at in range(4)], config=config)
    first, second = built.consume_queue_ext.values()
    assert first[60:] == b"\xff\xff\x00\x00"
    assert not any(second[20:])


@pytest.mark.parametrize(
    ("delay", "tags_code"),
    [("1", 1_700_000_001_123), ("99", 1_700_007_200_123), ("0", 65), ("-1", 65)],
)
def test_delay_counts_in_the_schedule_topic_only(delay: str, tags_code: int) -> None:
    properties = [("TAGS", "A"), ("DELAY", delay)]
    scheduled = Message(topic="SCHEDULE_TOPIC_XXXX", properties=properties)
    built = build(scheduled, Message(properties=properties))
    assert [record.tags_code for record in built.records] == [tags_code, 65]


def test_first_entry_of_a_rolled_index_file_counts_from_the_previous_one() -> None:
    messages = [
        Message(
            queue_offset=n,
            store_timestamp=1_700_000_000_000 + 2500 * n,
            properties=[("KEYS", f"k{n}")],
        )
        for n in range(25)
    ]
    first, second = build(*messages).index
    assert struct.unpack(">ii", first[32:40]) == (7, 24)
    entries_at = 40 + 4 * 7
    seconds = [
        struct.unpack_from(">iqii", second, entries_at + 20 * number)[2] for number in (1, 2)
    ]
    assert seconds == [2, 2]


@pytest.mark.parametrize(
    ("sys_flag", "is_queued", "is_indexed"),
    [(0, True, True), (PREPARED, False, True), (0x8, True, True), (ROLLBACK, False, False)],
)
def test_transaction_types(sys_flag: int, is_queued: bool, is_indexed: bool) -> None:
    built = build(Message(sys_flag=sys_flag, properties=[("KEYS", "k")]))
    assert len(built.consume_queue) == is_queued
    assert built.index[0][36:40] == struct.pack(">i", 1 + is_indexed)


def test_index_rules_by_version() -> None:
    message = Message(properties=[("TAGS", "TagA"), ("KEYS", "a  b a")])
    for version, entries, slots in [((5, 4, 0), 4, 3), ((5, 3, 3), 3, 2), ((4, 7, 0), 3, 3)]:
        [index] = build(message, config=with_version(*version)).index
        assert struct.unpack(">ii", index[32:40]) == (slots, entries + 1)
    for version, count in [((4, 9, 4), 0), ((5, 0, 0), 1)]:
        [index] = build(Message(), config=with_version(*version)).index
        assert struct.unpack(">ii", index[32:40]) == (0, count)


@pytest.mark.parametrize(
    ("version", "topic", "names"),
    [
        ((4, 9, 2), "A", []),
        ((4, 9, 3), "A", ["%LMQ%x/0", "%LMQ%y/z/0", "p/5"]),
        ((5, 1, 0), "%RETRY%A", ["%LMQ%x/0", "%LMQ%y/z/0", "p/5"]),
        ((5, 1, 1), "%RETRY%A", []),
        ((5, 1, 1), "rmq_sys_other", ["%LMQ%x/0", "%LMQ%y/z/0", "p/5"]),
        ((5, 1, 1), "rmq_sys_wheel_timer", ["%LMQ%x/0", "%LMQ%y/z/0", "p/5"]),
        ((5, 1, 2), "rmq_sys_wheel_timer", []),
        ((5, 1, 2), "A", ["%LMQ%x/0", "p/5"]),
        ((5, 2, 0), "rmq_sys_other", []),
        ((5, 2, 0), "SCHEDULE_TOPIC_XXXX", []),
    ],
)
def test_multi_dispatch_by_version(version: tuple[int, ...], topic: str, names: list[str]) -> None:
    config = replace(SMALL, enable_multi_dispatch=True, enable_lmq=True, version=version)
    properties = [
        ("INNER_MULTI_DISPATCH", "%LMQ%x,%LMQ%y/z,p"),
        ("INNER_MULTI_QUEUE_OFFSET", "0,0,0"),
    ]
    built = build(Message(topic=topic, queue_id=5, properties=properties), config=config)
    queues = [name.rsplit("/", 1)[0] for name in built.consume_queue]
    assert queues == [f"{topic}/5", *names]


def test_multi_dispatch_that_hangs_a_broker_ends_the_log() -> None:
    config = replace(SMALL, enable_multi_dispatch=True)
    properties = [("INNER_MULTI_DISPATCH", "p,%LMQ%x"), ("INNER_MULTI_QUEUE_OFFSET", ",5")]
    built = build(Message(properties=properties), config=config)
    assert (built.end, built.consume_queue) == (0, {})
    assert build(Message(properties=properties)).consume_queue != {}


def test_log_ends_at_the_first_invalid_record() -> None:
    files = build_log([Message(queue_offset=n) for n in range(3)], 4096, prop_crc=True)
    size = len(encode(Message(), 0, prop_crc=True))
    for at in (size + 4, size + 8, size + 35, 2 * size - 2, 2 * size - 25):
        damaged = bytearray(files[0])
        damaged[at] ^= 1
        assert dispatch({0: damaged}, SMALL).end == size
    assert dispatch(files, SMALL).end == 3 * size


def test_blank_without_a_next_file_does_not_count() -> None:
    messages = [Message(queue_offset=n) for n in range(40)]
    files = build_log(messages, 4096, stale_blank=True)
    assert list(files) == [0, 4096]
    assert len(dispatch(files, SMALL).records) == 40
    del files[4096]
    assert dispatch(files, SMALL).end == 38 * len(encode(Message(), 0))
