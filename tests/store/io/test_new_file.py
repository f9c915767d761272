"""New files: whole or not at all, and nothing else in the directory changes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import StoreIOError
from store.io.new_file import write_new_file

LIMITED = """
import resource, signal, sys
from pathlib import Path
from store.errors import StoreIOError
from store.io.new_file import write_new_file

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_new_file(Path(sys.argv[1]), [bytes(5000)])
except StoreIOError as e:
    print(e)
"""


def refuse_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.fixture(params=["hard links", "no hard links"])
def directory(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a directory with files of a user, on a file system with or without hard links."""
    if request.param == "no hard links":
        monkeypatch.setattr(os, "link", refuse_links)
    for name in ("f.tmp", ".f.tmp", f"f.{os.getpid()}.tmp"):
        (tmp_path / name).write_text("precious")
    return tmp_path


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_new_file_changes_nothing_else(directory: Path) -> None:
    before, mask = content(directory), os.umask(0o027)
    try:
        write_new_file(directory / "f", [b"new"])
    finally:
        os.umask(mask)
    assert content(directory) == before | {"f": b"new"}
    status = (directory / "f").stat()
    assert (status.st_mode & 0o777, status.st_nlink) == (0o640, 1)


def test_a_file_created_meanwhile_is_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(directory)
    monkeypatch.setattr(os, "fsync", lambda _: (directory / "f").write_text("theirs"))
    with pytest.raises(FileExistsError):
        write_new_file(directory / "f", [b"ours"])
    assert content(directory) == before | {"f": b"theirs"}


def test_a_link_that_leads_nowhere_is_not_followed(directory: Path) -> None:
    (directory / "f").symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        write_new_file(directory / "f", [b"new"])
    assert os.readlink(directory / "f") == "elsewhere"
    assert not (directory / "elsewhere").exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.tmp").write_text("precious")
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "f")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"cannot write {tmp_path / 'f'}: File too large"), ran.stderr
    assert content(tmp_path) == {"f.tmp": b"precious"}


def test_a_directory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(StoreIOError, match=r"cannot write .*none/f: No such file or directory"):
        write_new_file(tmp_path / "none" / "f", [b"new"])
