"""The product against the executable model on random logs, and kernels against their twins."""

import tempfile
import zlib
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from checkpoints.progress import Progress
from store import java
from store.config import BrokerVersion, StoreConfig
from store.crc32 import crc32
from store.java_kernels import decode_one, hash_utf8, index_key_hash, parse_int
from tests import model_record
from tests.dispatching import (
    Content,
    assert_same_content,
    built_tree,
    content_of,
    dispatch_all,
    to_model_config,
)
from tests.logs import Batch, Message, build_log, write_log
from tests.logs_random import Mix, random_messages
from tests.model import Built, dispatch

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
    """Return a configuration under which a short log rolls every kind of file."""
    values: dict[str, int | bool] = {
        "mapped_file_size_commit_log": FILE_SIZE,
        "mapped_file_size_consume_queue": 400,
        "max_hash_slot_num": 17,
        "max_index_num": 30,
        **VARIANTS[variant],
    }
    return StoreConfig(version=BrokerVersion.parse(version), **values)  # type: ignore[arg-type]


def model_tree(built: Built) -> dict[str, Content]:
    """Name what the model built as `built_tree` names what the product built."""
    queues = {f"consumequeue/{n}": content_of(c) for n, c in built.consume_queue.items()}
    ext = {f"consumequeue_ext/{n}": content_of(c) for n, c in built.consume_queue_ext.items()}
    index = {}
    for n, file in enumerate(built.index_files):
        pages = {page: bytes(data) for page, data in file.pages.items() if any(data)}
        index[f"index/{n}"] = Content(file.size, pages)
    return queues | ext | index


def counted_drops(built: Built) -> dict[str, dict[str, int]]:
    """Count the model's drops as progress counts them."""
    counts = Counter((f"{d.topic}/{d.queue_id}", d.reason) for d in built.drops)
    queues = {queue for queue, reason in counts if reason in ("repeated", "gap")}
    return {
        queue: {"repeated": counts[queue, "repeated"], "gaps": counts[queue, "gap"]}
        for queue in queues
    }


def assert_same_opinion(
    messages: list[Message | Batch], config: StoreConfig, random: Random
) -> tuple[Built, Progress]:
    """Dispatch a log with the product, cut at random, and with the model."""
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
    return built, progress


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", VERSIONS)
def test_random_logs_are_dispatched_as_the_model_says(version: str, variant: str) -> None:
    config, reasons = config_of(version, variant), set()
    count = 30 if variant == "tiny index" else 70
    for seed in range(2):
        random = Random(f"{version} {variant} {seed}")
        mix = Mix(version=tuple(config.version), malformed_topics=seed % 2 == 0)
        messages = random_messages(random, count, mix)
        built, _ = assert_same_opinion(messages, config, random)
        reasons |= {drop.reason for drop in built.drops}
    assert variant != "plain" or reasons >= {"repeated", "gap"}


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


def test_property_crcs_are_checked_and_kept_out_of_nothing() -> None:
    config = StoreConfig(
        mapped_file_size_commit_log=FILE_SIZE, max_hash_slot_num=7, enabled_append_prop_crc=True
    )
    random = Random(5)
    assert_same_opinion(random_messages(random, 100, Mix()), config, random)


# --- Kernels and their plain twins --------------------------------------------------------------


def array(data: bytes) -> NDArray[np.uint8]:
    """Return bytes as a kernel takes them."""
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


def test_a_hash_goes_on_from_where_the_last_one_ended() -> None:
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


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 20), st.integers(0, 20))
def test_crc_is_that_of_zlib(data: bytes, skipped: int, left: int) -> None:
    begin = min(skipped, len(data))
    end = max(begin, len(data) - left)
    assert zlib.crc32(data[begin:end]) == crc32(array(data), begin, end)
