"""An open store sees all changes, although it lists directories only when necessary."""

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from store import MessageStore
from store.errors import DamageError
from store.io import mapped_file
from store.io.mapped_file import DirectoryWatch, MappedFileQueue, file_name
from tests.support.dispatching import dispatch_all
from tests.support.stores.numbered import CONFIG, FILE_SIZE, make_store, numbered, offsets

HOUR_NS = 3600 * 10**9


def settle(directory: Path) -> None:
    """Set the modification time of a directory to an hour ago."""
    then = time.time_ns() - HOUR_NS + 12_345
    os.utime(directory, ns=(then, then))


def is_asked_again(watch: DirectoryWatch) -> bool:
    changed = watch.may_have_changed()
    watch.confirm_listing()
    return changed


def test_a_directory_is_listed_again_only_where_it_may_have_changed(tmp_path: Path) -> None:
    settle(tmp_path)
    watch = DirectoryWatch([tmp_path])
    assert [is_asked_again(watch) for _ in range(3)] == [True, False, False]
    (tmp_path / "new").touch()
    assert is_asked_again(watch)
    assert is_asked_again(watch)  # another change could have the same time
    settle(tmp_path)
    assert [is_asked_again(watch) for _ in range(2)] == [True, False]


def test_a_time_without_fractions_is_trusted_later(tmp_path: Path) -> None:
    watch = DirectoryWatch([tmp_path])
    second = time.time_ns() // 10**9 * 10**9
    for age, is_trusted in ((0, False), (1, False), (4, True)):
        os.utime(tmp_path, ns=(second, second - age * 10**9))
        assert is_asked_again(watch)
        assert is_asked_again(watch) != is_trusted


def test_a_listing_that_failed_is_not_trusted(tmp_path: Path) -> None:
    queue = MappedFileQueue([tmp_path], 100)
    bad = tmp_path / "bad"
    bad.touch()
    settle(tmp_path)
    for _ in range(2):
        with pytest.raises(DamageError):
            queue.refresh_if_changed()


