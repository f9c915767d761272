"""Tables on terminals of 80, 100 and 140 columns, with messages of real brokers.

``REPUT_WRITE_TABLES=1`` writes the expected texts; look at them before they are kept.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from reput.cli.columns import Column, Fit, fit
from reput.cli.tables import print_table
from tests.conftest import ARCHIVES, archive_name
from tests.logs.build import Message, build_log, write_log
from tests.support.terminal import on_terminal

EXPECTED = Path(__file__).parent / "tables"
PENDING = Path(__file__).parents[2] / "store" / "pending" / "stores"
WIDTHS = 80, 100, 140
LONG = "%RETRY%" + "a-long-group-name_" * 6 + "0123456789"
FILE_SIZE = 64 * 1024
TOPICS_JSON = """{"topicConfigTable": {
"OrderTopic": {"topicName": "OrderTopic", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
 "attributes": {"message.type": "NORMAL"}}}}"""
OFFSETS_JSON = '{"offsetTable": {"OrderTopic@reader": {0: 10, 1: 5}}}'


@pytest.fixture(scope="module")
def g1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack a broker's store, and add the config files that the archive omits."""
    archive = next(path for path in ARCHIVES if archive_name(path) == "g1")
    parent = tmp_path_factory.mktemp("tables")
    subprocess.run(["tar", "-xJf", archive, "-C", parent], check=True)
    store = parent / "g1" / "input"
    conf = (store / "broker.conf").read_text("utf-8")
    (store / "broker.conf").write_text(conf.replace("@STORE@", str(store)), "utf-8")
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(TOPICS_JSON)
    (store / "config" / "consumerOffset.json").write_text(OFFSETS_JSON)
    return parent / "g1"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log whose messages have everything that is hard to display."""
    store_root = tmp_path_factory.mktemp("odd")
    labels = [
        ("注文", "k1", "UNIQ1", "订单已付款 " * 12),
        ("T" * 50, "key-" + "x" * 80, "0123456789ABCDEF" * 2, "plain"),
        ("\x1b]0;owned\x07", "a\u202eb c\r\n", "\x9b31m", "\x1b[2Jgone\u2028"),
        ("", "", "", ""),
    ]
    messages = [
        Message(
            topic=LONG,
            queue_offset=n,
            body=body.encode(),
            properties=[
                (name, value)
                for name, value in (("TAGS", tags), ("KEYS", keys), ("UNIQ_KEY", uniq))
                if value
            ],
            store_timestamp=1_700_000_000_000 + n * 86_400_000,
        )
        for n, (tags, keys, uniq, body) in enumerate(labels)
    ]
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(f"mappedFileSizeCommitLog={FILE_SIZE}\n")
    return store_root


def commands(g1: Path) -> dict[str, list[str]]:
    store = [str(g1 / "input"), "--output", str(g1 / "expected")]
    conf = ["--broker-conf", str(g1 / "input" / "broker.conf"), "--limit", "4"]
    queue = min((g1 / "expected/consumequeue/OrderTopic/0").iterdir())
    index = min((g1 / "expected/index").iterdir())
    log = min((g1 / "input/commitlog").iterdir())
    get = ["--topic", "OrderTopic", "--queue", "0", "--offset", "0", "--max", "6"]
    query = ["--topic", "MyTopic", "--key", "k63", "--max", "4"]
    several = [f"{name}={g1 / 'input'}:{g1 / 'expected'}" for name in ("east", "west")]
    return {
        "get": ["get", *store, *get],
        "query": ["query", *store, *query],
        "topics": ["topics", *store],
        "several-query": ["query", *several, *query],
        "several-topics": ["topics", *several],
        "dump-log": ["dump", str(log), *conf],
        "dump-queue": ["dump", str(queue), *conf],
        "dump-index": ["dump", str(index), *conf],
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_a_brokers_store(g1: Path, width: int) -> None:
    named = commands(g1)
    for name, shown in zip(named, on_terminal(named.values(), width), strict=True):
        check(f"{name}-{width}", shown.replace(str(g1), "G1"), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_pending_messages(tmp_path: Path, width: int) -> None:
    archive = PENDING / "pending-5.3.3.tar.xz"
    subprocess.run(["tar", "-xJf", archive, "-C", tmp_path], check=True)
    directory = tmp_path / "pending-5.3.3"
    killed_at = json.loads((directory / "scenario.json").read_text("utf-8"))["killed_at"]
    command = ["pending", str(directory / "killed"), "--all", "--as-of", str(killed_at)]
    (shown,) = on_terminal([command], width)
    # A progress bar precedes the tables; how often it is drawn depends on the time.
    check(f"pending-{width}", shown[shown.index("pending messages") :], width)


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_long_wide_and_hostile_names(odd: Path, tmp_path: Path, width: int) -> None:
    store = [str(odd), "--output", str(tmp_path)]
    queue = ["--topic", LONG, "--queue", "0", "--offset", "0"]
    dump = ["dump", str(odd / "commitlog" / f"{0:020}")]
    commands = [["rebuild", *store], ["get", *store, *queue], ["topics", *store], dump]
    shown = on_terminal(commands, width)[1:]
    for name, text in zip(["get", "topics", "dump"], shown, strict=True):
        check(f"odd-{name}-{width}", text.replace(str(odd), "ODD"), width)
        assert all(line.isprintable() for line in text.splitlines())


def check(name: str, shown: str, width: int) -> None:
    """Compare with the expected table; none is wider than its terminal."""
    assert max((cell_len(line) for line in shown.splitlines() if "──" in line), default=0) <= width
    path = EXPECTED / f"{name}.txt"
    if os.environ.get("REPUT_WRITE_TABLES"):
        path.write_text(shown, "utf-8")
    assert path.read_text("utf-8") == shown


def test_the_least_important_columns_are_omitted_first_and_a_name_never() -> None:
    columns = [
        Column("topic", Fit.WHOLE),
        Column("first", rank=2),
        Column("second", rank=1),
        Column("body", Fit.CUT),
    ]
    needs = {0: (40, 127), 1: (12, 12), 2: (12, 12), 3: (12, 60)}
    assert fit(columns, needs, 200) == {0: 127, 1: 12, 2: 12, 3: 43}
    assert fit(columns, needs, 82) == {0: 40, 1: 12, 2: 12, 3: 12}
    assert fit(columns, needs, 81) == {0: 53, 2: 12, 3: 12}
    assert fit(columns, needs, 60) == {0: 46, 3: 12}
    assert fit(columns, needs, 20) == {0: 40, 3: 12}


def test_a_long_table_is_printed_while_its_rows_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows() -> Iterator[list[str]]:
        for n in range(5000):
            if n > 3000:
                printed.append(capsys.readouterr().out)
            yield [f"T{'x' * (n // 1000)}", str(n)]

    printed: list[str] = []
    print_table([Column("topic", Fit.WHOLE), Column("n", is_right=True)], rows())
    assert printed[1].split() == ["Txxx", "3001"]
    lines = "".join([*printed, capsys.readouterr().out]).splitlines()
    assert [line.split() for line in lines[2:]] == [
        [f"T{'x' * (n // 1000)}", str(n)] for n in range(5000)
    ]
