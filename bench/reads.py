"""Reads on one core: opening, batches by queue offset, lookups by time and by key; searches on all.

The stores are written and dispatched here, without a JVM: one of a queue of 10 M messages for the
times, of which only the log's files and that queue's are made, and one whose keys fill an index
file of 20 M entries. If a RocketMQ release is given, its own store answers the same calls on
the same files after ours; it writes to its OUTPUT, which is deleted afterwards.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.broker import Broker, BrokerFigure, Request
from bench.log import templates
from checkpoints.output import DispatchOutput
from store import MessageStore
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.bulk_writer import BulkWriter

OPEN_QUEUES = 1000
TIME_MESSAGES = 10_000_000
KEY_MESSAGES = 2_000_000
KEYS_PER_MESSAGE = 10
BATCH_BYTES = 256 * 1024 * 1024
ROUNDS = 3
FIELDS = (
    "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "commit_log_offset",
    "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times",
    "prepared_transaction_offset", "topic", "properties", "body", "born_host", "store_host",
    "tags", "keys", "uniq_key",
)  # fmt: skip


GET_PLAIN = "get_message of 32, no field touched: calls/s"
GET_TOUCHED = "get_message of 32, every field touched: calls/s"
TIME_MS = "time lookup: ms"
KEY_MS = "key lookup: ms"


def run(store: Path, work: Path, *, broker: Broker | None = None) -> dict[str, float]:
    """Return the figures, and give ``broker`` its own.

    The benchmark's own log serves for the batches.
    """
    shutil.rmtree(work, ignore_errors=True)
    try:
        figures = _open_many(work / "many")
        figures |= _get_messages(store, work / "batches", broker)
        figures |= _search(store)
        figures |= _find_times(work / "times", broker)
        figures |= _find_keys(work / "keys", broker)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return figures


def _open_many(work: Path) -> dict[str, float]:
    body = b"x" * 100
    many = [NewMessage(f"Topic{n // 8}", n % 8, body) for n in range(OPEN_QUEUES)]
    with BulkWriter(work / "store", StoreConfig()) as writer:
        writer.append_many(many, OPEN_QUEUES * 10)
    dispatch(work / "store", work / "out")
    opened = listed = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with MessageStore.open(work / "store", work / "out") as s:
            opened = min(opened, time.perf_counter() - began)
            for topic in s.topics():
                for queue_id in s.queue_ids(topic):
                    assert s.max_offset_in_queue(topic, queue_id) == 10
            listed = min(listed, time.perf_counter() - began)
    shutil.rmtree(work)
    return {
        "open a store of 1,000 queues: s": opened,
        "the same, and the end of each queue: s": listed,
    }


def _get_messages(store: Path, output: Path, broker: Broker | None) -> dict[str, float]:
    dispatch(store, output)
    topic = templates()[0].topic
    with MessageStore.open(store, output) as s:
        batches = s.max_offset_in_queue(topic, 0) // 32
        offsets = [n % batches * 32 for n in range(2000)]

        def touch(n: int) -> None:
            for message in s.get_message(topic, 0, offsets[n]).messages:
                for field in FIELDS:
                    getattr(message, field)

        plain = _seconds(lambda n: s.get_message(topic, 0, offsets[n]), len(offsets))
        touched = _seconds(touch, len(offsets) // 2)
    if broker is not None:
        shutil.copytree(store / "commitlog", output / "commitlog")  # the log is not its to write
        found = broker.measure(output, Request("get", topic, offsets))
        _check_answers(found, 32 * len(offsets))
        broker.figures[GET_PLAIN] = 1 / found["plain"].seconds
        broker.figures[GET_TOUCHED] = 1 / found["decoded"].seconds
    shutil.rmtree(output)
    return {GET_PLAIN: 1 / plain, GET_TOUCHED: 1 / touched}


def _search(store: Path) -> dict[str, float]:
    """Search for a key that no message has, so nothing is decoded, and for the newest message."""
    conditions = {
        "tag": MessageFilter(tags="None"),
        "key": MessageFilter(keys=frozenset({"none"})),
        "property": MessageFilter(properties={"none": "none"}),
        "body": MessageFilter(body="none [0-9]+"),
    }
    config = StoreConfig()
    log = CommitLog(config.commit_log_paths(store), config)
    ranges = LogPlanner(log, lambda: True).plan(log.min_offset()).ranges
    stretches = (stretch for part in ranges for stretch in Scanner(config).read(part))
    count = sum(len(s) for s in stretches if isinstance(s, DispatchRequests))
    figures = {}
    for name, wanted in conditions.items():
        seconds = _seconds(lambda _, f=wanted: list(LogSearch(store, config, f).messages()), 1)
        figures[f"search by {name}: messages/s"] = count / seconds
    everything = MessageFilter()
    seconds = _seconds(
        lambda _: next(LogSearch(store, config, everything).messages(newest_first=True)), 1
    )
    return {**figures, "search, newest message: s": seconds}


def _find_times(store_root: Path, broker: Broker | None) -> dict[str, float]:
    """Time lookups in one queue, whose messages were stored ten a millisecond."""
    config = replace(StoreConfig(), message_index_enable=False)
    written = 0

    def clock() -> int:
        return 1_700_000_000_000 + written // 10

    body = NewMessage("T", 0, b"x" * 10)
    with BulkWriter(store_root, config, clock=clock) as writer:
        while written < TIME_MESSAGES:
            writer.append_many([body], 1000, first=written)
            written += 1000
    dispatch(store_root, store_root, config)
    times = [1_700_000_000_000 + Random(n).randrange(TIME_MESSAGES // 10) for n in range(2000)]
    with MessageStore.open(store_root) as s:
        count = s.max_offset_in_queue("T", 0)
        answers = sum(s.offset_in_queue_by_time("T", 0, at) for at in times)
        seconds = _seconds(lambda n: s.offset_in_queue_by_time("T", 0, times[n]), len(times))
    if broker is not None:
        found = broker.measure(store_root, Request("time", "T", times))
        _check_answers(found, answers)
        broker.figures[TIME_MS] = found["plain"].seconds * 1000
    shutil.rmtree(store_root)
    return {"time lookup: messages in the queue": count, TIME_MS: seconds * 1000}


def _find_keys(store_root: Path, broker: Broker | None) -> dict[str, float]:
    keys = " ".join(f"key{n}-########" for n in range(KEYS_PER_MESSAGE))
    template = NewMessage("K", 0, b"x" * 10, make_properties(keys=keys))
    with BulkWriter(store_root, StoreConfig()) as writer:
        writer.append_many([template], KEY_MESSAGES)
    dispatch(store_root, store_root)
    random = Random(1)
    asked = [
        f"key{random.randrange(KEYS_PER_MESSAGE)}-{random.randrange(KEY_MESSAGES):08d}"
        for _ in range(2000)
    ]
    with MessageStore.open(store_root) as s:
        assert all(len(s.query_message("K", key).messages) == 1 for key in asked[:100])
        seconds = _seconds(lambda n: s.query_message("K", asked[n]), len(asked))
    if broker is not None:
        found = broker.measure(store_root, Request("key", "K", asked))
        broker.figures[KEY_MS] = found["decoded"].seconds * 1000
    shutil.rmtree(store_root)
    return {"key lookup: index entries": KEY_MESSAGES * KEYS_PER_MESSAGE, KEY_MS: seconds * 1000}


def _check_answers(found: dict[str, BrokerFigure], expected: int) -> None:
    """Stop if the broker's store answered otherwise: then it did not do the same."""
    answers = {figure.answers for figure in found.values()}
    if answers != {expected}:
        raise RuntimeError(f"RocketMQ's store answered {answers}, here it is {expected}")


def dispatch(store: Path, output: Path, config: StoreConfig | None = None) -> None:
    """Dispatch a log as the streaming query does, in this process."""
    config = config or StoreConfig()
    owned = DispatchOutput.open(output, store, config)
    sink, scanner = DispatchSink(owned, config), Scanner(config)
    planner = LogPlanner(owned.log, lambda: True)
    try:
        while True:
            at = owned.progress.reput_from_offset
            plan = planner.plan(at, max_bytes=BATCH_BYTES)
            if not plan.ranges:
                return
            sink.apply([stretch for part in plan.ranges for stretch in scanner.read(part)])
    finally:
        sink.close()


def _seconds(call: Callable[[int], object], count: int) -> float:
    """Return what a call takes, the best of some rounds; the first one warms pages up."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for n in range(count):
            call(n)
        best = min(best, (time.perf_counter() - began) / count)
    return best
