"""What the commands refuse as OUTPUT: exit code 2, and nothing is written."""

from pathlib import Path

import pytest

from reput.cli import run
from tests.support.verify_stores import messages, write_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(tmp_path, messages(5))


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    "command", ["dispatch", "rebuild", "recover", "status", "verify", "topics", "get", "query"]
)
def test_an_empty_path_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = {"get": ["--topic", "T", "--queue", "0", "--offset", "0"], "query": ["--topic", "T"]}
    more["query"] += ["--key", "k"]
    before = names(store)
    assert run([command, str(store), "--output", "", *more.get(command, [])]) == 2
    assert run([command, "", "--output", str(store), *more.get(command, [])]) == 2
    err = capsys.readouterr().err
    assert err.count("the path '' is empty") == 2
    assert names(store) == before


@pytest.mark.parametrize("command", ["rebuild", "dispatch", "recover"])
@pytest.mark.parametrize("where", ["web", "store/commitlog", "store/commitlog/sub/..", "."])
def test_a_foreign_directory_is_refused(
    store: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    where: str,
) -> None:
    (tmp_path / "web" / "index").mkdir(parents=True)
    (tmp_path / "web" / "consumequeue").mkdir()
    (tmp_path / "web" / "index" / "index.html").write_bytes(b"x")
    before = names(tmp_path)
    more = ["--available-now"] if command == "dispatch" else []
    assert run([command, str(store), "--output", str(tmp_path / where), *more]) == 2
    assert capsys.readouterr().err.count("OUTPUT") >= (where != "store/commitlog/sub/..")
    assert names(tmp_path) == before


def test_a_demo_writes_into_no_foreign_directory(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "broker.conf").write_bytes(b"brokerName=mine\n")
    assert run(["demo", "--directory", str(tmp_path)]) == 2
    assert run(["demo", "--directory", ""]) == 2
    assert names(tmp_path) == ["store", "store/broker.conf"]
    assert (tmp_path / "store" / "broker.conf").read_bytes() == b"brokerName=mine\n"
