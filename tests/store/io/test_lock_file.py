"""The lock of an OUTPUT belongs to a file, by whichever path the process reaches it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Locks the first path, asks for it and takes it by the second, then asks from another process.
SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from store.errors import OutputInUseError
from store.io.disk import Disk
from store.io.lock_file import find_owner

first, second = map(Path, sys.argv[1:])
disk = Disk()
handle = disk.lock(first, b"lock")
assert find_owner(second) == os.getpid(), "owner by the second path"
try:
    Disk().lock(second, b"lock")
except OutputInUseError as e:
    assert str(second) in str(e), e
else:
    raise AssertionError("locked twice")
code = "import sys; from pathlib import Path; from store.io.lock_file import find_owner; "
code += "print(find_owner(Path(sys.argv[1])))"
ask = [sys.executable, "-c", code, str(first)]
elsewhere = subprocess.run(ask, check=True, capture_output=True, text=True).stdout
assert elsewhere.strip() == str(os.getpid()), "the lock was released: " + elsewhere
disk.unlock(handle)
assert find_owner(second) is None
disk.unlock(disk.lock(second, b"lock"))
"""
COMMAND = [sys.executable, "-c", SCRIPT]
MOUNT = ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]


def directories(directory: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (directory / name).mkdir()
    return directory / "a", directory / "b"


def by_parent(directory: Path) -> tuple[Path, Path]:
    first, second = directories(directory)
    return first / "lock", second / ".." / "a" / "lock"


def by_link(directory: Path) -> tuple[Path, Path]:
    first, _ = directories(directory)
    (directory / "link").symlink_to(first)
    return first / "lock", directory / "link" / "lock"


def by_hard_link(directory: Path) -> tuple[Path, Path]:
    first, second = directories(directory)
    (first / "lock").write_bytes(b"lock")
    os.link(first / "lock", second / "lock")
    return first / "lock", second / "lock"


@pytest.mark.parametrize("paths", [by_parent, by_link, by_hard_link])
def test_a_lock_is_kept_whichever_path_the_process_asks_by(
    tmp_path: Path, paths: Callable[[Path], tuple[Path, Path]]
) -> None:
    subprocess.run([*COMMAND, *map(str, paths(tmp_path))], check=True)


def test_a_lock_is_kept_if_the_process_asks_through_a_bind_mount(tmp_path: Path) -> None:
    first, second = directories(tmp_path)
    mounted = [*MOUNT, str(first), str(second)]
    can_mount = subprocess.run([*mounted, "true"], capture_output=True, text=True, check=False)
    if can_mount.returncode != 0:
        reason = can_mount.stderr.strip()
        pytest.skip(f"NOT TESTED: a lock through a bind mount; mounting one failed: {reason}")
    paths = [str(first / "lock"), str(second / "lock")]
    subprocess.run([*mounted, *COMMAND, *paths], check=True)
