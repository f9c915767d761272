"""Messages beyond the limits of a topic or of the client, and the rule for them."""

import random
from dataclasses import dataclass, field

import pytest

from store.errors import ConfigError
from streaming.kafka.oversized import (
    BATCH_HEADER_SIZE,
    DIVERT,
    REQUEST_OVERHEAD,
    OversizedMessage,
    OversizedRule,
    SizeCheck,
    parse_rule,
)
from streaming.kafka.records import BY_KEY, Record

NOISE = random.Random(2).randbytes(500_000)
PATH = "/log/00000000000000000000"


@dataclass
class Targets:
    """The limits that a router knows."""

    message_bytes_max: dict[str, int] = field(
        default_factory=lambda: {"t": 300_000, "large": 400_000}
    )
    partitions: dict[str, int] = field(default_factory=lambda: {"t": 8, "large": 3})


def check(
    rule: str = "fail", codec: str = "zstd", request_bytes_max: int = 1_048_576
) -> tuple[SizeCheck, list[OversizedMessage]]:
    reported: list[OversizedMessage] = []
    sizes = SizeCheck(Targets(), parse_rule(rule), codec, request_bytes_max, reported.append)  # type: ignore[arg-type]
    return sizes, reported


def record(size: int, *, body: bytes = NOISE, offset: int = 17, partition: int = 5) -> Record:
    return Record("t", body[:size], b"k", partition, 1, [("a", b"b")], offset)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fail", OversizedRule("fail")),
        ("skip", OversizedRule("skip")),
        ("topic:large", OversizedRule(DIVERT, "large")),
    ],
)
def test_rules(text: str, rule: OversizedRule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize("text", ["", "FAIL", "drop", "topic", "topic:", "topic:a b", "topic:.."])
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--oversized"):
        parse_rule(text)


def test_a_record_within_the_limit_is_sent_as_it_is() -> None:
    sizes, reported = check()
    for size in (0, 10_000, 299_000):
        sent = record(size)
        assert sizes.fit(sent, PATH) is sent
    assert reported == []


def test_what_compression_makes_small_enough_is_sent_as_it_is() -> None:
    for codec in ("zstd", "gzip", "lz4", "snappy"):
        sizes, _ = check("skip", codec)
        sent = record(400_000, body=bytes(400_000))
        assert sizes.fit(sent, PATH) is sent
    sizes, _ = check("skip", "none")
    assert sizes.fit(record(400_000, body=bytes(400_000)), PATH) is None


@pytest.mark.parametrize(
    ("request_bytes_max", "setting"),
    [
        (1_048_576, "max.message.bytes of the topic is 300000"),
        (250_000, "max.request.size of the client is 250000"),
    ],
)
def test_an_error_names_the_message_and_the_limit(request_bytes_max: int, setting: str) -> None:
    sizes, _ = check(request_bytes_max=request_bytes_max)
    size = 299_950 if request_bytes_max == 1_048_576 else 249_000
    with pytest.raises(ConfigError) as raised:
        sizes.fit(record(size), PATH)
    said = str(raised.value)
    assert said.startswith(f"the message at offset 17 of {PATH} is too large for topic t: it takes")
    assert said.endswith(f" before compression), {setting}")


def test_a_skipped_message_is_reported_once() -> None:
    sizes, reported = check("skip")
    assert [sizes.fit(record(310_000), PATH) for _ in range(2)] == [None, None]
    (message,) = reported
    assert (message.commit_log_offset, message.path, message.sent_to) == (17, PATH, "")
    assert "max.message.bytes of the topic is 300000" in message.reason


@pytest.mark.parametrize(("partition", "expected"), [(5, 2), (1, 1), (BY_KEY, BY_KEY)])
def test_a_diverted_message_keeps_all_but_its_topic(partition: int, expected: int) -> None:
    sizes, reported = check("topic:large")
    sent = record(310_000, partition=partition)
    assert sizes.fit(sent, PATH) == sent._replace(topic="large", partition=expected)
    assert [message.sent_to for message in reported] == ["large"]


def test_a_message_that_is_too_large_for_the_other_topic_too_fails() -> None:
    sizes, reported = check("topic:large")
    with pytest.raises(ConfigError, match=r"for topic large too: it takes .* topic is 400000"):
        sizes.fit(record(450_000), PATH)
    assert reported == []


def test_a_refused_message_is_set_aside_if_it_may_be_the_one_that_is_too_large() -> None:
    sizes, reported = check("skip")
    sent = record(299_000)
    assert sizes.fit(sent, PATH) is sent
    assert not sizes.set_aside("t", 17, 1_000)  # its batch was too large, not the message
    assert not sizes.set_aside("t", -1, 299_000)
    assert sizes.set_aside("t", 17, 299_000)
    assert not sizes.set_aside("t", 17, 299_000)
    assert sizes.fit(sent, PATH) is None
    assert len(reported) == 1


def test_a_refused_message_ends_the_mirror_by_default() -> None:
    sizes, _ = check()
    sizes.fit(record(299_000), PATH)
    assert not sizes.set_aside("t", 17, 299_000)


def test_batches_fit_the_smallest_limit() -> None:
    sizes, _ = check()
    assert sizes.batch_bytes(100_000) == 100_000
    assert sizes.batch_bytes(524_288) == 300_000 - BATCH_HEADER_SIZE
    sizes, _ = check(request_bytes_max=20_000)
    assert sizes.batch_bytes(524_288) == 20_000 - REQUEST_OVERHEAD - BATCH_HEADER_SIZE