def test_a_file_that_is_being_created_is_seen_when_it_has_its_size(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    path.touch()
    settle(tmp_path)
    queue = MappedFileQueue([tmp_path], 100)
    queue.refresh_if_changed()
    os.truncate(path, 100)
    queue.refresh_if_changed()
    assert [file.length for file in queue.files] == [100]


def test_a_truncated_file_that_is_extended_in_place_is_seen(tmp_path: Path) -> None:
    path = tmp_path / file_name(0)
    path.write_bytes(bytes(100))
    settle(tmp_path)
    queue = MappedFileQueue([tmp_path], 100)
    assert queue.refresh_if_changed()
    os.truncate(path, 50)
    queue.refresh()
    os.truncate(path, 100)
    assert queue.refresh_if_changed()
    assert [file.length for file in queue.files] == [100]
    assert not queue.refresh_if_changed()


@pytest.mark.parametrize("is_newest", [True, False], ids=["newest", "older"])
def test_an_index_file_that_is_being_created_holds_nothing_yet(
    tmp_path: Path, is_newest: bool
) -> None:
    store_root = make_store(tmp_path / "store", numbered(200))
    output, view = tmp_path / "out", tmp_path / "view"
    dispatch_all(store_root, output, CONFIG)
    for name in ("consumequeue", "index"):
        shutil.copytree(output / name, view / name)  # as a broker's: the same files, no progress
    paths = sorted((view / "index").iterdir())
    name = int(paths[-1].name) + 1 if is_newest else int(paths[0].name) - 1
    new = view / "index" / str(name)
    with MessageStore.open(store_root, view) as s:
        expected = s.query_message("T", "all", 999)
        assert len(expected.messages) == 200
        new.touch()
        if is_newest:
            assert s.query_message("T", "all", 999) == expected
            os.truncate(new, paths[0].stat().st_size)
            assert s.query_message("T", "all", 999).messages == expected.messages
        else:
            with pytest.raises(DamageError, match="0 bytes"):
                s.query_message("T", "all", 999)


def replace_file(path: Path, content: bytes) -> None:
    """Replace this file with another by renaming."""
    other = path.with_name(f".{path.name}")
    other.write_bytes(content)
    other.replace(path)


@pytest.mark.parametrize("is_settled", [True, False], ids=["settled", "just made"])
def test_an_open_store_sees_files_that_come_and_go(tmp_path: Path, is_settled: bool) -> None:
    store_root, output = make_store(tmp_path / "store", numbered(120)), tmp_path / "out"
    dispatch_all(store_root, output, CONFIG)
    queue = output / "consumequeue/T/0"
    if is_settled:
        settle(store_root / "commitlog")
        settle(queue)
    with MessageStore.open(store_root, output) as s:
        assert s.max_offset_in_queue("T", 0) == 120
        make_store(store_root, numbered(200))  # the log grows, in its current file and by new files
        dispatch_all(store_root, output, CONFIG)
        assert offsets(s.get_message("T", 0, 119, 32).messages) == [119]  # its file ends there
        assert offsets(s.get_message("T", 0, 195).messages) == [195, 196, 197, 198, 199]
        content = (queue / file_name(0)).read_bytes()
        replace_file(queue / file_name(0), bytes(400))
        with pytest.raises(DamageError):
            s.get_message("T", 0, 0)
        replace_file(queue / file_name(0), content)
        assert offsets(s.get_message("T", 0, 0, 1).messages) == [0]
        (store_root / "commitlog" / file_name(0)).unlink()
        assert s.get_message("T", 0, 0).status == "OFFSET_TOO_SMALL"


def cut_queue(store_root: Path, output: Path) -> None:
    os.truncate(output / "consumequeue/T/0" / file_name(0), 20)


def cut_log(store_root: Path, output: Path) -> None:
    os.truncate(store_root / "commitlog" / file_name(0), FILE_SIZE // 4)


def cut_index(store_root: Path, output: Path) -> None:
    os.truncate(max((output / "index").iterdir()), 40)


@pytest.mark.parametrize("cut", [cut_queue, cut_log, cut_index])
def test_a_file_truncated_under_an_open_store_is_damage_not_a_crash(
    tmp_path: Path, cut: Callable[[Path, Path], None]
) -> None:
    store_root, output = make_store(tmp_path / "store", numbered(200)), tmp_path / "out"
    dispatch_all(store_root, output, CONFIG)
    for directory in (store_root / "commitlog", output / "consumequeue/T/0", output / "index"):
        settle(directory)
    with MessageStore.open(store_root, output) as s:
        assert len(s.get_message("T", 0, 0).messages) == 20
        assert s.query_message("T", "k199").messages
        cut(store_root, output)
        with pytest.raises(DamageError, match="bytes"):
            (s.query_message("T", "k199"), s.get_message("T", 0, 0))


def test_a_missing_file_is_damage_at_every_read(tmp_path: Path) -> None:
    store_root, output = make_store(tmp_path / "store", numbered(200)), tmp_path / "out"
    dispatch_all(store_root, output, CONFIG)
    queue = output / "consumequeue/T/0"
    with MessageStore.open(store_root, output) as s:
        assert s.max_offset_in_queue("T", 0) == 200
        (queue / file_name(400)).unlink()
        settle(queue)
        for _ in range(3):
            with pytest.raises(DamageError, match="missing"):
                s.get_message("T", 0, 0)


def test_not_all_files_are_kept_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "_MAPS_MAX", 3)
    store_root = make_store(tmp_path / "store", numbered(200))
    dispatch_all(store_root, tmp_path / "out", CONFIG)
    with MessageStore.open(store_root, tmp_path / "out") as s:
        for _ in range(2):
            for at in range(0, 200, 20):
                assert offsets(s.get_message("T", 0, at).messages) == list(range(at, at + 20))
        assert len(mapped_file._MAPPED) <= 3


def open_below(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    found = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [path for path in found if path.startswith(str(directory))]


def test_a_closed_store_has_no_file_open_before_garbage_is_collected(tmp_path: Path) -> None:
    make_store(tmp_path / "store", numbered(40))
    dispatch_all(tmp_path / "store", tmp_path / "out", CONFIG)
    gc.collect()
    gc.disable()
    try:
        with MessageStore.open(tmp_path / "store", tmp_path / "out") as store:
            assert offsets(store.get_message("T", 0, 0).messages)
            assert open_below(tmp_path)
        assert open_below(tmp_path) == []
    finally:
        gc.enable()
