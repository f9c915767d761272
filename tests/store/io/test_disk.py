"""The only module that changes files: what each operation does, and how it fails."""

import errno
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.errors import OutputInUseError, StoreIOError
from store.io.disk import Disk
from store.io.disk_primitives import DiskPrimitives
from tests.support.dispatching import tree

PRIMITIVES = (
    "_create",
    "_ftruncate",
    "_pwrite",
    "_fsync",
    "_fsync_directory",
    "_syncfs",
    "_rename",
    "_unlink",
    "_mkdir",
    "_rmdir",
)
MIB = 1 << 20


class CountingDisk(Disk):
    """Records the primitives called, and fails a chosen one."""

    sync_threads = 1

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.fails = fails
        self.calls: list[str] = []


def recorded(name: str) -> Callable[..., Any]:
    """Return a primitive that records the call, then fails or calls the disk's own."""

    def primitive(self: CountingDisk, *arguments: object) -> object:
        self.calls.append(name)
        if self.fails == name:
            raise OSError(errno.EIO, "Input/output error")
        return getattr(Disk, name)(self, *arguments)

    return primitive


for _name in PRIMITIVES:
    setattr(CountingDisk, _name, recorded(_name))


class SlowDisk(Disk):
    """Writes a few bytes at a time, as near a quota, with interrupts in between."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.is_interrupted = False

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.is_interrupted = not self.is_interrupted
        if self.is_interrupted and self.most:
            raise InterruptedError(errno.EINTR, "Interrupted system call")
        return super()._pwrite(fd, data[: self.most], offset)


def test_every_primitive_is_listed_here() -> None:
    assert list(PRIMITIVES) == [
        name for name, value in vars(DiskPrimitives).items() if inspect.isfunction(value)
    ]


# --- Files written whole, and excluded from sync -------------------------------------------------


def test_put_writes_a_whole_file_and_replaces_another(tmp_path: Path) -> None:
    (tmp_path / f"f.{os.getpid()}.tmp").write_bytes(b"of a process that was killed")
    for pieces in ([b"1", b"23"], [b"4"], []):
        Disk().put(tmp_path / "f", pieces)
        assert (tmp_path / "f").read_bytes() == b"".join(pieces)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_directory_excluded_from_sync_is_not_synced(tmp_path: Path) -> None:
    disk, built = CountingDisk(), tmp_path / "built"
    disk.defer_sync(built)
    disk.create(built / "a" / "f", 10)
    disk.write(built / "a" / "f", 0, b"x")
    disk.replace(built / "state", b"1")
    disk.sync()
    assert "_fsync" not in disk.calls
    disk.replace(tmp_path / "built-too", b"1")
    assert disk.calls.count("_fsync") == 1
    disk.defer_sync(None)
    disk.calls.clear()
    disk.write(built / "a" / "f", 1, b"y")
    disk.sync()
    assert disk.calls == ["_pwrite", "_fsync"]
    disk.close()


# --- Writes ------------------------------------------------------------------------------------


def test_a_short_or_interrupted_write_is_continued(tmp_path: Path) -> None:
    disk = SlowDisk(3)
    disk.create(tmp_path / "f", 20)
    disk.write(tmp_path / "f", 5, b"0123456789")
    disk.replace(tmp_path / "g", b"abcdefgh")
    disk.close()
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"0123456789" + bytes(5)
    assert (tmp_path / "g").read_bytes() == b"abcdefgh"


def test_a_write_of_no_bytes_means_a_full_disk(tmp_path: Path) -> None:
    disk = SlowDisk(0)
    disk.create(tmp_path / "f", 20)
    with pytest.raises(StoreIOError, match=r"cannot write .*f: nothing more") as caught:
        disk.write(tmp_path / "f", 0, b"x")
    assert caught.value.errno == errno.ENOSPC
    disk.close()


@pytest.mark.parametrize("leftover", [b"", b"much longer than what is to be written"])
def test_replace_ignores_the_remains_of_a_temporary_file(tmp_path: Path, leftover: bytes) -> None:
    (tmp_path / "f.tmp").write_bytes(leftover)
    Disk().replace(tmp_path / "f", b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("f", b"new")]


def test_a_write_after_replace_goes_to_the_new_file(tmp_path: Path) -> None:
    disk = Disk()
    disk.create(tmp_path / "f", 4)
    disk.write(tmp_path / "f", 0, b"old!")
    disk.replace(tmp_path / "f", b"new!")
    disk.write(tmp_path / "f", 0, b"N")
    disk.sync()
    disk.close()
    assert (tmp_path / "f").read_bytes() == b"New!"


# --- Zeros -------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [0, 1, 4095, 4096, MIB - 1, 3 * MIB + 7, 8 * MIB, 9 * MIB])
def test_zero_keeps_the_bytes_before_begin(tmp_path: Path, begin: int) -> None:
    path, size = tmp_path / "f", 8 * MIB
    content = bytearray(size)
    for at in (0, 4000, MIB - 10, 3 * MIB, 5 * MIB + 123, size - 20):
        content[at : at + 20] = b"x" * 20
    disk = Disk()
    disk.create(path, size)
    for at in range(0, size, 4096):
        if any(content[at : at + 4096]):
            disk.write(path, at, content[at : at + 4096])
    disk.zero(path, begin)
    disk.sync()
    disk.close()
    assert path.read_bytes() == bytes(content[:begin]).ljust(size, b"\0")


def test_zero_reads_and_writes_no_holes_and_no_zeros(tmp_path: Path) -> None:
    path, size = tmp_path / "f", 1 << 40
    disk = CountingDisk()
    disk.create(path, size)
    disk.write(path, 1 << 39, b"x" * 3 * MIB)
    disk.write(path, size - 4096, bytes(4096))
    disk.calls.clear()
    disk.zero(path, 100)
    assert 3 <= len(disk.calls) <= 4
    disk.zero(path, 100)
    disk.sync()
    assert disk.calls.count("_pwrite") <= 4
    disk.close()
    assert (path.stat().st_size, tree(tmp_path)["f"].pages) == (size, {})
    assert path.stat().st_blocks * 512 <= 4 * MIB


def test_existing_zeros_are_synced_too(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(10))
    disk = CountingDisk()
    disk.zero(tmp_path / "f", 0)
    disk.sync()
    disk.close()
    assert disk.calls == ["_fsync", "_fsync_directory"]


def test_zero_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreIOError, match=r"cannot write .*missing.*No such file"):
        Disk().zero(tmp_path / "missing", 0)


# --- Deletions ---------------------------------------------------------------------------------


def test_remove_directory_deletes_only_an_empty_one(tmp_path: Path) -> None:
    disk = CountingDisk()
    disk.create(tmp_path / "a" / "b" / "f", 1)
    disk.remove_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "f").exists()
    disk.remove(tmp_path / "a" / "b" / "f")
    disk.remove_directory(tmp_path / "a" / "b")
    disk.remove_directory(tmp_path / "a" / "b")
    disk.remove_directory(tmp_path / "a")
    disk.remove_directory(tmp_path / "a" / "b")
    disk.calls.clear()
    disk.sync()
    assert disk.calls == ["_fsync_directory"]
    assert list(tmp_path.iterdir()) == []
    disk.close()


def test_remove_directory_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(StoreIOError, match="cannot delete"):
        Disk().remove_directory(tmp_path / "f")


@pytest.mark.parametrize("whole", [True, False])
def test_files_deleted_before_sync_are_not_synced(tmp_path: Path, whole: bool) -> None:
    disk = Disk()
    disk.create(tmp_path / "kept", 1)
    disk.create(tmp_path / "a" / "b" / "f", 1)
    disk.create(tmp_path / "ab", 1)
    if whole:
        disk.remove_tree(tmp_path / "a")
    else:
        disk.remove(tmp_path / "a" / "b" / "f")
        disk.remove_directory(tmp_path / "a" / "b")
        disk.remove_directory(tmp_path / "a")
    disk.remove(tmp_path / "a" / "b" / "f")
    disk.sync()
    disk.create(tmp_path / "a" / "b" / "f", 2)
    disk.write(tmp_path / "a" / "b" / "f", 0, b"xy")
    disk.sync()
    disk.close()
    assert {n: c.size for n, c in tree(tmp_path).items()} == {"a/b/f": 2, "ab": 1, "kept": 1}


def test_a_deletion_by_another_process_is_synced(tmp_path: Path) -> None:
    disk = CountingDisk()
    disk.remove(tmp_path / "missing")
    disk.sync()
    assert disk.calls == ["_unlink", "_fsync_directory"]


def test_changes_by_another_process_in_a_directory_are_synced(tmp_path: Path) -> None:
    disk = CountingDisk()
    disk.include_in_sync(tmp_path)
    disk.include_in_sync(tmp_path / "missing")
    disk.sync()
    assert disk.calls == ["_fsync_directory"]


def test_remove_tree_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "f").touch()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "g").touch()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nowhere")
    disk = CountingDisk()
    disk.remove_tree(tmp_path / "a")
    assert sorted(disk.calls) == ["_rmdir"] * 2 + ["_unlink"] * 3
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["kept", "kept/f"]
    with pytest.raises(StoreIOError, match="cannot delete"):
        disk.remove_tree(tmp_path / "a")


def test_existing_directories_of_a_locked_output_are_synced_too(tmp_path: Path) -> None:
    top = tmp_path / "root"
    (top / "a" / "b").mkdir(parents=True)  # by a process that was killed before its sync
    disk = CountingDisk()
    handle = disk.lock(top / "lock", b"lock")
    disk.sync()
    disk.calls.clear()
    for name in ("f", "g"):
        disk.create(top / "a" / "b" / name, 1)
        disk.sync()
    per_file = ["_create", "_ftruncate", "_fsync"]
    first, then = ["_fsync_directory"] * 3, ["_fsync_directory"]  # top, a and b; b alone
    assert disk.calls == [*per_file, *first, *per_file, *then]
    disk.close()
    disk.unlock(handle)


# --- Failures ----------------------------------------------------------------------------------


def work(disk: Disk, top: Path) -> None:
    """Perform each operation of a disk once."""
    handle = disk.lock(top / "lock", b"lock")
    try:
        disk.create(top / "a" / "f", 10)
        disk.write(top / "a" / "f", 0, b"x")
        disk.zero(top / "a" / "f", 0)
        disk.replace(top / "state", b"1")
        disk.make_directory(top / "tree" / "b")
        disk.remove_tree(top / "tree")
        disk.remove(top / "a" / "f")
        disk.remove_directory(top / "a")
        disk.create(top / "g", 10)
        disk.put(top / "record", [b"1", b"2"])
        disk.sync()
        disk.sync_all(top)
    finally:
        disk.close()
        disk.unlock(handle)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_an_error_names_action_and_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreIOError, match=r"cannot \w+ .*: Input/output error") as caught:
        work(CountingDisk(fails=name), tmp_path / "root")
    assert caught.value.path.is_relative_to(tmp_path)
    assert caught.value.errno == errno.EIO
    descriptors = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert [d for d in descriptors if d.startswith(str(tmp_path))] == []
    (tmp_path / "again").mkdir()
    work(Disk(), tmp_path / "again")


def test_a_lock_of_another_process_means_output_in_use(tmp_path: Path) -> None:
    disk = Disk()
    handle = disk.lock(tmp_path / "lock", b"lock")
    with pytest.raises(OutputInUseError):
        disk.lock(tmp_path / "lock", b"lock")
    disk.unlock(handle)
    assert (tmp_path / "lock").read_bytes() == b"lock"
    disk.unlock(disk.lock(tmp_path / "lock", b"other"))
    assert (tmp_path / "lock").read_bytes() == b"lock"
