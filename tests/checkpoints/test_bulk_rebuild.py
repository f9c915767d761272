"""The whole rebuild: the same bytes as a dispatch, however the log is cut, killed wherever."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints.bulk.rebuild
from checkpoints.bulk.state import BULK_DIR, BulkState
from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from store import MessageStore
from store.bulk.key_parts import IndexPart
from store.config import StoreConfig
from store.disk import Disk
from store.dispatched import SWAP
from store.errors import ConfigError, DamageError, RootInUseError
from streaming.verification import verify
from tests.checkpoints.test_retention import log_files, sent
from tests.conftest import Golden
from tests.crashes import CrashingDisk, Killed
from tests.dispatching import assert_same_content, assert_same_store, built_tree, dispatch_all
from tests.logs import Batch, Message, build_log, encode, write_log
from tests.logs_random import message_lists
from tests.rebuilding import FailingRun, rebuild_all
from tests.test_golden_sink import WITH_UNKNOWN_MAGIC
from tests.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

MANY = 1_000_000


class SyncingDisk(CrashingDisk):
    """One on which a sync of the file system is a call too, which leaves nothing to be lost."""

    def _syncfs(self, fd: int) -> None:
        self._live()
        self.changes.clear()


@pytest.fixture(params=list(VARIANTS))
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture
def roots(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path, Path]:
    """Return a store, an OUTPUT that is not there yet, and a root as a dispatch makes it."""
    store_root, dispatched = write_store(tmp_path, sent(60)), tmp_path / "dispatched"
    dispatch_all(store_root, dispatched, config)
    return store_root, tmp_path / "output", dispatched


@pytest.mark.parametrize("part_bytes", [300, 5_000, 1 << 20])
def test_every_real_store_is_rebuilt_byte_for_byte(
    golden: Golden, tmp_path: Path, part_bytes: int
) -> None:
    rebuilt = rebuild_all(golden.store_root, tmp_path, golden.config, part_bytes=part_bytes)
    assert_same_store(tmp_path, golden.expected)
    assert (rebuilt.damage is not None) == (golden.name == WITH_UNKNOWN_MAGIC)
    assert not (tmp_path / BULK_DIR).exists()
    assert not (tmp_path / "abort").exists()


@given(message_lists(), st.integers(200, 3_000), st.sampled_from(sorted(VARIANTS)))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_any_log_gives_the_files_of_a_dispatch(
    sent: list[Message | Batch], part_bytes: int, variant: str
) -> None:
    config = replace(VARIANTS[variant], mapped_file_size_commit_log=8192)
    with TemporaryDirectory() as directory:
        store_root = Path(directory) / "store"
        write_log(build_log(sent, 8192), store_root / "commitlog")
        dispatched, output = Path(directory) / "dispatched", Path(directory) / "output"
        error = None
        try:
            dispatch_all(store_root, dispatched, config)
        except DamageError as e:
            error = e
        rebuilt = rebuild_all(store_root, output, config, part_bytes=part_bytes)
        assert_same_store(output, dispatched)
        damage = rebuilt.damage.error() if rebuilt.damage is not None else None
        assert (damage and (damage.offset, damage.reason)) == (
            error and (error.offset, error.reason)
        )
        known, now = read_progress(dispatched), read_progress(output)
        assert known is not None
        assert now is not None
        for name in ("reput_from_offset", "last_record", "messages", "index_count", "index_files"):
            assert getattr(now, name) == getattr(known, name), name
        drops = {name: d for name, d in known.drops.items() if any(d.values())}
        assert now.drops == drops


def test_continuous_queues_are_laid_in_any_order_and_others_redone(tmp_path: Path) -> None:
    apart = replace(messages(1)[0], topic="Apart")
    rest = [replace(apart, queue_offset=n) for n in (5, 6, 9, 3, 10)]
    store_root = write_store(tmp_path, [*messages(20), *rest, *messages(20, 20)])
    rebuilt = rebuild_all(
        store_root, tmp_path / "output", CONFIG, run=FailingRun(MANY, Exception("never"))
    )
    assert (rebuilt.queues, rebuilt.redone) == (2, 1)
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    assert {key: (d.repeated, d.gaps) for key, d in rebuilt.drops.items()} == {("Apart", 0): (1, 2)}


@pytest.mark.parametrize(("entries", "files"), [(1_000, 1), (70, 2)])
def test_an_index_file_is_built_in_parts_where_there_are_more_cores(
    tmp_path: Path, entries: int, files: int
) -> None:
    store_root, run = write_store(tmp_path, messages(60)), FailingRun(MANY, Exception("never"))
    config = replace(CONFIG, max_index_num=entries + 1)
    assert rebuild_all(store_root, tmp_path / "output", config, run=run).index_files == files
    parts = sorted((t for t in run.done if isinstance(t, IndexPart)), key=lambda p: p.begin_key)
    assert len(parts) == -(-run.cores // files) * files
    assert [p.begin_key for p in parts[1:]] == [p.end_key for p in parts[:-1]]
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_a_rebuild_that_failed_goes_on_with_the_parts_that_are_missing(
    roots: tuple[Path, Path, Path], config: StoreConfig
) -> None:
    store_root, output, dispatched = roots
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, config, run=FailingRun(7, KeyboardInterrupt()))
    assert built_tree(output) == {}
    done = [BulkState(output, Disk()).read_part(n) for n in range(100)]
    kept = [part for part in done if part is not None and part.keys.records]
    rebuilt = rebuild_all(store_root, output, config)
    assert (rebuilt.parts_kept, rebuilt.parts > 20) == (len(kept), True)
    assert len(kept) > 3
    assert_same_store(output, dispatched)


@pytest.mark.parametrize("what", ["log", "boot", "config", "release"])
def test_parts_of_another_log_machine_or_setting_are_not_gone_on_with(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output, config = write_store(tmp_path, messages(60)), tmp_path / "output", CONFIG
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, config, run=FailingRun(7, KeyboardInterrupt()))
    if what == "log":
        shutil.rmtree(store_root)
        write_store(tmp_path, [replace(m, flag=7) for m in messages(60)])
    elif what == "config":
        config = replace(config, max_index_num=5)
    elif what == "boot":
        monkeypatch.setattr(checkpoints.bulk.rebuild, "boot_id", lambda: "another")
    else:
        state = BulkState(output, Disk())
        plan = state.read_plan()
        assert plan is not None
        state.write_plan(replace(plan, release=0))
    rebuilt = rebuild_all(store_root, output, config)
    assert rebuilt.parts_kept == 0
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


def test_killed_at_any_call_it_leaves_the_old_root_or_the_new_one(tmp_path: Path) -> None:
    config, store_root = VARIANTS["ext"], write_store(tmp_path, sent(30))
    begun, copy = tmp_path / "begun", tmp_path / "copy"
    dispatch_all(store_root, begun, config)
    right = built_tree(begun)
    flip(min((begun / "consumequeue/T/0").iterdir()), 15)
    wrong = built_tree(begun)
    with pytest.raises(KeyboardInterrupt):  # all that tasks do has been done
        rebuild_all(store_root, begun, config, run=FailingRun(9, KeyboardInterrupt()))
    shutil.copytree(begun, copy)
    counted = SyncingDisk(MANY, tmp_path / "graves")
    rebuild_all(store_root, copy, config, disk=counted)
    assert built_tree(copy) == right
    found, total = {"old": 0, "new": 0}, MANY - counted.calls
    for calls in [*range(0, total // 2, 5), *range(total // 2, total)]:
        shutil.rmtree(copy)
        shutil.copytree(begun, copy)
        disk = SyncingDisk(calls, tmp_path / "graves")
        with pytest.raises(Killed):
            rebuild_all(store_root, copy, config, disk=disk)
        disk.lose(Random(calls), kept=calls % 3 / 2)
        if calls % 2:
            following = SyncingDisk(calls // 2 % 30, tmp_path / "graves")
            with pytest.raises(Killed):
                rebuild_all(store_root, copy, config, disk=following)
            following.lose(Random(calls), kept=calls % 3 / 2)
        had_begun = (copy / SWAP).exists()
        dispatch_all(store_root, copy, config, keep_expired=True)
        now = built_tree(copy)
        found["old" if now == wrong else "new"] += 1
        if now != wrong:
            assert_same_content(now, right)
        assert now == right or not had_begun
        assert not (copy / SWAP).exists()
        rebuild_all(store_root, copy, config)
        assert_same_content(built_tree(copy), right)
        assert not (copy / BULK_DIR).exists()
    assert min(found.values()) > 10


def test_what_lies_before_damage_is_built_and_the_damage_told(
    roots: tuple[Path, Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output, _ = roots
    flip(log_files(store_root)[2], 100)  # a byte of a body
    with pytest.raises(DamageError) as told:
        dispatch_all(store_root, tmp_path / "prefix", config)
    rebuilt = rebuild_all(store_root, output, config)
    assert rebuilt.damage is not None
    assert str(rebuilt.damage.error()) == str(told.value)
    assert_same_store(output, tmp_path / "prefix")
    flip(log_files(store_root)[2], 100)  # the file is restored
    dispatch_all(store_root, output, config)
    assert_same_store(output, roots[2])


def test_a_torn_end_with_older_records_behind_is_the_end_as_long_as_the_broker_has_not_cut_it(
    tmp_path: Path,
) -> None:
    store_root = write_store(tmp_path, messages(40))
    (store_root / "abort").touch()
    flip(log_files(store_root)[-1], 100)
    rebuilt = rebuild_all(store_root, tmp_path / "output", CONFIG)
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert rebuilt.damage is None
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")


def test_a_message_that_holds_a_copy_of_a_record_is_no_part_s_beginning(tmp_path: Path) -> None:
    first = messages(3)
    size = sum(len(encode(m, 0)) for m in first)
    # The fourth's body has, at the very offset it says, what looks like a record of another topic.
    body_at = size + len(encode(replace(first[0], body=b""), 0)) - len(b"TopicTest") - 400
    inner = Message(topic="Other", queue_offset=3, body=b"x" * 50)
    tries = []
    for shift in range(300, 420):
        inside = encode(inner, body_at + shift)
        body = bytearray(1000)
        holder = replace(first[0], queue_offset=3, body=bytes(body))
        record = encode(holder, size)
        at = body_at + shift - size
        start = record.index(bytes(body))
        if start <= at and at + len(inside) <= start + 1000:
            body[at - start : at - start + len(inside)] = inside
            tries.append(replace(holder, body=bytes(body)))
    sent = [*first, tries[0], *(replace(m, queue_offset=m.queue_offset + 4) for m in messages(20))]
    config = replace(CONFIG, mapped_file_size_commit_log=16384)
    store_root = tmp_path / "store"
    write_log(build_log(sent, 16384), store_root / "commitlog")
    dispatch_all(store_root, tmp_path / "dispatched", config)
    for part_bytes in range(200, 1_500, 50):
        output = tmp_path / f"output-{part_bytes}"
        rebuilt = rebuild_all(store_root, output, config, part_bytes=part_bytes)
        assert_same_store(output, tmp_path / "dispatched")
        assert rebuilt.queues == 1


def test_a_queue_of_a_log_that_has_lost_its_beginning_is_filled_up_to_its_first_unit(
    roots: tuple[Path, Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output, _ = roots
    for path in log_files(store_root)[:2]:
        path.unlink()
    dispatch_all(store_root, tmp_path / "aged", config)
    rebuild_all(store_root, output, config)
    assert_same_store(output, tmp_path / "aged")
    assert verify(store_root, output, config).is_equal


def test_a_dispatch_goes_on_from_a_rebuild_and_finds_nothing_to_recover(
    config: StoreConfig, tmp_path: Path
) -> None:
    sent_in_all = sent(60)
    store_root, output = write_store(tmp_path, sent_in_all[:35]), tmp_path / "output"
    rebuild_all(store_root, output, config)
    shutil.rmtree(store_root)
    write_store(tmp_path, sent_in_all)
    root = DispatchRoot.open(output, store_root, config)
    assert root.recovered == ()
    root.close(clean=True)
    dispatch_all(store_root, output, config)
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


def test_a_broker_s_root_is_rebuilt_in_place(config: StoreConfig, tmp_path: Path) -> None:
    store_root = write_store(tmp_path, sent(60))
    dispatch_all(store_root, tmp_path / "dispatched", config)
    shutil.copytree(tmp_path / "dispatched/consumequeue", store_root / "consumequeue")
    shutil.copytree(store_root / "consumequeue/T", store_root / "consumequeue/Stale")
    (store_root / "abort").touch()
    rebuild_all(store_root, store_root, config)
    assert_same_store(store_root, tmp_path / "dispatched")


def test_a_broker_that_crashed_since_has_left_a_torn_end_and_no_damage(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, messages(40))
    rebuild_all(store_root, store_root, CONFIG)
    assert not (store_root / "abort").exists()
    (store_root / "abort").touch()  # a broker ran, and was killed while it wrote
    flip(log_files(store_root)[-1], 100)
    assert rebuild_all(store_root, store_root, CONFIG).damage is None


def test_readers_go_on_while_a_root_is_replaced(tmp_path: Path) -> None:
    roots, config = (write_store(tmp_path, sent(60)), tmp_path / "output"), CONFIG
    dispatch_all(*roots, config)
    wrong: list[object] = []
    stop = threading.Event()

    def answers(reads: MessageStore) -> tuple[list[int], list[int]]:
        found = reads.query_message("T", "common", max_count=64).messages
        got = reads.get_message("T", 0, 5, max_count=8).messages
        return [m.queue_offset for m in found], [m.queue_offset for m in got]

    with MessageStore.open(*roots) as reads:
        right = answers(reads)
        assert len(right[0]) > 20

        def read() -> None:
            while not stop.is_set():
                try:
                    found: object = answers(reads)
                except Exception as e:  # noqa: BLE001 - none is right
                    found = e
                if found != right:
                    wrong.append(found)

        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(12):
            rebuild_all(*roots, config)
        stop.set()
        thread.join()
    assert wrong == []


def test_what_cannot_be_rebuilt_is_refused_and_left_as_it_is(
    roots: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    store_root, _, dispatched = roots
    config = CONFIG
    other = write_store(tmp_path / "elsewhere", messages(5))
    before = built_tree(dispatched)
    with pytest.raises(ConfigError, match="was made from"):
        rebuild_all(other, dispatched, config)
    with pytest.raises(ConfigError, match="a log of its own"):
        rebuild_all(store_root, other, config)
    shutil.rmtree(tmp_path / "linked", ignore_errors=True)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/consumequeue").symlink_to(dispatched / "consumequeue")
    with pytest.raises(ConfigError, match="is a link"):
        rebuild_all(store_root, tmp_path / "linked", config)
    root = DispatchRoot.replacing(tmp_path / "taken", store_root, config)
    with pytest.raises(RootInUseError):
        rebuild_all(store_root, tmp_path / "taken", config)
    root.close(clean=False)
    assert built_tree(dispatched) == before
