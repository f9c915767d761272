"""Mirror without Spark, read back what Kafka holds, and say what it should hold.

What is expected is decoded message by message with ``store.commitlog.commit_log``; the mirror
decodes whole columns with kernels.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.message import Message
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig, config_from, load_config
from store.layout import SYS_COMMIT, SYS_TRANSACTION
from streaming.kafka.routes import Creation
from streaming.kafka.topic_rules import make_rules
from streaming.queries.mirror_query import MirrorOptions, PreparedMirror, prepare_mirror
from tests.support.bulk_writer import numbered

CONF = {
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "97",
    "maxIndexNum": "9000",
}
FOR_EVER = {"retention.ms": "-1"}  # a store's messages may be older than Kafka keeps any
TEMPLATES = [
    NewMessage("Orders", 0, b"order ########", make_properties(uniq_key="U########", keys="o## x")),
    NewMessage("Orders", 1, b"body ########", make_properties(uniq_key="V########", tags="TagA")),
    NewMessage("%RETRY%g", 0, b"again ########", make_properties(keys="r########")),
]


@dataclass(frozen=True)
class Record:
    """What Kafka holds of a message; its place follows from where it was read."""

    key: bytes | None
    value: bytes
    timestamp: int
    headers: tuple[tuple[str, bytes], ...]


MARKERS_SECONDS = 5.0
Held = dict[tuple[str, int], list[Record]]


def make_store(store_root: Path, count: int) -> StoreConfig:
    """Write a cleanly closed log of ``count`` messages with the broker.conf that fits it."""
    config = config_from(CONF, version=load_config(Path("none")).version, origin="test")
    store_root.mkdir(parents=True, exist_ok=True)
    (store_root / "broker.conf").write_text("".join(f"{k}={v}\n" for k, v in CONF.items()))
    append(store_root, count)
    return config


def append(store_root: Path, count: int, first: int = 0) -> None:
    """Append numbered messages to a store's log."""
    with CommitLogWriter(store_root, load_config(store_root)) as writer:
        for n in range(first, first + count):
            writer.append(numbered(TEMPLATES[n % len(TEMPLATES)], n))


def options_for(bootstrap: str, name: str, **more: Any) -> MirrorOptions:
    """Return options that make topics under a prefix of the mirror's own."""
    rules = make_rules(prefix=f"{name}.", include_system=more.pop("include_system", False))
    return MirrorOptions(
        bootstrap, rules=rules, creation=Creation(True, FOR_EVER), name=name, **more
    )


def run_here(
    prepared: PreparedMirror,
    *,
    max_bytes: int = UNLIMITED,
    chunk_bytes: int = 4 << 20,
    after_batch: Callable[[], None] = lambda: None,
) -> None:
    """Do what the query does until the log ends: plan, scan, apply."""
    skip = not prepared.options.fail_on_data_loss
    is_clean = not (prepared.store_root / "abort").exists()
    planner = LogPlanner(prepared.log, lambda: is_clean)
    scanner = Scanner(prepared.config, chunk_bytes)
    at = prepared.begin
    while True:
        plan = planner.plan(at, max_bytes=max_bytes, until=prepared.until)
        if not plan.ranges:
            return
        prepared.sink.apply(
            [s for part in plan.ranges for s in scanner.read(part, skip_damage=skip)]
        )
        at = plan.end
        after_batch()


def mirror(store: Path, options: MirrorOptions, **how: Any) -> PreparedMirror:
    """Mirror what is there."""
    prepared = prepare_mirror(store, options)
    try:
        run_here(prepared, **how)
    finally:
        prepared.close()
    return prepared


def held(
    bootstrap: str, topics: Iterable[str], isolation: str = "read_committed", **more: Any
) -> Held:
    """Read all that Kafka holds of some topics, by topic and partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=isolation,
        max_poll_records=5000,
        **more,
    )
    try:
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        found: Held = {(p.topic, p.partition): [] for p in partitions}
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = settled_ends(consumer, partitions, {"bootstrap_servers": bootstrap, **more})
        deadline = time.monotonic() + 120
        while any(consumer.position(p) < ends[p] for p in partitions):
            assert time.monotonic() < deadline, "Kafka's topics could not be read to their end"
            for partition, records in consumer.poll(timeout_ms=500).items():
                found[partition.topic, partition.partition] += [
                    Record(r.key, r.value, r.timestamp, tuple(r.headers)) for r in records
                ]
        return found
    finally:
        consumer.close()


def settled_ends(
    consumer: KafkaConsumer, partitions: list[TopicPartition], client: dict[str, Any]
) -> dict[TopicPartition, int]:
    """Return where partitions end for a consumer, as soon as that is where they end for all.

    Kafka marks what a transaction wrote as committed a moment after it says so. Where one is left
    open that does not come: then the ends after some seconds.
    """
    deadline = time.monotonic() + MARKERS_SECONDS
    other = KafkaConsumer(group_id=None, **client)
    try:
        while True:
            written, ends = other.end_offsets(partitions), consumer.end_offsets(partitions)
            if ends == written or time.monotonic() > deadline:
                return dict(ends)
            time.sleep(0.05)
    finally:
        other.close()


def messages_of(store: Path, config: StoreConfig) -> list[Message]:
    """Return all messages that are in a queue, in log order, each decoded alone."""
    log = CommitLog(config.commit_log_paths(store), config)
    planner = LogPlanner(log, lambda: True)
    begin = max(log.min_offset(), 0)
    found = []
    for part in planner.plan(begin).ranges:
        for stretch in Scanner(config).read(part):
            assert isinstance(stretch, DispatchRequests)
            found += [log.message(o) for o in stretch.commit_log_offset.tolist()]
    return [m for m in found if m.sys_flag & SYS_TRANSACTION in (0, SYS_COMMIT)]


def record_of(message: Message) -> Record:
    """Say what Kafka is to hold of a message."""
    keys = [k for k in (message.keys or "").split(" ") if k]
    key = keys[0] if keys else message.uniq_key
    ours = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
    }
    headers = [(name, value.encode()) for name, value in message.properties.items()]
    headers += [(f"reput.{name}", str(value).encode()) for name, value in ours.items()]
    return Record(
        key.encode() if key is not None else None,
        message.body,
        message.store_timestamp,
        tuple(headers),
    )


def expected(
    messages: Iterable[Message], kafka_name: Callable[[str], str], partitions: dict[str, int]
) -> Held:
    """Say what Kafka is to hold where each queue has a partition of its own."""
    by_place: Held = {(t, p): [] for t, count in partitions.items() for p in range(count)}
    for message in messages:
        by_place[kafka_name(message.topic), message.queue_id].append(record_of(message))
    return by_place
