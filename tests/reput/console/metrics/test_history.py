"""The history of an hour for the graphs: its samples, its gaps, and whether there is one."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints.output import DispatchOutput
from reput.console.metrics import history
from reput.console.metrics.history import HISTORY_SECONDS, INTERVAL_SECONDS, History
from tests.support.bulk_writer import BulkWriter
from tests.support.consoles import console, source, wait_until
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import TEMPLATES, make_store


def status(now: int, read: int | None, messages: int, behind: int | None = None) -> dict[str, Any]:
    """Return what the history samples, in seconds: the log was last read at `read`."""
    return {
        "now_ms": now * 1000,
        "monitor_timestamp": None if read is None else read * 1000,
        "messages_in": messages,
        "bytes_in": messages * 100,
        "behind_bytes": behind,
    }


def sampled(*statuses: dict[str, Any]) -> History:
    found = History(dict)
    for one in statuses:
        found.add(one)
    return found


def test_rates_are_those_since_the_last_sample() -> None:
    found = sampled(status(10, 10, 0, 7), status(15, 15, 50, 8), status(20, 19, 54, None))
    assert found.columns() == {
        "timestamp": [10_000, 15_000, 20_000],
        "messages_per_second": [None, 10.0, 1.0],
        "bytes_per_second": [None, 1000.0, 100.0],
        "behind_bytes": [7, 8, None],
    }
    assert found.columns(since=15_000)["timestamp"] == [20_000]
    assert found.columns(since=20_000) == {name: [] for name in found.columns()}


def test_while_the_log_is_not_read_there_is_a_gap() -> None:
    reads = {10: 10, 15: 15, 20: 15, 25: 15, 30: 30, 35: 35}  # the last read as of each time
    found = sampled(*(status(now, read, 2 * read, 7) for now, read in reads.items()))
    assert found.columns()["messages_per_second"] == [None, 2.0, None, None, 2.0, 2.0]
    assert found.columns()["behind_bytes"] == [7, 7, None, None, 7, 7]


def test_the_history_begins_with_the_first_read_of_the_log() -> None:
    assert sampled(status(10, None, 0), status(15, 15, 0)).columns()["timestamp"] == [15_000]


def test_a_clock_that_steps_back_makes_a_gap() -> None:
    found = sampled(status(20, 20, 0), status(15, 15, 5), status(20, 20, 10))
    assert found.columns()["messages_per_second"] == [None, None, 1.0]


def test_samples_of_one_hour_are_kept() -> None:
    kept = int(HISTORY_SECONDS / INTERVAL_SECONDS)
    found = sampled(*(status(n * 5, n * 5, int(n == 1)) for n in range(kept + 2)))
    assert len(found.columns()["timestamp"]) == kept
    assert found.columns()["timestamp"][0] == 10_000


def test_arrivals_count_for_an_hour() -> None:
    assert not sampled(status(10, 10, 5), status(15, 15, 5)).has_arrivals()
    assert sampled(status(10, 10, 5), status(15, 15, 6), status(20, 20, 6)).has_arrivals()


def test_the_server_samples_without_a_browser_and_passes_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "INTERVAL_SECONDS", 0.3)
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 30)
    dispatch_all(store_root, output, config)
    with console(source(store_root, output)) as c:
        samples = c.brokers["b"].history
        wait_until(lambda: samples.columns()["messages_per_second"][1:2] == [0.0])
        assert not c.api("b/status")["is_live"]
        assert "data-is-live" not in c.get("/brokers/b").text
        with BulkWriter(store_root, config) as writer:
            writer.append_many(TEMPLATES, 30, first=30)
        wait_until(lambda: any(samples.columns()["messages_per_second"]))
        assert c.api("b/status")["is_live"]
        assert "data-is-live" in c.get("/brokers/b").text
        behind = c.api("b/status")["behind_bytes"]
        wait_until(lambda: c.api("b/history")["behind_bytes"][-1] == behind)
        (store_root / "commitlog").rename(tmp_path / "moved")
        wait_until(lambda: c.api("b/history")["messages_per_second"][-1] is None)
        assert any("no longer has any file" in text for text in c.api("b/status")["damage"])
        wait_until(lambda: c.api("b/history")["behind_bytes"][-1] is None)
        (tmp_path / "moved").rename(store_root / "commitlog")
        wait_until(lambda: c.api("b/history")["messages_per_second"][-1] is not None)
        wait_until(lambda: c.api("b/history")["behind_bytes"][-1] == behind)
        found = c.api("b/history", since=c.api("b/status")["now_ms"] + 60_000)
        assert (found["broker"], found["timestamp"]) == ("b", [])
        assert c.get("/api/brokers/b/history", since="x").status_code == 400


@pytest.mark.parametrize("owned", ["store", "out"])
def test_a_store_of_a_running_broker_or_dispatch_is_live(tmp_path: Path, owned: str) -> None:
    store_root, output = tmp_path / "store", tmp_path / "out"
    config = make_store(store_root, 30)
    dispatch_all(store_root, output, config)
    with console(source(store_root, output)) as c:
        assert not c.api("b/status")["is_live"]
        owner = DispatchOutput.open(tmp_path / owned, store_root, config)
        assert c.api("b/status")["is_live"]
        owner.close(clean=True)
        assert not c.api("b/status")["is_live"]
