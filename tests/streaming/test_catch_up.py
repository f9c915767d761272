"""Catching up without Spark: the same files as a dispatch, up to damage, until it is stopped."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from checkpoints.root import DispatchRoot
from store.config import StoreConfig
from store.dispatch_request import DispatchRequests
from store.errors import StoreError
from store.log_plan import LogPlanner
from streaming.batch_sink import BatchSink
from streaming.catch_up import catch_up
from streaming.dispatchers import DispatchSink
from streaming.stretches import Stretch
from tests.conftest import Golden
from tests.dispatching import HastyDisk, assert_same_store, dispatch_all
from tests.test_golden_sink import WITH_UNKNOWN_MAGIC, dispatch_golden
from tests.verify_stores import CONFIG, flip, messages, write_store

BATCH_BYTES = 2_000


def caught_up(
    store_root: Path,
    output: Path,
    config: StoreConfig,
    stop: threading.Event | None = None,
    told: list[tuple[int, int]] | None = None,
) -> tuple[int, int]:
    """Catch up; return the offset reached and the end of the log."""
    root = DispatchRoot.open(output, store_root, config, disk=HastyDisk())

    def report(done: int, total: int) -> None:
        if told is not None:
            told.append((done, total))
            if stop is not None and len(told) == 2:
                stop.set()

    with closing(DispatchSink(root, config)) as sink:
        planner = LogPlanner(root.log, lambda: root.is_log_clean(store_root))
        span = (root.progress.reput_from_offset, planner.end())
        how = {"batch_bytes": BATCH_BYTES, "report": report}
        if stop is not None:
            how["is_stopping"] = stop.is_set
        reached = catch_up(sink, planner, config, span, **how)  # type: ignore[arg-type]
        assert reached == root.progress.reput_from_offset
    return reached, span[1]


def test_every_real_store_is_caught_up_with_byte_for_byte(golden: Golden, tmp_path: Path) -> None:
    reached, end = caught_up(golden.store_root, tmp_path, golden.config)
    assert (reached == end) == (golden.name != WITH_UNKNOWN_MAGIC)
    dispatch_golden(golden, tmp_path)  # what is left: the batch that holds damage
    assert_same_store(tmp_path, golden.expected)


def test_damage_and_what_is_in_its_batch_are_left_for_the_query(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, messages(60))
    second = sorted((store_root / "commitlog").iterdir())[1]
    flip(second, 100)
    reached, end = caught_up(store_root, tmp_path / "output", CONFIG)
    assert 0 < reached <= int(second.name) + 100 < end


def test_a_stop_ends_it_after_the_batch_in_flight(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    told: list[tuple[int, int]] = []
    reached, end = caught_up(store_root, output, CONFIG, threading.Event(), told)
    assert told == [(told[0][0], end), (reached, end)]
    assert 0 < told[0][0] < reached < end
    assert caught_up(store_root, output, CONFIG) == (end, end)
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(output, tmp_path / "dispatched")


class FullSink(BatchSink):
    """Fails at its second batch."""

    name = "test"

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Stretch]] = []

    def _apply(self, stretches: list[Stretch]) -> None:
        if self.batches:
            raise StoreError("full")
        self.batches.append(stretches)

    def _end(self) -> None:
        pass


def requests_of(sink: FullSink) -> Iterator[DispatchRequests]:
    for batch in sink.batches:
        for stretch in batch:
            assert isinstance(stretch, DispatchRequests)
            yield stretch


def test_what_a_sink_fails_with_is_raised_and_nothing_is_applied_after_it(tmp_path: Path) -> None:
    store_root, sink = write_store(tmp_path, messages(60)), FullSink()
    root = DispatchRoot.open(tmp_path / "output", store_root, CONFIG, disk=HastyDisk())
    planner = LogPlanner(root.log, lambda: True)
    span = (0, planner.end())
    with pytest.raises(StoreError, match="full"):
        catch_up(sink, planner, CONFIG, span, batch_bytes=BATCH_BYTES)
    root.close(clean=True)
    assert 0 < max(part.end for part in requests_of(sink)) < span[1]
