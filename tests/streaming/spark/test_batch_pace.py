"""When a query that paces itself begins a batch: by messages, bytes and time. No real clock."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store.config import config_to_json
from streaming.sources.dispatch_source import DispatchRequestReader
from streaming.spark.batch_pace import (
    BACKLOG_BYTES,
    HOLD_SECONDS,
    INTERVAL_MAX,
    INTERVAL_MIN,
    WORTHWHILE,
    BatchPace,
    Waiting,
    is_due,
)
from tests.logs.walking import by_walk
from tests.support.verify_stores import CONFIG, messages, write_store

NOTHING = Waiting(0, 0)
SIZE = 200


@dataclass
class Log:
    """A log to which messages are appended at given times; time passes while the pace sleeps."""

    arrivals: list[float]
    now: float = 0.0
    read: int = 0  # messages taken by batches
    batches: list[tuple[float, int]] = field(default_factory=list)  # when, and how many messages

    def waiting(self) -> Waiting:
        count = sum(at <= self.now for at in self.arrivals) - self.read
        size = count * SIZE
        return Waiting(count, size, is_backlog=size >= BACKLOG_BYTES)

    def run(self, pace: BatchPace, until: float) -> None:
        """Ask for batches, each of which takes 60 ms, as Spark does."""
        while self.now < until:
            pace.hold(self.waiting)
            count = self.waiting().messages
            if count:
                self.batches.append((self.now, count))
                self.read += count
                self.now += 0.06
            self.now += 0.01

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(arrivals: list[float], until: float) -> Log:
    log = Log(arrivals)
    log.run(BatchPace(clock=lambda: log.now, sleep=log.sleep), until)
    return log


def worst_delay(log: Log) -> float:
    """Return the longest time from the arrival of a message to the begin of its batch."""
    begun = [at for at, count in log.batches for _ in range(count)]
    return max(begin - at for at, begin in zip(log.arrivals, begun, strict=False))


@pytest.mark.parametrize(
    ("waiting", "seconds", "due"),
    [
        (NOTHING, 1e9, False),
        (Waiting(1, SIZE), INTERVAL_MAX, True),
        (Waiting(1, SIZE), INTERVAL_MAX - 0.01, False),
        (Waiting(WORTHWHILE, SIZE), INTERVAL_MIN, True),
        (Waiting(WORTHWHILE, SIZE), INTERVAL_MIN - 0.01, False),
        (Waiting(WORTHWHILE - 1, SIZE), INTERVAL_MIN, False),
        (Waiting(1, SIZE, is_backlog=True), 0.0, True),
    ],
)
def test_a_batch_is_due(waiting: Waiting, seconds: float, due: bool) -> None:
    assert is_due(waiting, seconds) == due


@pytest.mark.parametrize(
    ("rate", "interval"), [(100, INTERVAL_MIN), (16, INTERVAL_MAX), (1, INTERVAL_MAX)]
)
def test_the_interval_follows_the_rate(rate: int, interval: float) -> None:
    log = paced([n / rate for n in range(rate * 61)], 60)
    assert len(log.batches) <= 60 / interval + 2
    assert worst_delay(log) <= max(interval, INTERVAL_MIN) + 0.15


def test_the_first_message_after_a_pause_does_not_wait() -> None:
    log = paced([0.0, 30.0], 40)
    assert worst_delay(log) <= 0.1


def test_a_backlog_does_not_wait() -> None:
    log = paced([0.0] * (3 * BACKLOG_BYTES // SIZE), 1)
    assert log.batches[0][0] == pytest.approx(0.0)


def test_the_question_is_answered_without_a_message() -> None:
    log = Log([])
    BatchPace(clock=lambda: log.now, sleep=log.sleep).hold(log.waiting)
    assert HOLD_SECONDS <= log.now < HOLD_SECONDS + 0.1


@pytest.mark.parametrize("max_bytes", [1_000_000, 4_000])
def test_what_fills_a_batch_is_a_backlog(tmp_path: Path, max_bytes: int) -> None:
    store_root = write_store(tmp_path, messages(100))
    options = {
        "path": str(store_root),
        "config": config_to_json(CONFIG),
        "maxbytespertrigger": str(max_bytes),
        "rangebytes": "8192",
    }
    reader = DispatchRequestReader(options)
    (last,) = by_walk(store_root, CONFIG, 0)[0][-1].commit_log_offset[-1:]
    assert reader.waiting(0).is_backlog == (max_bytes == 4_000)
    one = reader.waiting(int(last))
    assert (one.messages, one.is_backlog) == (1, False)
