"""``reput usage``: output, exit codes, conditions."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import run
from store.config import load_config
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.support.stores.written import corrupt, make_store

Reput = Callable[..., tuple[int, str, str]]


@pytest.fixture
def reput(capsys: pytest.CaptureFixture[str]) -> Reput:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run(["usage", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("by", ["topic", "day", "queue", "tag", "host"])
def test_every_message_is_counted_once(reput: Reput, tmp_path: Path, by: str) -> None:
    make_store(tmp_path, 900)
    messages = list(LogSearch(tmp_path, load_config(tmp_path), MessageFilter()).messages())
    code, out, _ = reput(tmp_path, "--by", by, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    for kind in (by, "kind"):
        counted = [row for row in rows if row["row"] == kind]
        assert sum(row["messages"] for row in counted) == len(messages) == 900
        assert sum(row["bytes"] for row in counted) == sum(m.size for m in messages)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert sum(row["files"] for row in rows if row["row"] == "expiry") == len(files) - 1
    assert code == 0
    table = reput(tmp_path, "--by", by)[1]
    assert f"by {by}" in table
    assert "█" in table


def test_the_rows_can_be_limited(reput: Reput, tmp_path: Path) -> None:
    make_store(tmp_path, 900)
    _, out, err = reput(tmp_path, "--max", "1")
    assert "more rows: --max" in err
    assert sum("TopicA" in line for line in out.splitlines()) <= 1


def test_nothing_and_damage_have_their_exit_codes(reput: Reput, tmp_path: Path) -> None:
    make_store(tmp_path, 900)
    assert reput(tmp_path, "--topic", "Nope")[0] == 1
    assert reput(tmp_path, "--by", "size")[0] == 2
    corrupt(tmp_path / "commitlog" / f"{65536:020d}", 8)
    code, out, err = reput(tmp_path)
    assert (code, "at offset 65536" in err, "by topic" in out) == (3, True, True)
