"""What metrics show of a store: its log, its groups and its timer wheel."""

import time
from pathlib import Path

import pytest

from reput.console.metrics.metric_names import Node
from reput.console.metrics.samples import Samples
from reput.console.metrics.storage import (
    LogReader,
    Position,
    measure_groups,
    measure_log,
    measure_timer,
)
from store.errors import StoreIOError
from store.reads.message_store import MessageStore
from store.topics.overview import Overview, describe_topics
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.stores.written import make_store

NODE = Node("C", "B")
g4 = pytest.mark.parametrize(
    "golden", [p for p in ARCHIVES if archive_name(p) == "g4"], ids=["g4"], indirect=True
)


def values(samples: Samples) -> dict[tuple[str, ...], float]:
    """Map name and labels after the node's to the value."""
    node = {"cluster", "node_type", "node_id", "storage_type", "storage_medium"}
    return {
        (s.name, *(v for k, v in s.labels.items() if k not in node)): s.value
        for metric in samples.metrics()
        for s in metric.samples
    }


def now_ms() -> int:
    return int(time.time() * 1000)


def test_the_backlog_of_a_log_is_its_bytes_and_the_age_of_its_first_message(
    tmp_path: Path,
) -> None:
    config = make_store(tmp_path, 100)
    begun = Position(0, 0)
    log = LogReader(tmp_path, config, lambda: begun)
    state = log.read()
    end = state.status.behind_bytes
    assert state.status.waiting_timestamp == state.earliest_timestamp is not None
    assert state.behind_ms == state.stuck_ms == state.now_ms - state.earliest_timestamp
    found: dict[tuple[str, ...], float] = {}
    samples = Samples()
    measure_log(samples, NODE, state.used_bytes, state.reserve_ms)
    found = values(samples)
    assert end > 0
    assert found["reput_storage_message_reserve_time_milliseconds",] == state.behind_ms
    assert found["reput_storage_size_bytes",] > end
    begun = Position(end, now_ms())
    state = log.read()
    assert (state.status.behind_bytes, state.behind_ms, state.stuck_ms) == (0, 0, 0)


def test_a_reader_is_stuck_if_neither_message_nor_progress_is_recent(tmp_path: Path) -> None:
    config = make_store(tmp_path, 10)
    waiting = LogReader(tmp_path, config, lambda: Position(0, 0)).read()
    assert waiting.status.waiting_timestamp is not None
    old = waiting.status.waiting_timestamp
    assert waiting.fault(1e6) == ""
    assert waiting.fault(-1).startswith("stuck: no progress from offset 0 for ")
    later = LogReader(tmp_path, config, lambda: Position(0, old + 3_600_000)).read()
    assert later.stuck_ms == 0  # it has just made progress


def test_an_empty_log_has_no_backlog_and_no_oldest_message(tmp_path: Path) -> None:
    config = make_store(tmp_path / "other", 1)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    state = LogReader(tmp_path / "store", config, lambda: Position(0, 0)).read()
    assert (state.status.behind_bytes, state.behind_ms, state.earliest_timestamp) == (0, 0, None)


def test_a_store_that_is_gone_is_an_error_of_the_operating_system(tmp_path: Path) -> None:
    config = make_store(tmp_path / "other", 1)
    with pytest.raises(StoreIOError):
        LogReader(tmp_path / "gone", config, lambda: Position(0, 0)).read()


@g4
def test_the_lag_of_a_real_brokers_groups_is_summed_by_topic(golden: Golden) -> None:
    store = golden.store_root
    with MessageStore.open(store, golden.expected, store / "broker.conf", golden.version) as s:
        overview = describe_topics(s)
    samples = Samples()
    measure_groups(samples, NODE, overview.groups)
    found = values(samples)
    labels = ("MyTopic", "CG", "false", "false")
    lags = [lag.messages for group, lag in overview.groups if group == "CG"]
    assert found["reput_consumer_lag_messages", *labels] == sum(x or 0 for x in lags)
    latency = found["reput_consumer_lag_latency_milliseconds", *labels]
    stamps = [lag.next_timestamp for _, lag in overview.groups if lag.next_timestamp]
    expected = now_ms() - min(stamps) if stamps else 0
    assert expected == pytest.approx(latency, abs=60_000)


@g4
def test_the_timer_wheel_of_a_real_broker_is_read_from_its_config(golden: Golden) -> None:
    store = golden.store_root
    with MessageStore.open(store, golden.expected, store / "broker.conf", golden.version) as s:
        overview = describe_topics(s)
    samples = Samples()
    measure_timer(samples, NODE, store, overview)
    found = values(samples)
    for topic in ("MyTopic", "OrderTopic", "PayTopic"):
        assert found["reput_timing_messages", topic] == 0.0
    assert found["reput_timer_enqueue_lag",] == 0.0  # 7 messages, the wheel's offset is 7
    assert found["reput_timer_dequeue_latency_milliseconds",] >= 0.0


def test_a_store_without_a_timer_wheel_has_no_metrics_of_one(tmp_path: Path) -> None:
    make_store(tmp_path, 10)
    samples = Samples()
    measure_timer(samples, NODE, tmp_path, Overview((), (), (), ()))
    assert values(samples) == {}
