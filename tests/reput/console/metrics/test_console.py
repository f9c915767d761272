"""/metrics of the console: what it shows of its brokers, and to whom."""

from pathlib import Path

import prometheus_client.parser as text_parser
import pytest

from store.commitlog.record import NewMessage
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.bulk_writer import BulkWriter
from tests.support.consoles import Console, console, source, wait_until
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import TEMPLATES, corrupt, make_store

g4 = pytest.mark.parametrize(
    "golden", [p for p in ARCHIVES if archive_name(p) == "g4"], ids=["g4"], indirect=True
)


def scrape(c: Console) -> dict[tuple[str, ...], float]:
    """Map the name, the node and the further labels of each sample to its value."""
    text = c.client.get("/metrics").raise_for_status().text
    kept = ("node_id", "topic", "consumer_group", "rule", "query")
    return {
        (s.name, *(s.labels[k] for k in kept if k in s.labels)): s.value
        for family in text_parser.text_string_to_metric_families(text)
        for s in family.samples
    }


def scrape_until(c: Console, *names: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Scrape until these samples are there: listings are made in the background."""
    wait_until(lambda: set(names) <= scrape(c).keys())
    return scrape(c)


@g4
def test_groups_and_timers_of_a_real_broker_are_shown(golden: Golden) -> None:
    conf = golden.store_root / "broker.conf"
    how = {"broker_conf": conf, "broker_version": golden.version}
    with console(source(golden.store_root, golden.expected, **how)) as c:
        lag = ("reput_consumer_lag_messages", "b", "MyTopic", "CG")
        found = scrape_until(c, lag, ("reput_timer_enqueue_lag", "b"))
        assert found[lag] == 2.0  # 206 messages, of which 204 are committed
        assert found["reput_timing_messages", "b", "MyTopic"] == 0.0
        assert found["reput_damage", "b"] == 0.0
        assert found["reput_store_read_failed", "b"] == 0.0
        # Its queues are a broker's: there is no dispatch to be behind.
        assert ("reput_storage_dispatch_behind_bytes", "b") not in found


def test_two_brokers_are_shown_with_the_backlog_of_their_dispatch(tmp_path: Path) -> None:
    done, behind = tmp_path / "done", tmp_path / "behind"
    for store in (done, behind):
        config = make_store(store, 60)
        dispatch_all(store, tmp_path / f"{store.name}-out", config)
    with BulkWriter(behind, config) as writer:
        writer.append_many(TEMPLATES, 30)
    sources = [source(s, tmp_path / f"{s.name}-out", s.name) for s in (done, behind)]
    with console(*sources) as c:
        found = scrape(c)
        name = "reput_storage_dispatch_behind_bytes"
        assert found[name, "done"] == 0.0
        assert found[name, "behind"] > 0.0
        assert found["reput_dropped_messages_total", "done", "gap"] == 0.0
        assert found["reput_lost_bytes_total", "done", "dispatch"] == 0.0


def test_messages_that_are_appended_are_counted_by_topic(tmp_path: Path) -> None:
    config = make_store(tmp_path / "store", 30)
    dispatch_all(tmp_path / "store", tmp_path / "out", config)
    hostile = 'x"} 1\nreput_damage{node_id="b'
    with console(source(tmp_path / "store", tmp_path / "out")) as c:
        wait_until(lambda: c.api("b/status")["monitor_timestamp"] is not None)
        begin = c.api("b/status")["log_max_offset"]
        with BulkWriter(tmp_path / "store", config) as writer:
            writer.append_many(TEMPLATES, 30)
            writer.append(NewMessage(hostile, 0, b"body"))
        shown = hostile.replace("\n", "\\n")
        found = scrape_until(c, ("reput_messages_in_total", "b", shown))
        assert found["reput_messages_in_total", "b", "TopicA"] == 20.0
        assert found["reput_messages_in_total", "b", "TopicB"] == 10.0
        assert found["reput_messages_in_total", "b", shown] == 1.0
        sizes = {k[2]: v for k, v in found.items() if k[0] == "reput_throughput_in_total"}
        assert sizes.keys() == {"TopicA", "TopicB", shown}
        end = c.api("b/status")["log_max_offset"]
        assert sum(sizes.values()) == end - begin
        assert found["reput_damage", "b"] == 0.0


def test_damage_is_counted_and_a_store_that_is_gone_is_shown(tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store, 60)
    dispatch_all(store, output, config)
    (queue,) = (output / "consumequeue" / "TopicB" / "0").iterdir()
    queue.write_bytes(queue.read_bytes()[:-7])
    with console(source(store, output)) as c:
        wait_until(lambda: scrape(c)["reput_damage", "b"] > 0.0)
        corrupt(store / "commitlog" / f"{0:020d}", 4)
        store.rename(tmp_path / "moved")
        assert scrape(c)["reput_store_read_failed", "b"] == 1.0


def test_metrics_need_the_token(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 5)
    with console(source(tmp_path / "store"), token="t" * 20) as c:
        assert c.client.get("/metrics").status_code == 401
        assert c.client.get("/metrics", auth=("x", "t" * 20)).status_code == 200
