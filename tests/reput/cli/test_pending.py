"""``reput pending``: output, exit codes, conditions."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import run
from tests.logs.build import Message, build_log, write_log
from tests.support.stores.written import corrupt

FILE_SIZE = 4096
START = 1_700_000_000_000  # 2023-11-14T22:13:20Z
COUNT = 40

Ran = tuple[int, str, str]
Reput = Callable[..., Ran]


@pytest.fixture
def reput(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Reput:
    monkeypatch.setenv("TZ", "UTC")

    def call(*arguments: object) -> Ran:
        code = run(["pending", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of delayed messages, due one per second; the first was delivered."""
    delayed = [
        Message(
            "SCHEDULE_TOPIC_XXXX",
            0,
            n,
            properties=[("UNIQ_KEY", f"u{n}"), ("REAL_TOPIC", "TU"[n % 2]), ("REAL_QID", "1")],
            store_timestamp=START + 1000 * n,
        )
        for n in range(COUNT)
    ]
    delivered = Message("T", 1, properties=[("UNIQ_KEY", "u0")], store_timestamp=START + 1000)
    write_log(build_log([*delayed, delivered], FILE_SIZE), tmp_path / "commitlog")
    (tmp_path / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return tmp_path


def keys(out: str) -> list[str]:
    return [json.loads(line)["uniq_key"] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(1, COUNT)),
        (["--all"], range(COUNT)),
        (["--overdue"], range(1, 10)),
        (["--topic", "U"], range(1, COUNT, 2)),
        (["--topic", "U", "--topic", "T"], range(1, COUNT)),
        (["--kind", "delay", "--kind", "half"], range(1, COUNT)),
        (["--due-before", START + 4000], range(1, 3)),
    ],
)
def test_conditions_select_messages(
    reput: Reput, store: Path, options: list[object], expected: range
) -> None:
    code, out, err = reput(store, "--as-of", START + 10_001, "--json", *options)
    assert (code, err) == (0, "")
    assert [f"u{n}" for n in expected] == keys(out)


def test_a_message_is_one_json_object(reput: Reput, store: Path) -> None:
    _, out, _ = reput(store, "--as-of", START, "--json", "--due-before", START + 2001)
    (row,) = map(json.loads, out.splitlines())
    assert row.pop("commit_log_offset") > 0
    assert row == {
        "kind": "delay", "state": "waiting", "topic": "U", "queue_id": 1, "uniq_key": "u1",
        "keys": None, "store_timestamp": START + 1000, "due_timestamp": START + 2000,
        "delivered_commit_log_offset": None, "checks": None,
    }  # fmt: skip


def test_tables_show_messages_and_their_count_by_topic_and_hour(reput: Reput, store: Path) -> None:
    code, out, err = reput(store, "--as-of", START + 10_001, "--all")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0] == ["pending", "messages"]
    assert sum(line[0] == "delay" for line in lines) == COUNT
    summary = lines[lines.index(["by", "topic", "and", "hour"]) :]
    assert [[line[0], *line[2:]] for line in summary if line[0] in ("T", "U")] == [
        ["T", "15", "4", "1"],
        ["U", "15", "5"],
    ]


def test_without_an_answer_the_exit_code_is_1(reput: Reput, store: Path) -> None:
    code, out, err = reput(store, "--kind", "timer")
    assert (code, out) == (1, "")
    assert err.startswith("no such message is pending\n")
    code, out, _ = reput(store, "--kind", "timer", "--json")
    assert (code, json.loads(out)["status"]) == (1, "NOT_FOUND")


def test_damage_is_passed_and_exits_with_3(reput: Reput, store: Path) -> None:
    everything = keys(reput(store, "--json")[1])
    corrupt(store / "commitlog" / f"{FILE_SIZE:020d}", 88)
    code, out, err = reput(store, "--json")
    assert code == 3
    assert f"at offset {FILE_SIZE}: " in err
    assert len(keys(out)) == len(everything) - 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "pop"], "--kind 'pop' is not one of delay, timer, half"),
        (["--due-before", "-2x"], "nor relative"),
        (["--as-of", "soon"], "--as-of"),
    ],
)
def test_a_malformed_option_is_refused(
    reput: Reput, store: Path, options: list[str], words: str
) -> None:
    code, out, err = reput(store, *options)
    assert (code, out) == (2, "")
    assert words in err


def test_an_older_delay_offset_file_is_reported(reput: Reput, store: Path) -> None:
    (store / "config").mkdir()
    (store / "config" / "delayOffset.json").write_text("")
    (store / "config" / "delayOffset.json.bak").write_text('{"offsetTable":{1:3}}')
    code, out, err = reput(store, "--json", "--all")
    assert code == 0
    assert "read from delayOffset.json.bak instead, which is older" in err
    assert len(out.splitlines()) == COUNT
