"""A rebuild that is interrupted leaves the old queue or the new one; the next start cleans up."""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import checkpoints.rebuild
from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from checkpoints.state_paths import BOOT, BULK_DIR, REBUILD_DIR
from checkpoints.swap import SwapRecord, write_swap
from store import MessageStore
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig
from store.errors import StoreIOError
from store.io.disk import Disk
from store.io.mapped_file import MappedFileQueue
from store.root.progress import SWAP
from streaming.queries.feed import threads_feed
from streaming.queries.verify import verify
from streaming.sinks.dispatch import DispatchSink
from tests.support.cases import first_cases, stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import Content, HastyDisk, assert_same_content, dispatch_all, tree
from tests.support.rebuilding import fail_after, rebuild_all, rebuild_topic
from tests.support.stores.aged import log_files, sent
from tests.support.verify_stores import VARIANTS, flip, messages, write_store

TOPIC = "T"
MANY = 1_000_000


@pytest.fixture(params=["plain", "ext", "lmq"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture(params=["whole", "aged"])
def made(request: pytest.FixtureRequest, tmp_path: Path, config: StoreConfig) -> tuple[Path, Path]:
    """Return a store and its root; the rebuild of an aged queue changes it."""
    roots = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(*roots, config, max_bytes=2000)
    if request.param == "aged":
        for path in log_files(roots[0])[:2]:
            path.unlink()
    return roots


def some_roots(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on two kinds of root, and on all in the exhaustive run."""
    of_config = pytest.mark.parametrize(
        "config", first_cases(["ext", "plain", "lmq"]), indirect=True
    )
    of_age = pytest.mark.parametrize("made", first_cases(["whole", "aged"], 2), indirect=True)
    return of_config(of_age(test))


def queues(root: Path) -> dict[str, Content]:
    kinds = ("consumequeue", "consumequeue_ext")
    return {f"{kind}/{name}": c for kind in kinds for name, c in tree(root / kind).items()}


class NotingDisk(CrashingDisk):
    """Never kills; ``swap_at`` is the number of calls before the swap began."""

    swap_at = 0

    def _rename(self, source: Path, target: Path) -> None:
        if target.name == SWAP.name:
            self.swap_at = MANY - self.calls
        super()._rename(source, target)


def killed_roots(roots: tuple[Path, Path], config: StoreConfig, stride: int) -> Iterator[Path]:
    """Yield the root after a killed rebuild: at some calls before the swap, at any call after.

    Nothing in the root changes before the swap.
    """
    store_root, output = roots
    copy = output.with_name("copy")
    shutil.copytree(output, copy)
    noted = NotingDisk(MANY, output.with_name("graves"))
    rebuild_topic((store_root, copy), config, TOPIC, disk=noted)
    total = MANY - noted.calls
    assert 40 < noted.swap_at < total - 20
    before, swap = range(0, noted.swap_at, 16), range(noted.swap_at - 2, total)
    for calls in [*before[:: -(-stride // 6)], *swap[::stride]]:
        shutil.rmtree(copy)
        shutil.copytree(output, copy)
        disk = CrashingDisk(calls, output.with_name("graves"))
        with pytest.raises(Killed):
            rebuild_topic((store_root, copy), config, TOPIC, disk=disk)
        if calls % 2:  # power fails later, during the next process
            following = CrashingDisk(calls // 2 % 40, output.with_name("graves"))
            following.follow(disk)
            with pytest.raises(Killed):
                rebuild_topic((store_root, copy), config, TOPIC, disk=following)
            disk = following
        kept = calls % 3 / 2
        disk.lose(Random(calls), kept)
        if kept < 1 and (copy / BOOT).exists():
            (copy / BOOT).write_bytes(b"another boot")
        yield copy


@some_roots
@stride(13)
def test_a_kill_at_any_call_leaves_the_old_queue_or_the_new_one(
    made: tuple[Path, Path], config: StoreConfig, tmp_path: Path, stride: int
) -> None:
    store_root, output = made
    flip(min((output / "consumequeue/T/0").iterdir()), 15)
    old = queues(output)
    shutil.copytree(output, tmp_path / "rebuilt")
    rebuild_topic((store_root, tmp_path / "rebuilt"), config, TOPIC)
    new = queues(tmp_path / "rebuilt")
    found = {"old": 0, "new": 0}
    resumed = 0
    for root in killed_roots(made, config, stride):
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
        assert (root / BOOT).exists() or not (root / BULK_DIR).exists()
        if now != new:
            begins: list[int] = []
            rebuild_topic((store_root, root), config, TOPIC, before=begins.append)
            resumed += not begins or begins[0] > int(log_files(store_root)[0].name)
            assert_same_content(queues(root), new)
            assert not (root / BULK_DIR).exists()
    if stride == 1:
        assert min(found.values()) > 1
        assert resumed > 1
    else:
        assert sum(found.values()) > 3


def interrupt(roots: tuple[Path, Path], config: StoreConfig, batches: int = 6) -> None:
    before = queues(roots[1])
    with pytest.raises(KeyboardInterrupt):
        rebuild_topic(roots, config, TOPIC, before=fail_after(batches, KeyboardInterrupt()))
    assert queues(roots[1]) == before
    assert (roots[1] / BOOT).exists()


def dispatched(output: Path) -> tuple[dict[str, Content], object, object]:
    """Return a root's queues, and the rollback points and drops of its progress."""
    progress = read_progress(output)
    assert progress is not None
    return queues(output), progress.milestones, progress.drops


def test_an_interrupted_rebuild_is_resumed(
    made: tuple[Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output = made
    flip(max((output / "consumequeue/T/0").iterdir()), 15)
    shutil.copytree(output, tmp_path / "undisturbed")
    interrupt(made, config)
    begins: list[int] = []
    resumed = rebuild_topic(made, config, TOPIC, before=begins.append)
    begin = int(log_files(store_root)[0].name)
    assert begins[0] > begin + 1_000
    undisturbed = store_root, tmp_path / "undisturbed"
    assert resumed == rebuild_topic(undisturbed, config, TOPIC, before=begins.append)
    assert begin in begins
    assert dispatched(output) == dispatched(tmp_path / "undisturbed")
    assert verify(store_root, output, config).differences == ()
    assert not (output / BULK_DIR).exists()


def test_a_resumed_rebuild_of_an_aged_queue_records_the_ends_of_all_queues_with_drops(
    tmp_path: Path,
) -> None:
    config = VARIANTS["ext"]
    repeated = [m for n in range(4, 60, 4) for m in (*messages(4, n), *messages(1, n))]
    roots = write_store(tmp_path, repeated), tmp_path / "output"
    dispatch_all(*roots, config, one_by_one=True)
    log_files(roots[0])[0].unlink()
    begin = int(log_files(roots[0])[0].name)
    with pytest.raises(KeyboardInterrupt):
        rebuild_topic(roots, config, "TopicTest", before=fail_after(14, KeyboardInterrupt()))
    begins: list[int] = []
    (queue,) = rebuild_topic(roots, config, "TopicTest", before=begins.append)
    assert begins[0] > begin
    progress = read_progress(roots[1])
    assert progress is not None
    assert progress.drops == {"TopicTest/0": {"repeated": queue.drops.repeated, "gaps": 0}}
    noted = [m for m in progress.milestones if m.last_record.offset >= begin]
    assert sum(m.reput_from_offset < begins[0] and m.marks != () for m in noted) > 3
    for milestone in noted:  # as a dispatch that ends there records it
        root = DispatchRoot.open(tmp_path / "there", roots[0], config, disk=HastyDisk())
        sink = DispatchSink(root, config)
        planner = LogPlanner(root.log, lambda: True)
        span = root.progress.reput_from_offset, milestone.reput_from_offset
        threads_feed(planner, config)(span, True, sink)
        sink.close()
        there = root.progress.milestones[-1]
        assert (milestone.marks, milestone.drops) == (there.marks, there.drops)


@pytest.mark.parametrize("what", ["topic", "queue", "everything", "of everything", "boot"])
def test_the_files_of_a_rebuild_of_other_queues_are_discarded(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = VARIANTS["plain"]
    roots = write_store(tmp_path, sent(60)), tmp_path / "output"
    dispatch_all(*roots, config)
    right, begins = queues(roots[1]), list[int]()
    if what == "of everything":
        with pytest.raises(KeyboardInterrupt):
            rebuild_all(*roots, config, before=fail_after(6, KeyboardInterrupt()))
    else:
        interrupt(roots, config)
    if what == "everything":
        rebuild_all(*roots, config, before=begins.append)
    elif what == "topic":
        rebuild_topic(roots, config, "Rare", before=begins.append)
    elif what == "queue":
        rebuild_topic(roots, config, TOPIC, queue_id=0, before=begins.append)
    else:
        if what == "boot":
            monkeypatch.setattr(checkpoints.rebuild, "boot_id", lambda: b"another")
        rebuild_topic(roots, config, TOPIC, before=begins.append)
    assert begins[0] == 0
    assert_same_content(queues(roots[1]), right)
    assert not (roots[1] / BULK_DIR).exists()


def test_a_rebuild_of_a_root_that_was_dispatched_again_since_starts_over(tmp_path: Path) -> None:
    config = VARIANTS["plain"]
    roots = write_store(tmp_path, messages(60)), tmp_path / "output"
    dispatch_all(*roots, config, max_bytes=2000)
    with pytest.raises(KeyboardInterrupt):
        rebuild_topic(roots, config, "TopicTest", before=fail_after(14, KeyboardInterrupt()))
    shutil.rmtree(roots[0])
    write_store(tmp_path, messages(8))
    dispatch_all(*roots, config)  # rolled back
    shutil.rmtree(roots[0])
    write_store(tmp_path, [*messages(8), *(replace(m, flag=7) for m in messages(50, 8))])
    dispatch_all(*roots, config, max_bytes=900)
    begins: list[int] = []
    flip(min((roots[1] / "consumequeue/TopicTest/0").iterdir()), 15)
    rebuild_topic(roots, config, "TopicTest", before=begins.append)
    assert begins[0] == 0
    assert verify(*roots, config).differences == ()


def messages_of(reads: MessageStore) -> list[tuple[str, int, bytes]]:
    """Read a queue to its end, by tags, so that its ext units are read."""
    at, end = reads.min_offset_in_queue(TOPIC, 0), reads.max_offset_in_queue(TOPIC, 0)
    found = []
    while at < end:
        read = reads.get_message(TOPIC, 0, at, tags="t0 || t2")
        found += [(m.topic, m.queue_offset, m.body) for m in read.messages]
        at = read.next_begin_offset
    return found


@some_roots
@stride(13)
def test_a_reader_of_a_killed_rebuild_gets_right_answers_or_an_error(
    made: tuple[Path, Path], config: StoreConfig, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(MessageStore, "swap_wait_seconds", 0)
    store_root, output = made
    with MessageStore.open(store_root, output) as reads:
        right = messages_of(reads)
    errors: list[str] = []
    for root in killed_roots(made, config, stride):
        with MessageStore.open(store_root, root) as reads:
            try:
                assert messages_of(reads) == right
                assert 0 in reads.queue_ids(TOPIC)
            except StoreIOError as e:
                errors.append(str(e))
    assert errors
    assert all("reput rebuild" in text for text in errors)


def test_readers_keep_working_while_queues_are_replaced(
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
                except Exception as e:  # noqa: BLE001 - no exception is expected
                    found = e
                if found != right:
                    wrong.append(found)

        with MessageStore.open(store_root, output) as other:
            threads = [threading.Thread(target=read, args=(r,)) for r in (reads, other)]
            for thread in threads:
                thread.start()
            for _ in range(10):
                rebuild_topic(made, config, TOPIC, disk=Disk())
            stop.set()
            for thread in threads:
                thread.join()
    assert wrong == []


def test_files_of_a_directory_moved_during_its_listing_do_not_count_as_deleted(
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


def test_a_queue_whose_ext_units_have_expired_has_no_ext_files(tmp_path: Path) -> None:
    config = VARIANTS["ext"]
    roots = write_store(tmp_path, messages(12)), tmp_path / "output"
    dispatch_all(*roots, config)
    shutil.copytree(roots[1] / "consumequeue_ext/TopicTest", roots[1] / "consumequeue_ext/Other")
    expected = queues(roots[1])
    shutil.copytree(roots[1] / "consumequeue_ext/TopicTest/0", tmp_path / "ext")
    rebuild_topic(roots, config, "TopicTest")
    assert queues(roots[1]) == expected


def test_a_swap_is_not_completed_over_the_queues_of_a_broker_that_ran_since(tmp_path: Path) -> None:
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
