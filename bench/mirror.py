"""The mirror: messages a second to a real Kafka, and kafka-python's ``send`` beside it.

Both write the same messages with the same keys, headers and compression, in transactions, to
topics of eight partitions of one broker, which has the same cores. ``send`` is given what it needs
in lists that are made beforehand; the mirror reads and decodes its messages.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from bench.kafka import running_kafka
from bench.log import QUEUES
from store.commitlog.commit_log import CommitLog
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import load_config
from streaming.kafka.routes import Creation
from streaming.kafka.topic_rules import make_rules
from streaming.queries.dispatch_query import query_error
from streaming.queries.mirror_query import COMPRESSION, MirrorOptions, prepare_mirror
from streaming.spark.session import build_session

_SENT = 100_000
_BATCH_BYTES = 128 * 1024 * 1024


def run(store: Path, work: Path, bootstrap: str = "") -> dict[str, float]:
    """Return messages a second, to a Kafka that is started for it if none is named."""
    if not bootstrap:
        with running_kafka(work) as address:
            return run(store, work, address)
    figures = {"mirror: KafkaProducer.send, messages/s": _send(store, bootstrap)}
    figures["mirror: the sink alone, messages/s"] = _sink(store, bootstrap)
    figures |= _query(store, bootstrap)
    bare = figures["mirror: KafkaProducer.send, messages/s"]
    whole = figures["mirror: the query after its first batch, messages/s"]
    return figures | {"mirror: the query / KafkaProducer.send": whole / bare}


def _options(bootstrap: str, **more: Any) -> MirrorOptions:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    settings = {"retention.ms": "-1"}
    rules = make_rules(prefix=f"{name}.")
    return MirrorOptions(
        bootstrap, rules=rules, creation=Creation(True, settings), name=name, **more
    )


def _send(store: Path, bootstrap: str) -> float:
    """Write messages one by one, from lists that hold what ``send`` needs."""
    options = _options(bootstrap)
    prepared = prepare_mirror(store, options)  # makes no topic: nothing is written
    try:
        route = prepared.sink._link.router.route("BenchTopic", QUEUES - 1)
    finally:
        prepared.close()
    assert route is not None
    messages = _lists(store)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=options.name,
        compression_type=COMPRESSION,
        batch_size=512 * 1024,
        linger_ms=50,
    )
    try:
        producer.init_transactions()
        began = time.perf_counter()
        producer.begin_transaction()
        for value, key, headers, partition, stamp in messages:
            producer.send(route.kafka_topic, value, key, headers, partition, stamp)
        producer.commit_transaction()
        return len(messages) / (time.perf_counter() - began)
    finally:
        producer.close()


def _lists(store: Path) -> list[tuple[Any, ...]]:
    config = load_config(store)
    log = CommitLog(config.commit_log_paths(store), config)
    found, at = [], log.min_offset()
    for _ in range(_SENT):
        message = log.message(at)
        headers = [(n, v.encode()) for n, v in message.properties.items()]
        ours = message.topic, message.queue_id, message.queue_offset, message.commit_log_offset
        headers += [("reput.topic", str(value).encode()) for value in ours]
        headers += [("reput.born_timestamp", str(message.born_timestamp).encode())]
        headers += [("reput.born_host", message.born_host.encode())]
        key = (message.keys or "").partition(" ")[0].encode()
        found.append((message.body, key, headers, message.queue_id, message.store_timestamp))
        at += message.size
    return found


def _sink(store: Path, bootstrap: str) -> float:
    """Scan and mirror in this process, without Spark."""
    prepared = prepare_mirror(store, _options(bootstrap))
    try:
        planner, scanner = LogPlanner(prepared.log, lambda: True), Scanner(prepared.config)
        began = time.perf_counter()
        while True:
            at = prepared.sink.position.commit_log_offset
            plan = planner.plan(at, max_bytes=_BATCH_BYTES)
            if not plan.ranges:
                break
            prepared.sink.apply([s for part in plan.ranges for s in scanner.read(part)])
        return prepared.sink.counts.messages / (time.perf_counter() - began)
    finally:
        prepared.close()


def _query(store: Path, bootstrap: str) -> dict[str, float]:
    spark = build_session("bench", "local[2]")
    try:
        reports: list[int] = []
        options = _options(
            bootstrap, available_now=True, on_progress=lambda p: reports.append(p.messages)
        )
        began = time.perf_counter()
        running = prepare_mirror(store, options).start(spark)
        running.query.awaitTermination()
        seconds = time.perf_counter() - began
        error = query_error(running.query)
        if error is not None:
            raise error
        batches = [p for p in running.query.recentProgress if p.numInputRows]
        counts = running.sink.counts
        running.close()
    finally:
        spark.stop()
    after = sum(p.durationMs["triggerExecution"] for p in batches[1:]) / 1000
    return {
        "mirror: the query after its first batch, messages/s": (counts.messages - reports[0])
        / after,
        "mirror: the query, first batch included, messages/s": counts.messages / seconds,
        "mirror: seconds in the sink": counts.apply_seconds,
    }
