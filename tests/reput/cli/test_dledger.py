"""A DLedger log in a store is refused by every command, whatever else the store holds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reput.cli import run
from reput.console.brokers import Broker, BrokerSource
from reput.console.security import ConsoleSettings
from store import MessageStore
from store.errors import UnsupportedFormatError
from streaming.sources.message_rows import MessageRows
from streaming.sources.message_source import CommitLogReader
from streaming.sources.options import parse_options
from tests.support.rebuilding import rebuild_all
from tests.support.stores.written import make_store

COMMANDS = [
    ["verify"],
    ["topics"],
    ["topics", "--write-topics-json", "{o}"],
    ["rebuild", "--output", "{s}"],
    ["rebuild", "--output", "{o}"],
    ["dispatch", "--output", "{o}", "--available-now"],
    ["recover", "--output", "{s}"],
    ["status", "--output", "{s}"],
    ["get", "--topic", "TopicA", "--queue", "0", "--offset", "0"],
    ["offset", "--topic", "TopicA", "--queue", "0", "--time", "0"],
    ["query", "--topic", "TopicA", "--key", "k"],
    ["message", "--commit-log-offset", "0"],
    ["search"],
    ["tail", "--topic", "TopicA"],
    ["pending"],
    ["usage"],
    ["export", "--to", "{o}"],
    ["serve"],
    ["mirror", "--kafka-bootstrap", "localhost:1", "--available-now"],
]


def dledger(store_root: Path) -> None:
    (store_root / "dledger-n0" / "data").mkdir(parents=True)
    (store_root / "dledger-n0" / "data" / f"{0:020d}").write_bytes(bytes(4096))


def beside(store_root: Path) -> None:
    """Make a broker's store whose log goes on in a DLedger log."""
    make_store(store_root, 300)
    dledger(store_root)


def beside_a_rebuilt_one(store_root: Path) -> None:
    """Make an OUTPUT with progress, in which a DLedger log began later."""
    rebuild_all(store_root, store_root, make_store(store_root, 300))
    dledger(store_root)


def beside_an_expired_one(store_root: Path) -> None:
    """Make a store whose ordinary files have expired."""
    make_store(store_root, 0)
    (store_root / "commitlog").mkdir(exist_ok=True)
    dledger(store_root)


def elsewhere(store_root: Path) -> None:
    """Make a store whose data is at storePathDLedgerCommitLog: only DLedger's index is here."""
    make_store(store_root, 300)
    (store_root / "dledger-n0" / "index").mkdir(parents=True)


def behind_a_link(store_root: Path) -> None:
    """Make a store whose DLedger log is on another file system, which is not mounted."""
    make_store(store_root, 300)
    (store_root / "dledger-n0").symlink_to("/nonexistent/dledger-n0")


def files(store_root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(store_root)): path.read_bytes() if path.is_file() else None
        for path in sorted(store_root.rglob("*"))
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    "make",
    [
        beside,
        pytest.param(beside_a_rebuilt_one, marks=pytest.mark.exhaustive),
        pytest.param(beside_an_expired_one, marks=pytest.mark.exhaustive),
    ],
)
def test_every_command_refuses_it_and_writes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
    command: list[str],
) -> None:
    store, output = tmp_path / "store", tmp_path / "output"
    make(store)
    before = files(store)
    first, *rest = (part.format(s=store, o=output) for part in command)
    assert run([first, str(store), *rest]) == 5
    assert f"{store / 'dledger-n0'} is a DLedger log" in capsys.readouterr().err
    assert files(store) == before
    assert not output.exists()


@pytest.mark.parametrize("make", [beside, elsewhere, behind_a_link])
def test_reads_the_source_and_the_console_refuse_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path)
    rows = MessageRows(parse_options({"path": str(tmp_path)}, streaming=False), ("topic",))
    for refused in (
        lambda: MessageStore.open(tmp_path),
        lambda: CommitLogReader(rows).partitions(),
        lambda: Broker(BrokerSource("b", tmp_path), ConsoleSettings()),
    ):
        with pytest.raises(UnsupportedFormatError, match="dledger-n0 is a DLedger log"):
            refused()


def test_a_file_of_such_a_name_is_no_log(tmp_path: Path) -> None:
    make_store(tmp_path, 3)
    (tmp_path / "dledger-notes.txt").write_text("moved off DLedger\n")
    with MessageStore.open(tmp_path) as store:
        assert store.max_phy_offset() > 0
