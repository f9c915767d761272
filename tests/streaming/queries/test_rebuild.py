"""The rebuild of a whole root: the bytes of a dispatch, whatever the batches and the kills."""

import itertools
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints.rebuild
from checkpoints.progress import read_progress
from checkpoints.root import DispatchRoot
from checkpoints.state_paths import BOOT, BULK_DIR, NEW_ROOT_DIR
from store import MessageStore
from store.commitlog.scanner import LogRange, Scanner, SplitScan
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, RootInUseError
from store.index.writer import IndexService
from store.root.progress import SWAP
from streaming.queries.verify import verify
from tests.conftest import Golden
from tests.logs.build import Batch, Message, build_log, write_log
from tests.logs.random_logs import message_lists
from tests.support.cases import first_cases, stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import (
    assert_same_content,
    assert_same_store,
    built_tree,
    dispatch_all,
)
from tests.support.rebuilding import fail_after, rebuild_all
from tests.support.stores.aged import log_files, sent
from tests.support.stores.golden import WITH_UNKNOWN_MAGIC, golden_slice
from tests.support.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

MANY = 1_000_000
SWAP_CALLS = 150  # of the disk, at the end of a rebuild


@pytest.fixture(params=list(VARIANTS))
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return VARIANTS[str(request.param)]


@pytest.fixture
def roots(tmp_path: Path, config: StoreConfig) -> tuple[Path, Path, Path]:
    """Return a store, an OUTPUT that does not exist yet, and a root written by a dispatch."""
    store_root, dispatched = write_store(tmp_path, sent(60)), tmp_path / "dispatched"
    dispatch_all(store_root, dispatched, config)
    return store_root, tmp_path / "output", dispatched


@golden_slice
@pytest.mark.parametrize("batch_bytes", first_cases([5_000, 1 << 20]))
def test_every_real_store_is_rebuilt_byte_for_byte(
    golden: Golden, tmp_path: Path, batch_bytes: int
) -> None:
    rebuilt = rebuild_all(golden.store_root, tmp_path, golden.config, batch_bytes=batch_bytes)
    assert_same_store(tmp_path, golden.expected)
    assert (rebuilt.damage is not None) == (golden.name == WITH_UNKNOWN_MAGIC)
    assert not (tmp_path / BULK_DIR).exists()
    assert not (tmp_path / "abort").exists()


LOGS = given(message_lists(), st.integers(200, 3_000), st.sampled_from(sorted(VARIANTS)))


@LOGS
@settings(max_examples=12, deadline=None)
def test_any_cut_of_any_log_gives_the_files_of_a_dispatch(
    sent: list[Message | Batch], batch_bytes: int, variant: str
) -> None:
    assert_any_cut_gives_the_files_of_a_dispatch(sent, batch_bytes, variant)


@pytest.mark.exhaustive
@LOGS
@settings(max_examples=100, deadline=None)
def test_any_cut_of_any_log_gives_the_files_of_a_dispatch_many_times(
    sent: list[Message | Batch], batch_bytes: int, variant: str
) -> None:
    assert_any_cut_gives_the_files_of_a_dispatch(sent, batch_bytes, variant)


def assert_any_cut_gives_the_files_of_a_dispatch(
    sent: list[Message | Batch], batch_bytes: int, variant: str
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
        rebuilt = rebuild_all(store_root, output, config, batch_bytes=batch_bytes)
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


@pytest.mark.parametrize("batches", [0, 1, 5])
def test_an_interrupted_rebuild_is_resumed(
    roots: tuple[Path, Path, Path], config: StoreConfig, batches: int
) -> None:
    store_root, output, dispatched = roots
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, config, before=fail_after(batches, KeyboardInterrupt()))
    assert built_tree(output) == {}
    begins: list[int] = []
    rebuilt = rebuild_all(store_root, output, config, before=begins.append)
    assert rebuilt.resumed_from == begins[0]
    assert begins[0] == 0 if batches == 0 else begins[0] >= batches * 1_000
    assert rebuilt.messages == 60
    assert_same_store(output, dispatched)


