"""`search`, `query` and `topics` of several stores: a broker for each row, failures by store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput.cli import run
from store.config import StoreConfig
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import corrupt
from tests.support.terminal import on_terminal

FILE_SIZE = 4096
START = 1_700_000_000_000  # 2023-11-14T22:13:20Z
NAMES = ("alpha", "beta", "gamma")
COUNT = 12  # messages in each store, one every three seconds, the stores one second apart
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=400, max_index_num=1000
)
CONF = f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=400\nmaxIndexNum=1000\n"

Ran = tuple[int, str, str]
Reput = Callable[..., Ran]


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    """Write three dispatched stores; the name of the second one is in its broker.conf."""
    stores = [tmp_path / "alpha", tmp_path / "folder", tmp_path / "gamma"]
    for at, store_root in enumerate(stores):
        messages = [
            Message(
                topic="T",
                queue_offset=n,
                body=f"{NAMES[at]} {n}".encode(),
                properties=[("KEYS", "common" if n % 2 else f"k{n}")],
                store_timestamp=START + 3000 * n + 1000 * at,
            )
            for n in range(COUNT)
        ]
        write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
        name = f"brokerName={NAMES[at]}\n" if at == 1 else ""
        (store_root / "broker.conf").write_text(CONF + name)
        dispatch_all(store_root, store_root, CONFIG)
    return stores


@pytest.fixture
def reput(capfd: pytest.CaptureFixture[str]) -> Reput:
    def call(*arguments: object) -> Ran:
        code = run(list(map(str, arguments)))
        return code, *capfd.readouterr()

    return call


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def bodies(text: str) -> list[str]:
    """Return the bodies of JSON lines, each of which must name its broker."""
    found = rows(text)
    assert [row["body"].split()[0] for row in found] == [row["broker"] for row in found]
    return [row["body"] for row in found]


def in_order(numbers: range) -> list[str]:
    return [f"{name} {n}" for n in numbers for name in NAMES]


def test_search_merges_the_stores_by_store_time(stores: list[Path], reput: Reput) -> None:
    code, out, errors = reput("search", *stores, "--json")
    assert (code, errors) == (0, "")
    assert bodies(out) == in_order(range(COUNT))
    code, out, errors = reput("search", *stores, "--json", "--newest-first", "--max", "5")
    assert (code, errors) == (0, "")
    assert bodies(out) == in_order(range(COUNT))[::-1][:5]


def test_a_search_of_one_store_has_no_broker(stores: list[Path], reput: Reput) -> None:
    code, out, _ = reput("search", f"x={stores[1]}", "--json")
    assert code == 0
    assert [row["body"] for row in rows(out)] == [f"beta {n}" for n in range(COUNT)]
    assert not any("broker" in row for row in rows(out))
    heading = reput("search", stores[1])[1].splitlines()[0]
    assert heading.split()[-1] == "body"


@pytest.mark.parametrize("newest_first", [False, True])
def test_damage_in_one_store_is_reported_and_the_others_are_searched(
    stores: list[Path], reput: Reput, newest_first: bool
) -> None:
    damaged = stores[1] / "commitlog" / f"{0:020d}"
    corrupt(damaged, 4)
    options = ["--newest-first"] if newest_first else []
    code, out, errors = reput("search", *stores, "--json", *options)
    assert code == 3
    others = [body for body in in_order(range(COUNT)) if body != "beta 0"]
    assert bodies(out) == others[:: -1 if newest_first else 1]
    assert f"reput: beta: damaged: {damaged} at offset 0" in errors


def test_a_store_that_cannot_be_opened_is_reported(
    stores: list[Path], reput: Reput, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    code, out, errors = reput("search", stores[0], missing, stores[2], "--json", "--max", "2")
    assert code == 2
    assert bodies(out) == ["alpha 0", "gamma 0"]
    assert f"reput: missing: {missing}" in errors
    code, out, errors = reput("query", stores[0], missing, "--topic", "T", "--key", "k2", "--json")
    assert (code, bodies(out)) == (2, ["alpha 2"])
    assert f"reput: missing: {missing}" in errors
    code, out, errors = reput("topics", stores[0], missing, "--json")
    assert (code, {row["broker"] for row in rows(out)}) == (2, {"alpha"})
    assert f"reput: missing: {missing}" in errors


def test_no_match_in_any_store_exits_with_1(stores: list[Path], reput: Reput) -> None:
    code, out, errors = reput("search", *stores, "--key", "none")
    assert (code, out) == (1, "")
    assert "no message matches" in errors
    code, out, errors = reput("query", *stores, "--topic", "T", "--key", "none")
    assert (code, out) == (1, "")
    assert "no message of topic 'T' with key 'none'" in errors


def test_query_keeps_the_newest_of_all_stores(stores: list[Path], reput: Reput) -> None:
    code, out, errors = reput("query", *stores, "--topic", "T", "--key", "common", "--json")
    assert (code, errors) == (0, "")
    odd = [body for n in range(1, COUNT, 2) for body in in_order(range(n, n + 1))]
    assert bodies(out) == odd
    options = ["--topic", "T", "--key", "common", "--json", "--max", "4"]
    code, out, errors = reput("query", *stores, *options)
    assert (code, bodies(out)) == (0, odd[-4:])
    assert "the newest 4 are shown, older ones were omitted" in errors


def test_query_reads_the_output_of_each_store(
    stores: list[Path], reput: Reput, tmp_path: Path
) -> None:
    for store in stores[:2]:
        dispatch_all(store, tmp_path / f"out-{store.name}", CONFIG)
    given = [f"{store}:{tmp_path}/out-{store.name}" for store in stores[:2]]
    code, out, _ = reput("query", *given, "--topic", "T", "--key", "k2", "--json")
    assert (code, bodies(out)) == (0, ["alpha 2", "beta 2"])
    code, _, errors = reput("query", *stores, "--topic", "T", "--key", "k", "--output", "out")
    assert code == 2
    assert "--output applies to one STORE" in errors


@pytest.mark.parametrize("command", ["search", "query", "topics"])
def test_two_stores_of_one_name_are_refused(stores: list[Path], reput: Reput, command: str) -> None:
    options = ["--topic", "T", "--key", "k2"] if command == "query" else []
    code, out, errors = reput(command, stores[0], f"alpha={stores[2]}", *options)
    assert (code, out) == (2, "")
    assert "two stores have the name 'alpha'; give one as NAME=STORE" in errors


def test_tables_end_with_the_broker(stores: list[Path], reput: Reput) -> None:
    asked = {
        "search": reput("search", *stores),
        "query": reput("query", *stores, "--topic", "T", "--key", "common"),
        "topics": reput("topics", *stores),
    }
    for command, (code, out, errors) in asked.items():
        assert code == 0, errors
        lines = [line.strip() for line in out.splitlines() if line.strip(" ─")]
        heading = next(line for line in lines if line.startswith(("topic ", "queue ")))
        assert heading.split()[-1] == "broker", command
        named = [line.split()[-1] for line in lines[lines.index(heading) + 1 :]]
        counts = {"search": COUNT, "query": COUNT // 2, "topics": 1}
        assert sorted(named) == sorted(NAMES * counts[command]), command


def test_a_terminal_shows_the_broker_beside_a_long_body(stores: list[Path], tmp_path: Path) -> None:
    long = [
        Message(topic="T", queue_offset=n, body=b"x" * 300, store_timestamp=START + n)
        for n in range(2)
    ]
    write_log(build_log(long, FILE_SIZE), tmp_path / "long" / "commitlog")
    (tmp_path / "long" / "broker.conf").write_text(CONF)
    query = ["query", *stores[:2], "--topic", "T", "--key", "common"]
    for width in (80, 100):
        search = ["search", *stores[:2], tmp_path / "long"]
        searched, queried = on_terminal([search, query], width)
        lines = [line for line in searched.splitlines() if "xxx" in line]
        assert len(lines) == 2
        assert all(line.endswith("…  long") for line in lines)
        for name in NAMES[:2]:
            assert queried.count(f"broker {name}") == COUNT // 2
        assert max(map(len, queried.splitlines())) <= width
