"""Entries named like a store's file but not readable regular files: errors that name them."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import run
from store.commitlog.commit_log import CommitLog
from store.errors import StoreIOError
from store.index.file import list_index_files
from store.io.mapped_file import MappedFileQueue, file_name
from tests.logs.build import build_log, write_log
from tests.support.stores.displaced import make
from tests.support.stores.displaced import numbered as odd
from tests.support.stores.numbered import CONFIG, numbered

NAME = file_name(0)
ENTRIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "dangling": (lambda p: p.symlink_to("/not/mounted"), "does not exist .*: /not/mounted$"),
    "loop": (lambda p: p.symlink_to(p.name), "Too many levels of symbolic links"),
    "fifo": (os.mkfifo, "not a regular file"),
    "device": (lambda p: p.symlink_to("/dev/zero"), "not a regular file"),
    "self": (lambda p: p.symlink_to("."), "not a regular file"),
    "directory": (os.mkdir, "not a regular file"),
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write_log(build_log(numbered(200), CONFIG.mapped_file_size_commit_log), tmp_path / "log")
    assert len(list((tmp_path / "log").iterdir())) > 1
    return tmp_path / "log"


@pytest.mark.parametrize("kind", ENTRIES)
@pytest.mark.parametrize("at", [0, 1, -1])
def test_an_entry_of_the_log_is_never_skipped_and_the_others_are_read(
    log: Path, kind: str, at: int
) -> None:
    make_entry, reason = ENTRIES[kind]
    paths = sorted(log.iterdir())
    path = paths[at]
    opened, unchanged = CommitLog([log], CONFIG), CommitLog([log], CONFIG)
    path.rename(log.with_name("keep"))
    make_entry(path)
    opened.refresh()
    unchanged.refresh_if_changed()
    for read in (CommitLog([log], CONFIG), opened, unchanged):
        assert [file.path for file in read.files] == paths
        other = read.files[1 if at == 0 else 0]
        assert read.message(other.base).commit_log_offset == other.base
        for fail in (read.message, read.find_pinned):
            with pytest.raises(StoreIOError, match=reason) as raised:
                fail(int(path.name))
            assert raised.value.path == path
        if at == -1:  # the log's end is in it
            with pytest.raises(StoreIOError, match=reason):
                read.max_offset()
    path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    log.with_name("keep").rename(path)
    unchanged.refresh_if_changed()
    assert unchanged.message(int(path.name)).commit_log_offset == int(path.name)


def test_a_log_file_may_be_a_link(log: Path, tmp_path: Path) -> None:
    before = CommitLog([log], CONFIG).max_offset()
    path = min(log.iterdir())
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert CommitLog([log], CONFIG).min_offset() == 0
    assert CommitLog([log], CONFIG).max_offset() == before


def test_a_dangling_link_as_log_directory_is_an_error(log: Path) -> None:
    other = log.with_name("other")
    other.symlink_to("/not/mounted")
    with pytest.raises(StoreIOError, match="does not exist") as raised:
        CommitLog([log, other], CONFIG)
    assert raised.value.path == other


@pytest.mark.parametrize("name", [".copy", "notes"])
@pytest.mark.parametrize("kind", ["dangling", "fifo", "directory"])
def test_other_names_are_skipped(log: Path, name: str, kind: str) -> None:
    before = CommitLog([log], CONFIG).max_offset()
    ENTRIES[kind][0](log / name)
    assert CommitLog([log], CONFIG).max_offset() == before


@pytest.mark.parametrize("kind", [*ENTRIES, "link"])
def test_queue_and_index_files_must_not_be_links(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    for name, read in (
        (NAME, lambda: MappedFileQueue([tmp_path / "index"], 100)),
        ("2" * 17, lambda: list_index_files(tmp_path)),
    ):
        path = tmp_path / "index" / name
        path.parent.mkdir()
        if kind == "link":
            path.symlink_to(tmp_path / "file")
        else:
            ENTRIES[kind][0](path)
        is_link = kind not in {"fifo", "directory"}
        with pytest.raises(StoreIOError, match="symbolic link" if is_link else "regular") as raised:
            read()
        assert raised.value.path == path
        shutil.rmtree(tmp_path / "index")


def test_a_dangling_log_file_has_not_expired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, output = make(tmp_path / "store", odd(*range(100))), str(tmp_path / "out")
    assert run(["rebuild", store, "--output", output]) == 0
    path = min((tmp_path / "store" / "commitlog").iterdir())
    path.rename(tmp_path / "keep")
    path.symlink_to("/not/mounted")
    capfd.readouterr()
    for arguments in (
        ["rebuild", store, "--output", output],
        ["verify", store, "--output", output],
        ["message", store, "--commit-log-offset", "0"],
        ["get", store, "--topic", "T", "--queue", "0", "--offset", "0"],
    ):
        assert run(arguments) == 6, arguments
        error = capfd.readouterr().err
        assert str(path) in error, arguments
        assert "a symbolic link whose target does not exist" in error, arguments
    path.unlink()
    (tmp_path / "keep").rename(path)
    assert run(["verify", store, "--output", output]) == 0


@pytest.mark.parametrize("kind", ENTRIES)
def test_an_entry_costs_a_search_its_own_messages_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    store = make(tmp_path / "store", odd(*range(100)))
    assert run(["search", store, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    path = sorted((tmp_path / "store" / "commitlog").iterdir())[1]
    size = int(path.name)  # the second file begins where the first one ends
    others = [m["commit_log_offset"] for m in found if m["commit_log_offset"] // size != 1]
    assert 0 < len(others) < len(found)
    path.unlink()
    ENTRIES[kind][0](path)
    for order in ([], ["--newest-first"]):
        assert run(["search", store, "--json", *order]) == 3
        out, error = capsys.readouterr()
        offsets = [json.loads(line)["commit_log_offset"] for line in out.splitlines()]
        assert sorted(offsets) == others
        assert str(path) in error
    assert run(["usage", store, "--json"]) == 3
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["messages"] for row in rows if row["row"] == "kind") == len(others)


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
