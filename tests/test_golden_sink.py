"""What the dispatch builds from the logs of real brokers, byte for byte, however it is cut."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

from checkpoints.checkpoint_file import StoreCheckpoint, read_checkpoint
from checkpoints.root import DispatchRoot
from store.commit_log import CommitLog
from store.consume_queue_store import ConsumeQueueStore
from store.disk import Disk
from store.dispatch_request import DispatchRequests, concat
from store.index_service import IndexService
from store.log_plan import LogPlanner
from store.scan import Scanner
from streaming.dispatchers import DispatchSink, IndexDispatcher
from tests.conftest import Golden
from tests.dispatching import HastyDisk, assert_same_content, assert_same_store, dispatch_all, tree


def random_sizes(random: Random, largest: int) -> Iterator[int]:
    """Draw batch sizes, many of them small."""
    return (random.randint(1, random.choice([1, 3, largest])) for _ in itertools.count())


def requests_of(golden: Golden) -> DispatchRequests:
    """Scan the whole log."""
    config = golden.config
    log = CommitLog(config.commit_log_paths(golden.store_root), config)
    plan = LogPlanner(log, lambda: True).plan(log.min_offset())
    scanned = [s for part in plan.ranges for s in Scanner(config).read(part)]
    return concat([s for s in scanned if isinstance(s, DispatchRequests)])


def test_one_batch_builds_what_the_broker_built(golden: Golden, tmp_path: Path) -> None:
    dispatch_all(golden.store_root, tmp_path, golden.config, disk=Disk)
    assert_same_store(tmp_path, golden.expected)


def test_one_record_a_batch_builds_the_same(golden: Golden, tmp_path: Path) -> None:
    dispatch_all(golden.store_root, tmp_path, golden.config, one_by_one=True)
    assert_same_store(tmp_path, golden.expected)


def test_any_cut_builds_the_same(golden: Golden, tmp_path: Path) -> None:
    random = Random(f"cut {golden.name}")
    dispatch_all(
        golden.store_root,
        tmp_path,
        golden.config,
        max_bytes=random.choice([5_000, 70_000, 300_000]),
        range_bytes=random.choice([1, 1_000, 30_000]),
        chunk_bytes=random.choice([1, 700, 20_000]),
        cuts=random_sizes(random, 200),
    )
    assert_same_store(tmp_path, golden.expected)


def test_a_root_opened_again_after_each_batch_builds_the_same(
    golden: Golden, tmp_path: Path
) -> None:
    sizes = random_sizes(Random(golden.name), 300)
    dispatch_all(golden.store_root, tmp_path, golden.config, cuts=sizes, reopen=True)
    assert_same_store(tmp_path, golden.expected)


def test_each_batch_applied_twice_builds_the_same(golden: Golden, tmp_path: Path) -> None:
    sizes = random_sizes(Random(golden.name), 300)
    dispatch_all(golden.store_root, tmp_path, golden.config, cuts=sizes, twice=True)
    assert_same_store(tmp_path, golden.expected)


def test_dispatching_again_from_any_offset_changes_nothing(golden: Golden, tmp_path: Path) -> None:
    config = golden.config
    dispatch_all(golden.store_root, tmp_path, config)
    before = tree(tmp_path)
    requests = requests_of(golden)
    root = DispatchRoot.open(tmp_path, golden.store_root, config, disk=HastyDisk())
    sink = DispatchSink(root, config)
    for first in (0, 1, len(requests) // 2, len(requests) - 1):
        sink.apply([requests.slice(first, len(requests))])
    sink.close()
    assert_same_content(tree(tmp_path), before)


def test_dispatchers_know_what_they_have_whatever_the_sink_passes_on(
    golden: Golden, tmp_path: Path
) -> None:
    config = golden.config
    dispatch_all(golden.store_root, tmp_path, config)
    before = tree(tmp_path)
    requests, disk = requests_of(golden), HastyDisk()
    ConsumeQueueStore(tmp_path, config, disk).put_message_position_info(requests)
    if config.message_index_enable:
        service = IndexService(tmp_path, config, disk)
        IndexDispatcher(service, requests.end).dispatch(requests)
    disk.close()
    assert_same_content(tree(tmp_path), before)


def test_checkpoint_names_the_last_record_and_the_last_full_index_file(
    golden: Golden, tmp_path: Path
) -> None:
    dispatch_all(golden.store_root, tmp_path, golden.config)
    last = int(requests_of(golden).store_timestamp[-1])
    brokers = read_checkpoint(golden.directory / "expected")
    assert brokers is not None
    index_timestamp = brokers.index_msg_timestamp
    assert StoreCheckpoint(last, last, index_timestamp) == read_checkpoint(tmp_path)
