"""``reput message`` and times: valid ids, body files and times, and the messages about others."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput.cli import run
from store.config import BrokerVersion
from store.layout import SYS_FLAG_AT, SYS_INNER_BATCH
from tests.support.stores.displaced import CONFIG, make, numbered

AT = ("--commit-log-offset", "0")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return make(tmp_path / "store", numbered(*range(5)))


def test_a_body_is_written_to_a_new_file(store: str, tmp_path: Path) -> None:
    assert run(["message", store, *AT, "--body-to", str(tmp_path / "body")]) == 0
    assert (tmp_path / "body").stat().st_size > 0


OCCUPIED: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "file": lambda path: path.write_bytes(b"precious"),
    "directory": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/full"),
    "dangling link": lambda path: path.symlink_to("elsewhere"),
}


@pytest.mark.parametrize("kind", OCCUPIED)
def test_a_body_is_written_to_new_files_only(
    store: str, tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "body"
    OCCUPIED[kind](path)
    before = path.lstat()
    assert run(["message", store, *AT, "--body-to", str(path)]) == 2
    assert f"--body-to {path} already exists" in capfd.readouterr().err
    after = path.lstat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert not (tmp_path / "elsewhere").exists()


def test_an_empty_path_is_refused(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["message", store, *AT, "--body-to", ""]) == 2
    assert "is empty" in capfd.readouterr().err


@pytest.mark.parametrize(("version", "code"), [("5.3.3", 5), ("4.9.4", 0)])
def test_an_inner_batch_is_refused_where_brokers_have_them(
    tmp_path: Path, version: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    store = make(
        tmp_path / "store", numbered(0), replace(CONFIG, version=BrokerVersion.parse(version))
    )
    with (tmp_path / "store" / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(SYS_FLAG_AT)
        log.write(SYS_INNER_BATCH.to_bytes(4, "big"))
    assert run(["message", store, *AT]) == code
    assert ("at offset 0: an inner batch (a BatchCQ topic)" in capfd.readouterr().err) == bool(code)
    assert run(["get", store, "--topic", "T", "--queue", "0", "--offset", "0"]) == code


@pytest.mark.parametrize("unique_key", ["0A" * 8 + "F" * 16, "7F000001" * 4, "ab" * 28])
def test_a_unique_key_is_not_a_message_id(
    store: str, unique_key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["message", store, "--id", unique_key]) == 1
    err = capfd.readouterr().err
    assert f"{unique_key} is not the message id of a message in this store" in err
    assert f"reput query --topic T --key {unique_key}" in err
    assert "offset -" not in err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0001-01-01", "is out of range"),
        ("9" * 19, "is out of range"),
        ("-" + "9" * 5000, "is out of range"),
        ("soon", "is neither epoch milliseconds (64 bits) nor ISO 8601"),
        ("10000-01-01", "is neither epoch milliseconds (64 bits) nor ISO 8601"),
        ("１７", "is neither epoch milliseconds (64 bits) nor ISO 8601"),
    ],
)
@pytest.mark.usefixtures("berlin")
def test_a_refused_time_is_explained(
    store: str, text: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["offset", store, "--topic", "T", "--queue", "0", "--time", text]) == 2
    err = capfd.readouterr().err
    assert f"--time '{text[:120]}'" in err
    assert reason in err
