"""A rebuild cut off anywhere: the old queue or the new one, and the next start tidies up."""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import store.dispatched
from checkpoints.queue_rebuild import Rebuild
from checkpoints.root import DispatchRoot
from checkpoints.swap import REBUILD_DIR, SwapRecord, write_swap
from store import MessageStore
from store.config import StoreConfig
from store.disk import Disk
from store.dispatched import SWAP
from store.errors import StoreIOError
from store.log_plan import LogPlanner
from store.mapped_file import MappedFileQueue
from streaming.verification import verify
from tests.checkpoints.test_retention import log_files, sent
from tests.crashes import CrashingDisk, Killed
from tests.dispatching import Content, HastyDisk, assert_same_content, dispatch_all, tree
from tests.verify_stores import VARIANTS, flip, messages, write_store

TOPIC = "T"
MANY = 1_000_000


@pytest.fixture(params=["plain", "ext", "lmq"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture(params=["whole", "aged"])
def made(request: pytest.FixtureRequest, tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    """Return a store and its root; an aged queue is another one when it is rebuilt."""
    roots = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(*roots, config, max_bytes=2000)
    if request.param == "aged":
        for path in log_files(roots[0])[:2]:
            path.unlink()
    return roots


def rebuild(roots: tuple[Path, Path], config: StoreConfig, disk: Disk, topic: str = TOPIC) -> None:
    store_root, output = roots
    root = DispatchRoot.open(output, store_root, config, disk=disk)
    try:
        planner = LogPlanner(root.log, lambda: True)
        Rebuild(root, planner, lambda key: key[0] == topic).run()
        root.close(clean=True)
    finally:
        root._release()


def queues(root: Path) -> dict[str, Content]:
    kinds = ("consumequeue", "consumequeue_ext")
    return {f"{kind}/{name}": c for kind in kinds for name, c in tree(root / kind).items()}


class NotingDisk(CrashingDisk):
    """Kills nobody; ``swap_at`` is how many calls there were before the swap began."""

    swap_at = 0

    def _rename(self, source: Path, target: Path) -> None:
        if target.name == SWAP.name:
            self.swap_at = MANY - self.calls
        super()._rename(source, target)


def killed_roots(
    roots: tuple[Path, Path], config: StoreConfig, topic: str = TOPIC
) -> Iterator[Path]:
    """Yield the root as a rebuild that is killed leaves it: now and then before, at any call after.

    Up to the swap nothing in the root is changed.
    """
    store_root, output = roots
    copy = output.with_name("copy")
    shutil.copytree(output, copy)
    noted = NotingDisk(MANY, output.with_name("graves"))
    rebuild((store_root, copy), config, noted, topic)
    total = MANY - noted.calls
    assert 40 < noted.swap_at < total - 20
    for calls in [*range(0, noted.swap_at, 15), *range(noted.swap_at - 2, total)]:
        shutil.rmtree(copy)
        shutil.copytree(output, copy)
        disk = CrashingDisk(calls, output.with_name("graves"))
        with pytest.raises(Killed):
            rebuild((store_root, copy), config, disk, topic)
        if calls % 2:  # the power is lost later, when the next process is on its way
            following = CrashingDisk(calls // 2 % 40, output.with_name("graves"))
            following.follow(disk)
            with pytest.raises(Killed):
                rebuild((store_root, copy), config, following, topic)
            disk = following
        disk.lose(Random(calls), kept=calls % 3 / 2)
        yield copy


def test_killed_at_any_call_it_leaves_the_old_queue_or_the_new_one(
    made: tuple[Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output = made
    flip(min((output / "consumequeue/T/0").iterdir()), 15)
    old = queues(output)
    shutil.copytree(output, tmp_path / "rebuilt")
    rebuild((store_root, tmp_path / "rebuilt"), config, HastyDisk())
    new = queues(tmp_path / "rebuilt")
    found = {"old": 0, "new": 0}
    for root in killed_roots(made, config):
        had_begun = (root / SWAP).exists()
        dispatch_all(store_root, root, config, keep_expired=True)
        now = queues(root)
        found["old" if now == old else "new"] += 1
        if now != old:
            assert_same_content(now, new)
            assert verify(store_root, root, config).differences == ()
        assert now == new or not had_begun
        assert not (root / REBUILD_DIR).exists()
        assert not (root / SWAP).exists()
    assert min(found.values()) > 1


def messages_of(reads: MessageStore) -> list[tuple[str, int, bytes]]:
    """Read a queue to its end, by tags, so that ext units are looked at."""
    at, end = reads.min_offset_in_queue(TOPIC, 0), reads.max_offset_in_queue(TOPIC, 0)
    found = []
    while at < end:
        read = reads.get_message(TOPIC, 0, at, tags="t0 || t2")
        found += [(m.topic, m.queue_offset, m.body) for m in read.messages]
        at = read.next_begin_offset
    return found


def test_a_reader_of_a_killed_rebuild_is_right_or_told(
    made: tuple[Path, Path], config: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.dispatched, "_SWAP_SECONDS", 0)
    store_root, output = made
    with MessageStore.open(store_root, output) as reads:
        right = messages_of(reads)
    told: list[str] = []
    for root in killed_roots(made, config):
        with MessageStore.open(store_root, root) as reads:
            try:
                assert messages_of(reads) == right
                assert 0 in reads.queue_ids(TOPIC)
            except StoreIOError as e:
                told.append(str(e))
    assert told
    assert all("reput rebuild" in text for text in told)


def test_readers_go_on_while_queues_are_replaced(
    made: tuple[Path, Path], config: StoreConfig
) -> None:
    store_root, output = made
    with MessageStore.open(store_root, output) as reads:
        right = messages_of(reads)
        wrong: list[object] = []
        stop = threading.Event()

        def read(reader: MessageStore) -> None:
            while not stop.is_set():
                try:
                    found: object = messages_of(reader)
                except Exception as e:  # noqa: BLE001 - none is right
                    found = e
                if found != right:
                    wrong.append(found)

        with MessageStore.open(store_root, output) as other:
            threads = [threading.Thread(target=read, args=(r,)) for r in (reads, other)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                rebuild(made, config, Disk())
            stop.set()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_files_of_a_directory_that_is_moved_while_it_is_listed_are_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, stat = tmp_path / "0", Path.stat
    directory.mkdir()
    for number in range(4):
        (directory / f"{number * 20:020}").write_bytes(bytes(20))

    def stat_and_move(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat(path, follow_symlinks=follow_symlinks)
        if path.parent == directory:
            directory.rename(tmp_path / "old")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat_and_move)
        queue = MappedFileQueue([directory], 20)
    assert queue.files == []
    (tmp_path / "old").rename(directory)
    queue.refresh()
    assert len(queue.files) == 4


def test_a_queue_that_has_no_ext_units_any_more_has_no_ext_files(tmp_path: Path) -> None:
    config = VARIANTS["ext"]
    roots = write_store(tmp_path, messages(12)), tmp_path / "output"
    dispatch_all(*roots, config)
    shutil.copytree(roots[1] / "consumequeue_ext/TopicTest", roots[1] / "consumequeue_ext/Other")
    expected = queues(roots[1])
    shutil.copytree(roots[1] / "consumequeue_ext/TopicTest/0", tmp_path / "ext")
    rebuild(roots, config, HastyDisk(), "TopicTest")
    assert queues(roots[1]) == expected


def test_a_swap_is_not_finished_over_the_queues_of_a_broker_that_ran_since(tmp_path: Path) -> None:
    config = VARIANTS["plain"]
    roots = write_store(tmp_path, messages(12)), tmp_path / "output"
    dispatch_all(*roots, config)
    new = roots[1] / REBUILD_DIR / "new/consumequeue/TopicTest/0"
    new.mkdir(parents=True)
    (new / f"{0:020}").write_bytes(bytes(100))
    write_swap(roots[1], SwapRecord((("TopicTest", 0),)), Disk())
    (roots[1] / "checkpoint").write_bytes(bytes(4096))  # as a broker's
    dispatch_all(*roots, config)
    assert verify(*roots, config).differences == ()
    assert not (roots[1] / REBUILD_DIR).exists()
