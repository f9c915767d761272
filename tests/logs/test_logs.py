"""The log generator: what it writes is read back, and it makes every kind it promises."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.logs.build import SCHEDULE_TOPIC, Batch, Message, build_log, flatten, write_log
from tests.logs.random_logs import Mix, key_with_hash, message_lists, random_messages
from tests.model.dispatch import Built, ModelConfig, dispatch
from tests.model.record import string_hash

FILE_SIZE = 8192
VERSIONS = [(4, 8, 0), (4, 9, 4), (5, 3, 3), (5, 5, 0)]


def config_of(version: tuple[int, ...]) -> ModelConfig:
    """Return a configuration under which little is needed for every file to roll."""
    return ModelConfig(
        commit_log_file_size=FILE_SIZE,
        consume_queue_file_size=400,
        consume_queue_ext_file_size=130,
        max_hash_slot_num=17,
        max_index_num=30,
        enable_consume_queue_ext=True,
        enable_multi_dispatch=True,
        enable_lmq=True,
        version=version,
    )


def assert_read_back(messages: list[Message | Batch], built: Built) -> None:
    """Compare records with the messages they were made from."""
    actual = [
        (r.queue_id, r.queue_offset, r.body, r.store_timestamp, r.born_host, r.flag)
        for r in built.records
    ]
    assert actual == [
        (m.queue_id, m.queue_offset, m.body, m.store_timestamp, (m.born_host, m.born_port), m.flag)
        for m in flatten(messages)
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_random_messages_are_read_back(version: tuple[int, ...]) -> None:
    reasons, queues, types, topics = set(), set(), set(), set()
    for seed in range(20):
        mix = Mix(version=version, malformed_topics=seed % 2 == 0)
        messages = random_messages(random.Random(seed), 60, mix)
        files = build_log(
            messages, FILE_SIZE, start=FILE_SIZE * (seed % 3), stale_blank=seed % 2 == 0
        )
        built = dispatch(files, config_of(version))
        assert_read_back(messages, built)
        reasons |= {drop.reason for drop in built.drops}
        queues |= {name.split("/")[0] for name in built.consume_queue}
        types |= {record.transaction_type for record in built.records}
        topics |= {record.topic for record in built.records}
    assert reasons == {"repeated", "gap", "restarted"}
    assert types == {0, 4, 8, 12}
    assert ("%LMQ%a" in queues) == (version >= (4, 9, 3))
    assert any(len(topic) > 127 for topic in topics) == (version >= (5, 1, 0))
    assert SCHEDULE_TOPIC in topics


@settings(max_examples=30, deadline=None)
@given(message_lists(max_size=15))
def test_drawn_messages_are_read_back(messages: list[Message | Batch]) -> None:
    files = build_log(messages, FILE_SIZE, prop_crc=True)
    assert_read_back(messages, dispatch(files, config_of((5, 3, 3))))


def test_same_seed_same_messages() -> None:
    assert random_messages(random.Random(3), 30) == random_messages(random.Random(3), 30)


def test_batch_stays_in_one_file() -> None:
    single, batch = Message(body=bytes(300)), [Message(body=bytes(300))] * 2
    files = build_log([single, batch, single], 1000)
    built = dispatch(files, ModelConfig(commit_log_file_size=1000))
    assert [record.commit_log_offset for record in built.records] == [0, 1000, 1400, 2000]


def test_message_that_fits_no_file_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        build_log([Message(body=bytes(1000))], 1000)


@pytest.mark.parametrize("wanted", [-(2**31), 2**31 - 1, 0, -1, 12345])
def test_key_with_hash(wanted: int) -> None:
    key = key_with_hash("主题", wanted)
    assert string_hash(f"主题#{key}") == wanted
    assert " " not in key


def test_write_log_writes_whole_files(tmp_path: Path) -> None:
    files = build_log([Message(queue_offset=n) for n in range(50)], 4096)
    write_log(files, tmp_path / "commitlog")
    written = {int(path.name): path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    assert written == files
