"""Random stores and queries: reads return the same as a scan of all units and records."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Boundary, Message, MessageStore
from store.config import BrokerVersion, StoreConfig
from store.errors import DamageError
from tests.logs.build import Batch, build_log, flatten, write_log
from tests.logs.build import Message as Sent
from tests.logs.random_logs import ODD_TEXTS, Mix, message_lists, random_messages
from tests.model.dispatch import Record
from tests.support.dispatching import dispatch_all, to_model_config
from tests.support.reads_scan import LogScan, Queue, is_lower, is_upper, keys_of

CONFIG = StoreConfig(
    mapped_file_size_commit_log=8192,
    mapped_file_size_consume_queue=200,
    mapped_file_size_consume_queue_ext=130,
    max_hash_slot_num=5,
    max_index_num=20,
    enable_multi_dispatch=True,
    enable_lmq=True,
)
CLOSING = Sent(topic="Closing", properties=[("TAGS", "last")])  # the log must not end with zeros
VERSIONS = ["4.9.4", "5.1.4", "5.3.3", "5.5.0"]
CONF = """
mappedFileSizeCommitLog=8192
mappedFileSizeConsumeQueue=200
mappedFileSizeConsumeQueueExt=130
maxHashSlotNum=5
maxIndexNum=20
enableMultiDispatch=true
enableLmq=true
"""
KINDS = st.tuples(
    st.sampled_from(VERSIONS),
    st.booleans(),  # ConsumeQueueExt
    st.booleans(),  # a broker's files, which have no progress
    st.integers(0, 2),  # how many files have expired
    st.booleans(),  # store times only rise
)
Kind = tuple[str, bool, bool, int, bool]


class Questions:
    """Queries one store, opened once, and compares the answers with the scan."""

    def __init__(self, s: MessageStore, scan: LogScan, random: Random) -> None:
        self.s, self.scan, self.random = s, scan, random
        self.queues = [*scan.queues, ("none", 0)]
        self.times = [r.store_timestamp for r in scan.records.values()] or [0]

    def ask_all(self) -> None:
        """Run some queries of each kind."""
        for queue in self.queues:
            self.ask_bounds(queue)
            for _ in range(6):
                self.ask_get(queue)
                self.ask_time(queue)
        for _ in range(25):
            self.ask_key()

    def ask_bounds(self, queue: Queue) -> None:
        q = self.scan.queues.get(queue)
        expected = (q.first, q.end) if q is not None and q.end else (0, 0)
        found = self.s.min_offset_in_queue(*queue), self.s.max_offset_in_queue(*queue)
        assert expected == found
        for n, record in enumerate(q.records if q is not None else [], expected[0]):
            assert record.store_timestamp == self.s.message_store_timestamp(*queue, n)

    def ask_get(self, queue: Queue) -> None:
        q = self.scan.queues.get(queue)
        end = q.end if q is not None else 0
        offset = self.random.randint(-1, end + 2)
        count = self.random.choice([0, 1, 2, 5, 32, 100])
        tags = self.random.choice(["*", "TagA", "TagA || TagB", "a b", "AaAa", "BBBB || x", "😀"])
        actual = self.s.get_message(*queue, offset, count, tags)
        expected = self.scan.get_message(queue, offset, count, tags)
        found = [m.commit_log_offset for m in actual.messages]
        assert expected == (actual.status, actual.next_begin_offset, found), (offset, count, tags)
        for message in actual.messages:
            assert_same(message, self.scan.records[message.commit_log_offset])

    def ask_time(self, queue: Queue) -> None:
        timestamp = self.random.choice(self.times) + self.random.choice([-1, 0, 0, 1, 10**9])
        lower, upper = (
            self.s.offset_in_queue_by_time(*queue, timestamp, boundary) for boundary in Boundary
        )
        q = self.scan.queues.get(queue)
        if q is None or q.end == 0:
            assert (lower, upper) == (0, 0)
            return
        assert is_lower(q.times(), timestamp, lower - q.first), (queue, timestamp, lower)
        assert is_upper(q.times(), timestamp, upper - q.first), (queue, timestamp, upper)

    def ask_key(self) -> None:
        random = self.random
        record = random.choice(list(self.scan.records.values()) or [None])
        topic = record.topic if record is not None else "none"
        keys = [*keys_of(record), "k1", "TagA"] if record is not None else ["k1"]
        odd = [text for text in ODD_TEXTS if isinstance(text, str)]
        key = random.choice([random.choice(keys), random.choice(odd)])
        is_tag = self.s.config.indexes_tags and random.random() < 0.3
        if is_tag and record is not None:
            key = record.properties.get("TAGS", key)
        span = (0, 2**63 - 1)
        if random.random() < 0.5:
            span = (random.choice(self.times), random.choice(self.times) + random.choice([0, 999]))
        count = random.choice([0, 1, 3, 64, 1000])
        expected = self.scan.query(topic, key, span, is_tag=is_tag)
        actual = self.s.query_message(topic, key, count, *span, "T" if is_tag else "K")
        place = (topic, key, span, count, is_tag)
        newest = expected[-count:] if count else []
        assert newest == [m.commit_log_offset for m in actual.messages], place
        assert actual.truncated == (len(expected) > count), place


def assert_same(message: Message, record: Record) -> None:
    """Compare a message with its record as the model parses it."""
    fields = ("topic", "queue_id", "queue_offset", "size", "sys_flag", "store_timestamp", "flag")
    fields = (*fields, "born_timestamp", "body_crc", "reconsume_times", "properties")
    assert [getattr(record, f) for f in fields] == [getattr(message, f) for f in fields]
    assert record.body == message.raw_body


def rise(messages: list[Sent | Batch]) -> list[Sent | Batch]:
    """Give the messages store times that never step back."""
    latest, risen = 0, []
    for message in flatten(messages):
        latest = max(latest, message.store_timestamp)
        risen.append(replace(message, store_timestamp=latest))
    return list(risen)


def check(directory: Path, messages: list[Sent | Batch], kind: Kind, random: Random) -> None:
    """Build a store of a kind from messages, and query it."""
    version, has_ext, is_brokers, expired, rises = kind
    config = replace(CONFIG, version=BrokerVersion.parse(version), enable_consume_queue_ext=has_ext)
    messages = [*messages, CLOSING]
    files = build_log(rise(messages) if rises else messages, config.mapped_file_size_commit_log)
    store_root, output = directory / "store", directory / "out"
    write_log(files, store_root / "commitlog")
    (store_root / "broker.conf").write_text(
        CONF + f"enableConsumeQueueExt={str(has_ext).lower()}\n"
    )
    with suppress(DamageError):  # a record that an earlier version does not know ends the log
        dispatch_all(store_root, output, config)
    bases = sorted(files)
    gone = bases[: min(expired, len(bases) - 1)]
    for base in gone:
        (store_root / "commitlog" / f"{base:020d}").unlink()
    if is_brokers and (output / "consumequeue").is_dir() and list((output / "index").iterdir()):
        shutil.rmtree(output / "reput")
    scan = LogScan(files, to_model_config(config), bases[len(gone)])
    with MessageStore.open(store_root, output, broker_version=version) as s:
        questions = Questions(s, scan, random)
        questions.ask_all()
        questions.ask_all()  # the second time from caches


@settings(max_examples=30, deadline=None)
@given(message_lists(max_size=30), KINDS, st.integers(0, 1 << 32))
def test_answers_equal_a_scan(messages: list[Sent | Batch], kind: Kind, seed: int) -> None:
    with TemporaryDirectory() as directory:
        check(Path(directory), messages, kind, Random(seed))


@pytest.mark.parametrize("seed", range(4))
def test_answers_on_longer_logs_equal_a_scan(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    kind = (VERSIONS[seed], seed == 1, seed == 2, seed % 2, seed != 3)
    check(tmp_path, random_messages(random, 600, Mix(queues_max=2)), kind, random)
