"""Interrupted and killed rebuilds: resumed, or started over where the log changed."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import checkpoints.rebuild
from checkpoints.state_paths import BOOT, BULK_DIR, NEW_OUTPUT_DIR
from store.commitlog.scanner import LogRange, Scanner, SplitScan
from store.errors import DamageError
from store.index.writer import IndexService
from store.output.progress import SWAP, read_progress
from tests.support.cases import stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import (
    assert_same_content,
    assert_same_store,
    built_tree,
    dispatch_all,
)
from tests.support.rebuilding import fail_after, rebuild_all
from tests.support.stores.aged import log_files, sent
from tests.support.verify_stores import CONFIG, VARIANTS, flip, messages, write_store

MANY = 1_000_000
SWAP_CALLS = 150  # the last calls of a rebuild, which swap the files


@pytest.mark.parametrize("batches", [0, 1, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_rebuild_is_resumed(tmp_path: Path, variant: str, batches: int) -> None:
    config = VARIANTS[variant]
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    with pytest.raises(KeyboardInterrupt):
        rebuild_all(store_root, output, config, before=fail_after(batches, KeyboardInterrupt()))
    assert built_tree(output) == {}
    begins: list[int] = []
    rebuilt = rebuild_all(store_root, output, config, before=begins.append)
    assert rebuilt.resumed_from == begins[0]
    assert begins[0] == 0 if batches == 0 else begins[0] >= batches * 1_000
    assert rebuilt.messages == 60
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


def test_index_slots_are_written_when_a_file_is_full_and_rebuilt_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_root, output = write_store(tmp_path, messages(60)), tmp_path / "output"
    config = replace(CONFIG, max_hash_slot_num=5_000, max_index_num=71)
    with monkeypatch.context() as killed:
        killed.setattr(IndexService, "flush", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            rebuild_all(store_root, output, config, before=fail_after(9, KeyboardInterrupt()))
    files = sorted((output / NEW_OUTPUT_DIR / "index").iterdir())
    slots = [path.read_bytes()[40:20_040] for path in files]
    assert [any(table) for table in slots] == [True, False]
    rebuild_all(store_root, output, config)
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")


@pytest.mark.parametrize(
    "what", ["log", "boot", "no boot", "config", "store", "minimum", "damaged"]
)
def test_the_files_of_another_rebuild_are_discarded(
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
    else:
        flip(output / NEW_OUTPUT_DIR / "reput/progress", 40)
    begins: list[int] = []
    rebuilt = rebuild_all(store_root, output, config, before=begins.append)
    assert rebuilt.resumed_from == rebuilt.begin_offset == begins[0]
    dispatch_all(store_root, tmp_path / "dispatched", config)
    assert_same_store(output, tmp_path / "dispatched")
    assert not (output / BULK_DIR).exists()


def test_a_rebuild_resumes_after_the_log_grew_and_a_dispatch_ran(
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
    assert now.generation > known.generation
    dispatch_all(store_root, tmp_path / "dispatched", CONFIG)
    assert_same_store(output, tmp_path / "dispatched")


def test_a_rebuild_of_a_truncated_log_resumes_from_a_record_it_still_holds(tmp_path: Path) -> None:
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
def test_a_rebuild_restarts_at_the_minimum_offset_if_the_log_expires_meanwhile(
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


def test_a_log_rewritten_meanwhile_fails_the_rebuild_and_leaves_the_output_unchanged(
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
def test_a_kill_at_any_call_leaves_the_old_output_or_the_new_one(
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
