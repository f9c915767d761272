"""The sink of the mirror, against a producer that records what it is given."""

import threading
from pathlib import Path
from typing import Any

import pytest

from store.arrow.batches import BodyLimits
from store.commitlog.scanner import Damage, Stretch
from store.errors import DamageError, KafkaIOError
from streaming.kafka.mirror_sink import MirrorLink, MirrorSettings, MirrorSink, MirrorStart
from streaming.kafka.position import Position, decode_position
from streaming.kafka.records import Record, RecordReader, Route
from tests.logs.walking import by_walk, log_of
from tests.support.verify_stores import CONFIG, messages, write_store


class Kafka:
    """A cluster and its producers: what was committed, and commits that are to fail."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.position = Position(0)
        self.failures: list[bool] = []  # of the next commits: whether each takes effect

    def connect(self) -> tuple[Any, Position]:
        return Producer(self), self.position


class Producer:
    batch_bytes, seconds_open, timeout_seconds = 1, 0.0, 60.0

    def __init__(self, kafka: Kafka) -> None:
        self._kafka, self.is_open = kafka, False
        self._offsets: list[int] = []

    def begin(self) -> None:
        self.is_open = True

    def send(self, record: Record) -> None:
        self._offsets.append(record.commit_log_offset)

    def send_position(self, _topic: str, _key: bytes, value: bytes) -> None:
        self._position = decode_position(value, "name")

    def commit(self) -> None:
        failure = self._kafka.failures.pop(0) if self._kafka.failures else None
        if failure is not False:
            self._kafka.offsets += self._offsets
            self._kafka.position = self._position
        self.is_open, self._offsets = False, []
        if failure is not None:
            raise KafkaIOError("commit", "no answer")

    def flush(self) -> None:
        pass

    abort = close = flush


class Topics:
    """A router and a size check that accept everything."""

    def route(self, _topic: str, _queue_id: int) -> Route:
        return Route("t", 4)

    def fit(self, record: Record, _path: str) -> Record:
        return record

    def batch_bytes(self, _size: int) -> int:
        return 1

    def close(self) -> None:
        pass


def sink_of(store_root: Path, kafka: Kafka, transaction_bytes: int) -> MirrorSink:
    topics: Any = Topics()
    reader = RecordReader(CONFIG, BodyLimits())
    link = MirrorLink(kafka.connect, topics, reader, topics, threading.Event())
    settings = MirrorSettings("name", "positions", 1, transaction_bytes, True, 60.0, lambda: True)
    start = MirrorStart(*kafka.connect(), kafka.position)
    return MirrorSink(log_of(store_root, CONFIG)[0], link, settings, start)


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    return write_store(tmp_path, messages(60))


def parts_of(store_root: Path) -> tuple[list[Stretch], list[int]]:
    requests, _ = by_walk(store_root, CONFIG, 0)
    return [*requests], [int(o) for r in requests for o in r.commit_log_offset]


@pytest.mark.parametrize("failures", [[], [False], [True], [False, True]])
@pytest.mark.parametrize("transaction_bytes", [1, 5_000, 1 << 20])
def test_the_parts_of_a_batch_are_mirrored_once_despite_outages(
    store_root: Path, transaction_bytes: int, failures: list[bool]
) -> None:
    kafka, (parts, offsets) = Kafka(), parts_of(store_root)
    kafka.failures = [*failures]
    sink = sink_of(store_root, kafka, transaction_bytes)
    for part in parts:
        sink.apply_part([part])
        behind = sink.applied_to() - kafka.position.commit_log_offset
        assert behind < transaction_bytes
    sink.apply([])
    assert kafka.offsets == offsets
    assert sink.counts.messages == kafka.position.messages == len(offsets)
    assert sink.counts.durable_to == sink.applied_to() == parts[-1].end
    assert sink.counts.batches == 1
    sink.close()


def test_what_precedes_damage_in_a_part_is_mirrored(store_root: Path) -> None:
    kafka, (parts, _) = Kafka(), parts_of(store_root)
    sink = sink_of(store_root, kafka, 1 << 20)
    first = parts[0]
    sink.apply_part([first, Damage(first.end, parts[1].end, "f", "why")])
    assert sink.is_blocked()
    sink.apply_part(parts[1:])
    with pytest.raises(DamageError, match="why"):
        sink.apply([])
    assert kafka.position.commit_log_offset == first.end
    assert kafka.position.last_record is not None
    sink.close()
