"""What Kafka holds after a mirror: each message once, in order, with its key, headers and time."""

from collections import Counter
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from kafka.partitioner.default import murmur2

from store.commitlog.record import NewMessage, make_properties
from store.commitlog.writer import CommitLogWriter
from store.config import load_config
from streaming.kafka.routes import Creation
from streaming.kafka.topic_rules import TopicRules, is_system_topic, make_rules
from streaming.queries.mirror_query import MirrorOptions
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.integration.mirror.mirroring import (
    FOR_EVER,
    append,
    expected,
    held,
    make_store,
    messages_of,
    mirror,
    options_for,
    record_of,
)
from tests.integration.servers.kafka import KafkaServer

GOLDEN = ("g1", "g2", "g4", "g4b")


def partitions(kafka: KafkaServer, names: set[str]) -> dict[str, int]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    found = {t["name"]: len(t["partitions"]) for t in admin.describe_topics()}
    admin.close()
    return {name: found[name] for name in names}


@pytest.mark.parametrize(
    "golden", [p for p in ARCHIVES if archive_name(p) in GOLDEN], indirect=True, ids=archive_name
)
@pytest.mark.parametrize("system", [False, True], ids=["default", "system"])
def test_a_brokers_store_message_by_message(
    kafka: KafkaServer, golden: Golden, system: bool
) -> None:
    name = f"{golden.name}-{system}"
    options = options_for(
        kafka.bootstrap, name, include_system=system, broker_version=golden.version
    )
    done = mirror(golden.store_root, options, max_bytes=100_000, chunk_bytes=50_000)
    messages = messages_of(golden.store_root, golden.config)
    wanted = [m for m in messages if system or not is_system_topic(m.topic)]
    assert len(wanted) > 0
    if golden.name.startswith("g4"):
        assert (len(wanted) < len(messages)) != system
    rules = options.rules
    names = {rules.kafka_name(m.topic) for m in wanted}
    counts = partitions(kafka, names)
    found = held(kafka.bootstrap, names)
    total = Counter(r for records in found.values() for r in records)
    assert total == Counter(record_of(m) for m in wanted)
    assert done.sink.counts.messages == len(wanted)
    assert done.sink.position.messages == len(wanted)
    for place, records in found.items():  # each partition in log order
        offsets = [int(dict(r.headers)["reput.commit_log_offset"]) for r in records]
        assert offsets == sorted(offsets), place
    queues = {(m.topic, m.queue_id) for m in wanted}
    if all(q < counts[rules.kafka_name(t)] for t, q in queues):
        assert found == expected(wanted, rules.kafka_name, counts)


def test_queues_have_partitions_of_their_own(kafka: KafkaServer, tmp_path: Path) -> None:
    config = make_store(tmp_path, 2_000)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"Orders":{"readQueueNums":2,"writeQueueNums":2,"perm":6},'
        '"%RETRY%g":{"readQueueNums":1,"writeQueueNums":1,"perm":6}}}'
    )
    mirror(tmp_path, options_for(kafka.bootstrap, "queues"), chunk_bytes=30_000)
    counts = {"queues.Orders": 2, "queues._RETRY_g": 1}
    assert partitions(kafka, set(counts)) == counts
    found = held(kafka.bootstrap, counts)
    messages = messages_of(tmp_path, config)
    assert found == expected(messages, TopicRules(prefix="queues.").kafka_name, counts)
    assert [len(r) for r in found.values()] == [667, 667, 666]


def test_fewer_partitions_than_queues_are_chosen_by_key(kafka: KafkaServer, tmp_path: Path) -> None:
    config = make_store(tmp_path, 300)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics(
        {"keyed.Orders": {"num_partitions": 3, "configs": FOR_EVER}}, wait_for_metadata=True
    )
    admin.close()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"Orders":{"readQueueNums":2,"writeQueueNums":2,"perm":6}}}'
    )
    mirror(tmp_path, options_for(kafka.bootstrap, "keyed"))
    found = held(kafka.bootstrap, ["keyed.Orders"])
    expected_by_key: dict[tuple[str, int], list[object]] = {place: [] for place in found}
    for message in messages_of(tmp_path, config):
        if message.topic == "Orders":
            record = record_of(message)
            assert record.key is not None
            number = (murmur2(record.key) & 0x7FFFFFFF) % 3
            expected_by_key["keyed.Orders", number].append(record)
    assert found == expected_by_key
    assert all(found.values())


