"""Symbolic links inside an OUTPUT: no file outside OUTPUT is deleted, written or moved."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.errors import StoreError, StoreIOError
from store.io.disk import Disk
from tests.checkpoints.conftest import CONFIG
from tests.support.dispatching import dispatch_all, tree
from tests.support.rebuilding import rebuild_all

STATE_FILES = ["reput/progress", "reput/batch", "reput/swap", "checkpoint", "abort", "lock"]
DIRECTORIES = [
    "reput",
    "reput/bulk",
    "reput/spark",
    "reput/spark/epoch-000001",
    "consumequeue",
    "consumequeue/TopicTest",
    "consumequeue/TopicTest/0",
    "index",
]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a directory that no command may change."""
    (tmp_path / "precious" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b", "00000000000000000000"):
        (tmp_path / "precious" / name).write_bytes(b"precious" * 200)
    return tmp_path / "precious"


def seen(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and the modification time of each file."""
    files = sorted(p for p in directory.rglob("*") if p.is_file())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def attempt(action: Callable[[], object]) -> None:
    """Perform an action, which may be refused."""
    with suppress(StoreError):
        action()


def start(output: Path, store: Path) -> None:
    owned = DispatchOutput.open(output, store, CONFIG)
    try:
        owned.new_epoch()
    finally:
        owned.close(clean=True)


@pytest.mark.parametrize("name", DIRECTORIES)
@pytest.mark.parametrize("is_made", [True, False])
def test_the_target_of_a_linked_directory_is_left_alone(
    output: Path, store: Path, precious: Path, name: str, is_made: bool
) -> None:
    if is_made:
        dispatch_all(store, output, CONFIG, max_bytes=3000)
        start(output, store)
    (output / name).parent.mkdir(parents=True, exist_ok=True)
    if (output / name).exists():
        os.rename(output / name, output.with_name("aside"))
    (output / name).symlink_to(precious)
    before = seen(precious)
    for action in (
        lambda: start(output, store),
        lambda: dispatch_all(store, output, CONFIG),
        lambda: rebuild_all(store, output, CONFIG),
        lambda: dispatch_all(store, output, CONFIG),
    ):
        attempt(action)
        assert seen(precious) == before


@pytest.mark.parametrize("name", [*STATE_FILES, "reput/progress.tmp", "consumequeue file"])
def test_the_target_of_a_linked_file_is_left_alone(
    output: Path, store: Path, precious: Path, name: str
) -> None:
    dispatch_all(store, output, CONFIG, max_bytes=3000)
    if name == "consumequeue file":
        path = max(p for p in (output / "consumequeue").rglob("*") if p.is_file())
        target = precious / "copy"
        target.write_bytes(path.read_bytes())
    else:
        path, target = output / name, precious / "a"
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    before = seen(precious)
    for action in (
        lambda: start(output, store),
        lambda: dispatch_all(store, output, CONFIG),
        lambda: rebuild_all(store, output, CONFIG),
    ):
        attempt(action)
        assert seen(precious) == before


def test_an_output_that_is_a_link_itself_is_followed(
    output: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    output.symlink_to(tmp_path / "disk")
    dispatch_all(store, output, CONFIG)
    rebuild_all(store, output, CONFIG)
    assert "reput/progress" in tree(tmp_path / "disk")


CHANGES: list[Callable[[Disk, Path], object]] = [
    lambda disk, path: disk.create(path / "new", 4),
    lambda disk, path: disk.write(path / "a", 0, b"x"),
    lambda disk, path: disk.put(path / "a", [b"x"]),
    lambda disk, path: disk.replace(path / "a", b"x"),
    lambda disk, path: disk.zero(path / "a", 0),
    lambda disk, path: disk.move(path / "a", path.parent / "b"),
    lambda disk, path: disk.move(path.parent / "f", path / "f"),
    lambda disk, path: disk.move(path, path.parent / "b"),
    lambda disk, path: disk.remove(path / "a"),
    lambda disk, path: disk.remove_directory(path / "sub"),
    lambda disk, path: disk.remove_directory(path),
    lambda disk, path: disk.remove_tree(path / "sub"),
    lambda disk, path: disk.make_directory(path / "sub" / "new"),
    lambda disk, path: disk.write(path.parent / "file", 0, b"x"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_nothing_is_changed_through_a_link(tmp_path: Path, precious: Path, number: int) -> None:
    output = tmp_path / "root"
    (output / "d").mkdir(parents=True)
    (output / "d" / "f").write_bytes(b"ours")
    (output / "d" / "link").symlink_to(precious)
    (output / "d" / "file").symlink_to(precious / "a")
    disk, before = Disk(output), seen(precious)
    with pytest.raises(StoreIOError, match=r"symbolic link|Not a directory"):
        CHANGES[number](disk, output / "d" / "link")
    assert seen(precious) == before
    disk.close()


def test_a_link_is_deleted_as_a_link(tmp_path: Path, precious: Path) -> None:
    output = tmp_path / "root"
    output.mkdir()
    disk, before = Disk(output), seen(precious)
    for name, remove in (("tree", disk.remove_tree), ("file", disk.remove)):
        (output / name).symlink_to(precious)
        remove(output / name)
        assert not (output / name).is_symlink()
    assert seen(precious) == before


def test_other_files_beside_the_epochs_are_kept(output: Path, store: Path) -> None:
    start(output, store)
    spark = output / "reput" / "spark"
    for name in (".nfs0001", "epoch-x", "epoch-"):
        (spark / name).write_bytes(b"foreign")
    (spark / "other-7").mkdir()
    start(output, store)
    names = sorted(path.name for path in spark.iterdir())
    assert names == [".nfs0001", "epoch-", "epoch-000002", "epoch-x", "other-7"]
