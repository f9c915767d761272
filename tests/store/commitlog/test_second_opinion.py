"""The product against the executable model on random logs, and kernels against their twins."""

import itertools
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from store import java
from store.config import BrokerVersion, StoreConfig
from store.consumequeue import names as queue_name
from store.kernels.crc32 import crc32, crc32_by_tables
from store.kernels.java import decode_one, hash_utf8, index_key_hash, is_blank, parse_int
from store.kernels.topic import can_name_directory
from tests.logs.build import Batch, Message, build_log, write_log
from tests.logs.random_logs import Mix, random_messages
from tests.model import record as model_record
from tests.model.dispatch import Built, dispatch
from tests.model.tree import model_tree
from tests.support.cases import first_cases
from tests.support.dispatching import (
    assert_same_content,
    built_tree,
    dispatch_all,
    to_model_config,
)

FILE_SIZE = 8192
VERSIONS = ["4.7.0", "4.8.0", "4.9.4", "5.1.1", "5.1.4", "5.3.3", "5.5.0"]
VARIANTS: dict[str, dict[str, int | bool]] = {
    "plain": {},
    "no index": {"message_index_enable": False},
    "tiny index": {"max_hash_slot_num": 1, "max_index_num": 2},
    "small index": {"max_hash_slot_num": 3, "max_index_num": 7},
    "tiny queue files": {"mapped_file_size_consume_queue": 20},
    "ext": {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 130},
    "tiny ext": {
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 24,
        "mapped_file_size_consume_queue": 40,
    },
    "multi": {"enable_multi_dispatch": True},
    "lmq and ext": {
        "enable_multi_dispatch": True,
        "enable_lmq": True,
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 64,
    },
    "lmq": {"enable_multi_dispatch": True, "enable_lmq": True},
}


def config_of(version: str, variant: str) -> StoreConfig:
    """Return settings that make a short log roll every kind of file."""
    values: dict[str, int | bool] = {
        "mapped_file_size_commit_log": FILE_SIZE,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 17,
        "max_index_num": 30,
        **VARIANTS[variant],
    }
    return StoreConfig(version=BrokerVersion.parse(version), **values)  # type: ignore[arg-type]


def counted_drops(built: Built) -> dict[str, dict[str, int]]:
    """Count the model's drops as progress counts them."""
    counts = Counter((f"{d.topic}/{d.queue_id}", d.reason) for d in built.drops)
    queues = {queue for queue, reason in counts if reason in ("repeated", "gap")}
    return {
        queue: {"repeated": counts[queue, "repeated"], "gaps": counts[queue, "gap"]}
        for queue in queues
    }


def assert_same_opinion(
    messages: Sequence[Message | Batch], config: StoreConfig, random: Random
) -> None:
    """Dispatch a log with the product, in random batches, and with the model."""
    closing = Message(topic="Closing", properties=[("TAGS", "last")])
    files = build_log(
        [*messages, closing],
        FILE_SIZE,
        start=FILE_SIZE * random.randrange(3),
        stale_blank=config.version < (4, 9, 1),
        prop_crc=config.enabled_append_prop_crc,
    )
    built = dispatch(files, to_model_config(config))
    with tempfile.TemporaryDirectory() as directory:
        store, output = Path(directory, "store"), Path(directory, "output")
        write_log(files, store / "commitlog")
        progress = dispatch_all(
            store,
            output,
            config,
            max_bytes=random.choice([1, 3000, 100_000]),
            range_bytes=random.choice([1, 1000, 100_000]),
            chunk_bytes=random.choice([1, 500, 100_000]),
            cuts=[random.randint(1, 20) for _ in range(random.randrange(5))],
            reopen=random.random() < 0.3,
        )
        assert_same_content(built_tree(output), model_tree(built))
    assert built.end == progress.reput_from_offset
    assert len(built.records) == progress.messages
    assert counted_drops(built) == progress.drops


@pytest.mark.parametrize(
    ("version", "variant"),
    first_cases(
        sorted(
            itertools.product(VERSIONS, VARIANTS),
            key=lambda c: (VERSIONS.index(c[0]) - list(VARIANTS).index(c[1])) % len(VERSIONS) > 0,
        ),
        len(VARIANTS),  # each version and each variant
    ),
)
def test_random_logs_are_dispatched_as_the_model_says(version: str, variant: str) -> None:
    config = config_of(version, variant)
    count = 30 if variant == "tiny index" else 100
    random = Random(f"{version} {variant}")
    mix = Mix(version=tuple(config.version), malformed_topics=random.random() < 0.5)
    assert_same_opinion(random_messages(random, count, mix), config, random)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(VERSIONS),
    st.sampled_from(list(VARIANTS)),
    st.randoms(use_true_random=False),
    st.integers(0, 25),
)
def test_drawn_logs_are_dispatched_as_the_model_says(
    version: str, variant: str, random: Random, count: int
) -> None:
    config = config_of(version, variant)
    messages = random_messages(random, count, Mix(version=tuple(config.version)))
    assert_same_opinion(messages, config, random)


@pytest.mark.parametrize("version", ["4.9.4", "5.1.1", "5.3.3"])
def test_odd_multi_dispatch_names_and_offsets(version: str) -> None:
    pairs = [
        ("%LMQ%a/b,%LMQ%c", "0,0"),  # with slashes: directories up to 5.1.1, skipped since
        ("%LMQ%c,%LMQ%c,,", "1,1"),
        (",,", ","),
        ("\u3000\u2003", "0"),
        ("\u00a0", "0"),
        ("%LMQ%d", "\u2028 \t"),
        ("%LMQ%d", "٣"),
    ]
    messages = [
        Message(
            queue_offset=n,
            properties=[("INNER_MULTI_DISPATCH", names), ("INNER_MULTI_QUEUE_OFFSET", offsets)],
        )
        for n, (names, offsets) in enumerate(pairs)
    ]
    assert_same_opinion(messages, config_of(version, "lmq"), Random(1))