def test_empty_bodies_and_messages_without_a_key(kafka: KafkaServer, tmp_path: Path) -> None:
    config = make_store(tmp_path, 3)
    with CommitLogWriter(tmp_path, config) as writer:
        writer.append(NewMessage("Orders", 0, b"\0"))
        writer.append(NewMessage("Orders", 1, b"x\0y", make_properties(keys="\0k", tags="t\0")))
    mirror(tmp_path, options_for(kafka.bootstrap, "empty"))
    found = held(kafka.bootstrap, ["empty.Orders", "empty._RETRY_g"])
    records = Counter(r for part in found.values() for r in part)
    assert records == Counter(map(record_of, messages_of(tmp_path, config)))
    assert sum(r.key is None for r in records) == 1


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_each_compression_is_read_back(
    kafka: KafkaServer, tmp_path: Path, compression: str
) -> None:
    config = make_store(tmp_path, 600)
    name = f"packed-{compression}"
    mirror(tmp_path, options_for(kafka.bootstrap, name, compression=compression))
    found = held(kafka.bootstrap, [f"{name}.Orders", f"{name}._RETRY_g"])
    records = Counter(r for part in found.values() for r in part)
    assert records == Counter(map(record_of, messages_of(tmp_path, config)))


def test_selection_and_names(kafka: KafkaServer, tmp_path: Path) -> None:
    config = make_store(tmp_path, 300)
    rules = make_rules(["%RETRY%g"], maps=["%RETRY%g=chosen"])
    options = MirrorOptions(
        kafka.bootstrap, rules=rules, creation=Creation(True, FOR_EVER), name="chosen"
    )
    done = mirror(tmp_path, options)
    messages = [m for m in messages_of(tmp_path, config) if m.topic == "%RETRY%g"]
    found = held(kafka.bootstrap, ["chosen"])
    assert found == {("chosen", 0): [record_of(m) for m in messages]}
    assert done.sink.position.commit_log_offset == done.log.max_offset()


def test_ranges_by_offset_and_time(kafka: KafkaServer, tmp_path: Path) -> None:
    config = make_store(tmp_path, 100)
    messages = messages_of(tmp_path, config)
    begin = messages[40].commit_log_offset
    mirror(tmp_path, options_for(kafka.bootstrap, "from", from_offset=begin))
    found = held(kafka.bootstrap, ["from.Orders", "from._RETRY_g"])
    assert sum(map(len, found.values())) == 60
    last = messages[-1].store_timestamp
    append(tmp_path, 50, 100)
    later = [m.store_timestamp for m in messages_of(tmp_path, config)[100:]]
    assert later[0] > last
    ended = mirror(tmp_path, options_for(kafka.bootstrap, "to", to_time=last))
    found = held(kafka.bootstrap, ["to.Orders", "to._RETRY_g"])
    assert sum(map(len, found.values())) == 100
    assert ended.until == ended.sink.position.commit_log_offset
    mirror(tmp_path, options_for(kafka.bootstrap, "since", from_time=later[0]))
    found = held(kafka.bootstrap, ["since.Orders", "since._RETRY_g"])
    assert sum(map(len, found.values())) == 50


def test_it_goes_on_where_it_was_and_batches_may_be_cut_anywhere(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    make_store(tmp_path, 500)
    options = options_for(kafka.bootstrap, "again", transaction_bytes=10_000)
    for n in range(4):
        mirror(tmp_path, options, max_bytes=7_000 + 1000 * n, chunk_bytes=3_000)
        append(tmp_path, 77, 500 + 77 * n)
    done = mirror(tmp_path, options)
    found = held(kafka.bootstrap, ["again.Orders", "again._RETRY_g"])
    messages = messages_of(tmp_path, load_config(tmp_path))
    assert len(messages) == 808
    assert done.sink.position.messages == 808
    assert Counter(r for p in found.values() for r in p) == Counter(map(record_of, messages))