def test_index_slots_are_written_when_a_file_is_full_and_built_again_where_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    config = replace(CONFIG, max_hash_slot_num=5_000, max_index_num=71)
    with monkeypatch.context() as killed:
        killed.setattr(IndexService, "flush", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            rebuild_all(store_root, output, config, before=fail_after(9, KeyboardInterrupt()))
    files = sorted((output / NEW_ROOT_DIR / "index").iterdir())
    slots = [path.read_bytes()[40:20_040] for path in files]
    assert [any(table) for table in slots] == [True, False]
    rebuild_all(store_root, output, config)
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


@pytest.mark.parametrize(
    "what", ["log", "boot", "no boot", "config", "store", "minimum", "damaged", "release 0.1.0"]
)
def test_what_another_rebuild_left_is_discarded(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output, config = write_store(tmp_path, messages(60)), tmp_path / "output", CONFIG
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, config, before=fail_after(4, KeyboardInterrupt()))
    if what == "log":
        shutil.rmtree(store_root)
        write_store(tmp_path, [replace(m, flag=7) for m in messages(60)])
    elif what == "config":
        config = replace(config, max_index_num=5)
    elif what == "store":
        store_root = store_root.rename(tmp_path / "moved")
    elif what == "boot":
        monkeypatch.setattr(checkpoints.rebuild, "boot_id", lambda: b"another")
    elif what == "no boot":
        monkeypatch.setattr(checkpoints.rebuild, "boot_id", lambda: b"")
    elif what == "minimum":
        log_files(store_root)[0].unlink()
    elif what == "damaged":
        flip(output / NEW_ROOT_DIR / "reput/progress", 40)
    else:
        shutil.rmtree(output / BULK_DIR)
        (output / BULK_DIR / "parts").mkdir(parents=True)
        (output / BULK_DIR / "plan").write_text('{"half a pl')
        (output / BULK_DIR / "parts/000001.keys").touch()
    begins: list[int] = []
    rebuilt = rebuild_all(store_root, output, config, before=begins.append)
    assert rebuilt.resumed_from == rebuilt.begin_offset == begins[0]
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")
    assert not (output / BULK_DIR).exists()


def test_a_log_that_has_grown_or_an_output_dispatched_meanwhile_is_no_hindrance(
    tmp_path: Path,
) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    dispatch_all(store_root, output, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, CONFIG, before=fail_after(4, KeyboardInterrupt()))
    shutil.rmtree(store_root)
    write_store(tmp_path, messages(90))
    dispatch_all(store_root, output, CONFIG, max_bytes=700)
    known = read_progress(output)
    rebuilt = rebuild_all(store_root, output, CONFIG)
    assert rebuilt.resumed_from > 0
    now = read_progress(output)
    assert known is not None
    assert now is not None
    assert now.batch - now.milestones[-1].number > known.batch - known.milestones[-1].number
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(output, tmp_path / "dispatched")


def test_a_log_cut_back_meanwhile_is_resumed_from_what_it_still_holds(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, CONFIG, before=fail_after(6, KeyboardInterrupt()))
    shutil.rmtree(store_root)
    write_store(tmp_path, [*messages(20), *(replace(m, flag=7) for m in messages(10, 20))])
    rebuilt = rebuild_all(store_root, output, CONFIG)
    assert 0 < rebuilt.resumed_from < rebuilt.end_offset
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(output, tmp_path / "dispatched")


@pytest.mark.parametrize("when", ["planned", "scanned"])
def test_it_begins_anew_at_the_log_s_minimum_where_its_beginning_expires_under_it(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    files = log_files(store_root)
    begins: list[int] = []

    def expire(at: int) -> None:
        begins.append(at)
        if len(begins) == 2 and when == "planned":
            for path in files[:2]:
                path.unlink()

    read = Scanner.read_split

    def expire_first(scanner: Scanner, split: LogRange) -> SplitScan:
        if split.begin > 4096 and when == "scanned":
            for path in files[:2]:
                path.unlink(missing_ok=True)
        return read(scanner, split)

    monkeypatch.setattr(Scanner, "read_split", expire_first)
    rebuilt = rebuild_all(store_root, output, CONFIG, before=expire)
    assert (rebuilt.begin_offset, rebuilt.damage) == (8192, None)
    assert begins.count(8192) == 1
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(output, tmp_path / "dispatched")


def test_a_file_that_is_missing_in_the_middle_is_damage(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    log_files(store_root)[1].unlink()
    rebuilt = rebuild_all(store_root, output, CONFIG)
    assert rebuilt.damage is not None
    assert (rebuilt.begin_offset, rebuilt.end_offset) == (0, 4096)


def test_a_log_that_is_rewritten_meanwhile_fails_and_leaves_the_root_as_it_was(
    tmp_path: Path,
) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    dispatch_all(store_root, output, CONFIG)
    before = built_tree(output)

    def rewrite(at: int) -> None:
        if at > 4096:
            shutil.rmtree(store_root)
            write_store(tmp_path, [replace(m, flag=7) for m in messages(60)])

    with pytest.raises(DamageError, match="the log changed"):
        rebuild_all(store_root, output, CONFIG, before=rewrite)
    assert built_tree(output) == before


@stride(7)
def test_killed_at_any_call_it_leaves_the_old_root_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    config, store_root = VARIANTS["ext"], write_store(tmp_path, sent(30))
    begun, copy = tmp_path / "begun", tmp_path / "copy"
    dispatch_all(store_root, begun, config)
    right = built_tree(begun)
    flip(min((begun / "consumequeue/T/0").iterdir()), 15)
    wrong = built_tree(begun)
    boots = itertools.count()
    shutil.copytree(begun, copy)
    counted = CrashingDisk(MANY, tmp_path / "graves")
    rebuild_all(store_root, copy, config, disk=counted)
    assert built_tree(copy) == right
    found, total = {"old": 0, "new": 0}, MANY - counted.calls
    resumed = 0

    def kill(calls: int, seed: int) -> None:
        """Rebuild until the process is killed, perhaps by a power failure."""
        disk = CrashingDisk(calls, tmp_path / "graves")
        with pytest.raises(Killed):
            rebuild_all(store_root, copy, config, disk=disk)
        kept = seed % 3 / 2
        disk.lose(Random(seed), kept)
        if kept < 1:
            boot = f"boot {next(boots)}".encode()
            monkeypatch.setattr(checkpoints.rebuild, "boot_id", lambda: boot)

    before, swap = range(0, total - SWAP_CALLS, 11), range(total - SWAP_CALLS, total)
    for calls in [*before[::stride], *swap[::stride]]:
        shutil.rmtree(copy)
        shutil.copytree(begun, copy)
        kill(calls, calls)
        if calls % 2:
            kill(calls // 2 % 30, calls)
        had_begun = (copy / SWAP).exists()
        if calls % 5:
            dispatch_all(store_root, copy, config, keep_expired=True)
            now = built_tree(copy)
            found["old" if now == wrong else "new"] += 1
            if now != wrong:
                assert_same_content(now, right)
            assert now == right or not had_begun
            assert not (copy / SWAP).exists()
            assert (copy / BOOT).exists() or not (copy / BULK_DIR).exists()
        rebuilt = rebuild_all(store_root, copy, config)
        resumed += rebuilt.resumed_from > 0
        assert_same_content(built_tree(copy), right)
        assert not (copy / BULK_DIR).exists()
    least = 10 if stride == 1 else 1
    assert min(found.values()) > least
    assert resumed > least


def test_what_lies_before_damage_is_built_and_the_damage_told(
    roots: tuple[Path, Path, Path], config: StoreConfig, tmp_path: Path
) -> None:
    store_root, output, _ = roots
    flip(log_files(store_root)[2], 100)  # a byte of a body
    with pytest.raises(DamageError) as told:
        dispatch_all(store_root, tmp_path / "prefix", config)
    rebuilt = rebuild_all(store_root, output, config, batch_bytes=MANY)
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
                except Exception as e:  # noqa: BLE001 - no exception is expected
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
