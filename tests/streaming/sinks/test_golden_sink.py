"""A dispatch of real brokers' logs is right byte for byte, for any division into batches."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.checkpoint_file import StoreCheckpoint, read_checkpoint
from checkpoints.output import DispatchOutput
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.consumequeue.writer import ConsumeQueueStore
from store.index.writer import IndexService
from store.io.disk import Disk
from store.output.progress import read_progress
from streaming.sinks.dispatch_sink import DispatchSink, IndexDispatcher
from tests.conftest import Golden
from tests.support.dispatching import (
    HastyDisk,
    assert_same_content,
    assert_same_store,
    built_tree,
    tree,
)
from tests.support.stores.golden import dispatch_golden, golden_slice


def random_sizes(random: Random, largest: int) -> Iterator[int]:
    """Draw batch sizes, many of them small."""
    return (random.randint(1, random.choice([1, 3, largest])) for _ in itertools.count())


@pytest.fixture(scope="module")
def dispatched(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dispatch a store in one batch, with real syncs."""
    output = tmp_path_factory.mktemp("dispatched")
    dispatch_golden(golden, output, disk=Disk)
    return output


@pytest.fixture(scope="module")
def requests(golden: Golden) -> DispatchRequests:
    """Scan a store's log."""
    config = golden.config
    log = CommitLog(config.commit_log_paths(golden.store_root), config)
    plan = LogPlanner(log, lambda: True).plan(log.min_offset())
    scanned = [s for part in plan.ranges for s in Scanner(config).read(part)]
    return concat([s for s in scanned if isinstance(s, DispatchRequests)])


def test_one_batch_builds_what_the_broker_built(golden: Golden, dispatched: Path) -> None:
    assert_same_store(dispatched, golden.expected)
    assert not (dispatched / "abort").exists()


@golden_slice
def test_batches_of_one_record_build_the_same_files(golden: Golden, tmp_path: Path) -> None:
    dispatch_golden(golden, tmp_path, one_by_one=True)
    assert_same_store(tmp_path, golden.expected)


@golden_slice
def test_any_cut_builds_the_same_files(golden: Golden, tmp_path: Path) -> None:
    random = Random(f"cut {golden.name}")
    dispatch_golden(
        golden,
        tmp_path,
        max_bytes=random.choice([1_000, 10_000, 70_000]),
        range_bytes=random.choice([1, 1_000, 30_000]),
        chunk_bytes=random.choice([1, 700, 20_000]),
        cuts=random_sizes(random, 200),
    )
    assert_same_store(tmp_path, golden.expected)


@golden_slice
def test_reopening_after_each_batch_and_applying_batches_twice_build_the_same_files(
    golden: Golden, tmp_path: Path
) -> None:
    sizes = random_sizes(Random(golden.name), 300)
    dispatch_golden(golden, tmp_path, cuts=sizes, reopen=True, twice=True)
    assert_same_store(tmp_path, golden.expected)


def test_dispatching_again_from_any_offset_changes_nothing(
    golden: Golden, dispatched: Path, requests: DispatchRequests
) -> None:
    before, progress = built_tree(dispatched), read_progress(dispatched)
    owned = DispatchOutput.open(dispatched, golden.store_root, golden.config, disk=HastyDisk())
    sink = DispatchSink(owned, golden.config)
    for first in (0, 1, len(requests) // 2, len(requests) - 1):
        sink.apply([requests.slice(first, len(requests))])
    sink.close()
    assert_same_content(built_tree(dispatched), before)
    assert progress is not None
    assert replace(owned.progress, stamp=progress.stamp) == progress


def test_dispatchers_skip_what_they_have_already_applied(
    golden: Golden, dispatched: Path, requests: DispatchRequests
) -> None:
    config, disk = golden.config, HastyDisk()
    before, progress = tree(dispatched), read_progress(dispatched)
    assert progress is not None
    if config.enable_consume_queue_ext and progress.drops:
        pytest.skip("a message that no queue takes leaves an ext unit each time it is put")
    ConsumeQueueStore(dispatched, config, disk).put_message_position_info(requests)
    if config.message_index_enable:
        service = IndexService(dispatched, config, disk)
        IndexDispatcher(service, requests.end).dispatch(requests)
    disk.close()
    assert_same_content(tree(dispatched), before)


def test_checkpoint_names_the_last_record_and_the_last_full_index_file(
    golden: Golden, dispatched: Path, requests: DispatchRequests
) -> None:
    brokers = read_checkpoint(golden.directory / "expected")
    assert brokers is not None
    last = int(requests.store_timestamp[-1])
    expected = StoreCheckpoint(last, last, brokers.index_msg_timestamp)
    if golden.config.version >= (5, 5, 0):
        expected = replace(expected, logics_physical_offset=int(requests.commit_log_offset[-1]))
    assert expected == read_checkpoint(dispatched)