def test_index_time_difference_wraps_as_in_java() -> None:
    times = [2**62, -(2**62) - 1, 5, -(2**63), 1_700_000_000_000]
    messages = [
        Message(queue_offset=n, store_timestamp=time, properties=[("KEYS", f"k{n}")])
        for n, time in enumerate(times)
    ]
    assert_same_opinion(messages, config_of("5.3.3", "plain"), Random(1))


def test_property_crcs_are_checked_and_kept_out_of_nothing() -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=7, enabled_append_prop_crc=True
    )
    random = Random(5)
    assert_same_opinion(random_messages(random, 100, Mix()), config, random)


# --- Kernels and their plain twins --------------------------------------------------------------


def array(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as a kernel's argument."""
    return np.frombuffer(data, np.uint8)


def kernel_decode(data: bytes) -> str:
    """Decode with the kernel, one code point after the other."""
    text, at = "", 0
    buf = array(data)
    while at < len(data):
        point, at = (data[at], at + 1) if data[at] < 0x80 else decode_one(buf, at, len(data))
        text += chr(point)
    return text


def assert_decoded_alike(data: bytes) -> None:
    """Compare decoding and hash of kernel, plain twin and model."""
    text = java.decode(data)
    assert model_record.decode_utf8(data) == text == kernel_decode(data)
    code = np.uint32(hash_utf8(array(data), 0, len(data), np.uint32(0)))
    assert model_record.string_hash(text) == java.hash_code(text) == code.astype(np.int32)
    assert model_record.index_hash(text) == index_key_hash(code)


UTF8_PIECES = st.one_of(
    st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=4),
    st.sampled_from([b"\xed\xa0\x80", b"\xed\xbf", b"\xe0\x9f\xbf", b"\xf4\x90\x80\x80", b"\xc1"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(UTF8_PIECES, max_size=6).map(b"".join))
@example(b"polygenelubricants")
@example("标签😀".encode())
def test_any_bytes_decode_and_hash_as_javas_strings(data: bytes) -> None:
    assert_decoded_alike(data)


def test_every_kind_of_malformed_sequence_decodes_as_in_java() -> None:
    edges = [0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    for lead in range(0x80, 0x100):
        for second in edges:
            for third in (0x41, 0x80, 0xBF, 0xC2):
                assert_decoded_alike(bytes([lead, second, third, 0x80, 0x42]))
            assert_decoded_alike(bytes([lead, second]))


def test_a_hash_continues_from_the_previous_one() -> None:
    begun = hash_utf8(array(b"TopicTest#"), 0, 10, np.uint32(0))
    code = np.uint32(hash_utf8(array(b"..k1."), 2, 4, np.uint32(begun)))
    assert java.hash_code("TopicTest#k1") == code.astype(np.int32)


INTEGERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.sampled_from([2**15, 2**31, 2**63, -(2**15), -(2**31), -(2**63)]).flatmap(
        lambda n: st.integers(n - 2, n + 2).map(str)
    ),
    st.text("0123456789+- ٣९x", max_size=8),
    st.text("0", max_size=40).map(lambda zeros: f"+{zeros}7"),
)


@settings(max_examples=300, deadline=None)
@given(INTEGERS)
@example("")
@example("-")
@example("٣")
@example("-٩२")
@example("𝟗")
def test_integers_parse_as_in_java(text: str) -> None:
    data = array(b"<" + text.encode() + b">")
    for bits in (16, 32, 64):
        expected = model_record.parse_integer(text, bits)
        assert expected == java.parse_int(text, bits=bits)
        fine, value = parse_int(data, 1, len(data) - 1, 2 ** (bits - 1) - 1)
        assert (expected is not None, expected or 0) == (fine, value)


NAMES = st.text(st.sampled_from(["/", ".", "\0", "a", "é", "😀"]), max_size=6).map(str.encode)


@settings(max_examples=300, deadline=None)
@given(st.one_of(NAMES, st.binary(max_size=8)))
@example(b"a" * 255)
@example(b"a" * 256)
@example("é".encode() * 127 + b"\xff")
@example(b"\xff" * 85)
@example(b"\xff" * 86)
def test_which_topics_can_name_a_directory(name: bytes) -> None:
    expected = queue_name.can_name_directory(java.decode(name))
    assert expected == can_name_directory(array(name), 0, len(name))


def test_whitespace_is_javas() -> None:
    chars = [chr(c) for c in range(0x10000) if not 0xD800 <= c < 0xE000]
    expected = [c for c in chars if model_record.is_blank(c)]
    actual = [c for c in chars if is_blank(array(c.encode()), 0, len(c.encode()))]
    assert expected == actual


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 20), st.integers(0, 20))
@pytest.mark.parametrize("crc", [crc32, crc32_by_tables])
def test_crc_equals_zlibs(
    crc: Callable[[NDArray[np.uint8], int, int], int], data: bytes, skipped: int, left: int
) -> None:
    begin = min(skipped, len(data))
    end = max(begin, len(data) - left)
    assert zlib.crc32(data[begin:end]) == crc(array(data), begin, end)
