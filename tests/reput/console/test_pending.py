"""The page of pending messages and its twin show what ``reput pending`` prints."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput.cli import run
from store.pending import find_pending
from tests.support.consoles import SECONDS, Console, console, source, wait_until
from tests.support.stores.written import corrupt

ARCHIVE = Path(__file__).parents[2] / "store" / "pending" / "stores" / "pending-5.3.3.tar.xz"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("pending")
    subprocess.run(["tar", "-xJf", ARCHIVE, "-C", parent], check=True)
    return parent / "pending-5.3.3" / "killed"


@pytest.fixture(scope="module")
def shown(store: Path) -> Iterator[Console]:
    with console(source(store)) as c:
        assert c.brokers["b"].pending.get(SECONDS) is not None
        yield c


@pytest.mark.parametrize(
    ("options", "params"),
    [
        ([], {}),
        (["--all"], {"state": "all"}),
        (["--overdue"], {"state": "overdue"}),
        (["--kind", "half"], {"kind": "half"}),
        (["--topic", "Orders"], {"topic": "Orders"}),
    ],
)
def test_messages_are_those_of_the_command(
    store: Path,
    shown: Console,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    params: dict[str, str],
) -> None:
    found = shown.api("b/pending", **params)
    as_of = str(found["as_of_ms"])
    assert run(["pending", str(store), "--json", "--as-of", as_of, *options]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == found["messages"]
    assert (len(rows), 1) == (found["total"], found["pages"])
    states = [row["state"] for row in rows]
    for state in set(states):
        assert states.count(state) == sum(row.get(state, 0) for row in found["summary"])


def test_the_page_links_each_message(shown: Console) -> None:
    (row, *_) = shown.api("b/pending", kind="timer")["messages"]
    html = shown.get("/brokers/b/pending", kind="timer").text
    assert row["uniq_key"] in html
    assert f"/brokers/b/messages/{row['commit_log_offset']}" in html


def test_a_topic_without_pending_messages_has_none(shown: Console) -> None:
    assert shown.api("b/pending", topic="none")["messages"] == []
    assert "No such message is pending" in shown.get("/brokers/b/pending", topic="none").text


@pytest.mark.parametrize("params", [{"kind": "pop"}, {"state": "x"}, {"page": "0"}, {"x": "1"}])
def test_a_malformed_parameter_is_refused(shown: Console, params: dict[str, str]) -> None:
    response = shown.get("/api/brokers/b/pending", **params)
    assert (400, next(iter(params))) == (response.status_code, response.json()["parameter"])


def test_damage_is_listed(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    subprocess.run(["cp", "-r", store, copy], check=True)
    (copy / "abort").unlink(missing_ok=True)
    corrupt(copy / "commitlog" / f"{0:020d}", 88)
    with console(source(copy)) as c:
        broker = c.brokers["b"]
        broker.pending.get(SECONDS)
        wait_until(lambda: not broker.pending.is_running)
        (damage,) = c.api("b/pending")["damage"]
        assert "at offset 0" in damage


def test_kinds_in_rocksdb_are_named(store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text((store / "broker.conf").read_text() + "timerRocksDBEnable=true\n")
    with console(source(store, broker_conf=conf)) as c:
        assert c.brokers["b"].pending.get(SECONDS) is not None
        answer = c.api("b/pending", state="all")
        assert {row["kind"] for row in answer["messages"]} == {"delay", "half"}
        (note,) = answer["left_out"]
        assert note in c.get("/brokers/b/pending").text


def test_a_filter_selects_once_for_all_pages_of_a_scan(
    shown: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    select = find_pending.wanted_rows
    monkeypatch.setattr(
        find_pending,
        "wanted_rows",
        lambda rows, wanted: made.append(wanted) or select(rows, wanted),
    )
    kinds = ("half", "timer", "delay")
    for kind in kinds * 2:
        for page in "12":
            shown.api("b/pending", kind=kind, state="all", page=page)
    assert [(*wanted.kinds,) for wanted in made] == [(kind,) for kind in kinds]
    for topic in "abcd":  # as many as are kept
        assert shown.api("b/pending", topic=topic)["total"] == 0
    shown.api("b/pending", kind="half", state="all")
    assert len(made) == len(kinds) + 4 + 1
