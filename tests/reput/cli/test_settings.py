"""The options that name a store and its settings: on every command, and from the environment."""

import json
from pathlib import Path

import pytest

from reput.cli import run
from reput.cli.commands import COMMANDS
from streaming.queries.rebuild import rebuild_output, take_output
from tests.support.stores.written import make_store

COUNT = 300
VARIABLES = {
    "STORE": "REPUT_STORE",
    "--output": "REPUT_OUTPUT",
    "--broker-conf": "REPUT_BROKER_CONF",
    "--broker-version": "REPUT_BROKER_VERSION",
}
READ_NO_STORE = {"demo", "dump"}


class Place:
    """A store, its OUTPUT, and its broker.conf, which is in neither."""

    def __init__(self, directory: Path, name: str) -> None:
        self.store, self.output = directory / f"{name} store", directory / f"{name}-out"
        make_store(self.store, COUNT)
        self.conf = (self.store / "broker.conf").rename(directory / f"{name}.conf")
        self.conf.write_text(f"{self.conf.read_text()}brokerName={name}\n")
        rebuild_output(take_output(self.store, self.output, self.conf, None))


@pytest.fixture
def a(tmp_path: Path) -> Place:
    return Place(tmp_path, "broker-a")


@pytest.fixture
def b(tmp_path: Path) -> Place:
    return Place(tmp_path, "broker-b")


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in READ_NO_STORE])
def test_each_command_has_the_options_of_the_broker_and_shows_their_variables(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    text = capfd.readouterr().out
    shown = " ".join(text.split())
    for option in ("--broker-conf", "--broker-version"):
        assert option in shown
        assert VARIABLES[option] in shown
    assert "REPUT_STORE" in shown
    assert ("--output " in shown) == ("REPUT_OUTPUT" in shown)


def test_variables_are_defaults_and_options_override_them(
    a: Place, b: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPUT_STORE", str(a.store))  # its name has a space
    monkeypatch.setenv("REPUT_OUTPUT", str(a.output))
    monkeypatch.setenv("REPUT_BROKER_CONF", str(a.conf))
    assert run(["status"]) == 0
    assert run(["topics", "--json"]) == 0
    assert run(["get", "--topic", "TopicA", "--queue", "0", "--offset", "0", "--json"]) == 0
    assert run(["search", "--topic", "TopicB"]) == 0  # it has no --output
    monkeypatch.setenv("REPUT_OUTPUT", str(b.output))
    monkeypatch.setenv("REPUT_BROKER_CONF", "/none")
    assert run(["topics"]) == 6
    capsys.readouterr()
    for command in (["topics", f"{a.store}:{a.output}"], ["topics", "--output", str(a.output)]):
        assert run([*command, "--broker-conf", str(a.conf), "--json"]) == 0
    monkeypatch.setenv("REPUT_BROKER_VERSION", "nonsense")
    assert run(["topics", "--broker-conf", str(a.conf)]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_variable_of_the_output_is_for_one_store(
    a: Place, b: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPUT_OUTPUT", str(a.output))
    assert run(["topics", f"x={a.store}", f"y={b.store}"]) == 2
    assert "--output (REPUT_OUTPUT) applies to one STORE" in capsys.readouterr().err
    assert run(["topics", f"x={a.store}:{a.output}", f"y={b.store}:{b.output}"]) == 0
    assert run(["dispatch", str(a.store), "--output-root", "", "--from-offset", "0"]) == 2
    assert "either --output or" not in capsys.readouterr().err


def test_one_broker_conf_for_several_stores_must_fit_all(
    a: Place, b: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [f"{p.store}:{p.output}" for p in (a, b)]
    assert run(["topics", *stores, "--broker-conf", str(a.conf)]) == 2
    assert "two stores have the name 'broker-a'" in capsys.readouterr().err
    named = [f"x={stores[0]}", f"y={stores[1]}"]
    assert run(["topics", *named, "--broker-conf", str(a.conf)]) == 0
    own = tmp_path / "own.conf"
    own.write_text(f"{a.conf.read_text()}storePathCommitLog={a.store}/commitlog\n")
    capsys.readouterr()
    assert run(["topics", *named, "--broker-conf", str(own)]) == 2
    assert "the same commit log" in capsys.readouterr().err


def test_a_store_has_the_name_that_its_broker_conf_gives_it(
    a: Place, b: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (b.store / "broker.conf").write_text(b.conf.read_text())
    flags = tmp_path / "flags.conf"
    flags.write_text("brokerName=broker-z\n")
    stores = [f"{a.store}", f"named={b.store}"]
    assert run(["search", *stores, "--topic", "TopicB", "--broker-conf", str(flags), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["broker"] for row in rows} == {"broker-z", "named"}


@pytest.mark.parametrize(
    "command",
    [
        ["rebuild", "--output", "{o}"],
        ["dispatch", "--output", "{o}"],
        ["dispatch", "--output", "{o}", "--available-now"],
        ["verify"],
        ["verify", "--output", "{s}"],
        ["recover", "--output", "{s}"],
        ["topics"],
        ["topics", "--write-topics-json", "{o}"],
        ["get", "--topic", "T", "--queue", "0", "--offset", "0"],
        ["offset", "--topic", "T", "--queue", "0", "--time", "0"],
        ["query", "--topic", "T", "--key", "k"],
        ["search"],
        ["tail", "--topic", "T"],
        ["pending"],
        ["usage"],
        ["message", "--commit-log-offset", "0"],
        ["status", "--output", "{s}"],
        ["export", "--to", "{o}", "--format", "jsonl"],
        ["mirror", "--kafka-bootstrap", "127.0.0.1:1"],
        ["mirror", "--kafka-bootstrap", "127.0.0.1:1", "--status"],
        ["serve", "--port", "0"],
    ],
    ids=" ".join,
)
def test_a_store_without_commitlog_is_a_usage_error_of_every_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    (store / "config").mkdir(parents=True)
    first, *rest = (part.format(o=tmp_path / "out", s=store) for part in command)
    assert run([first, str(store), *rest]) == 2
    said = capsys.readouterr().err
    assert f"{store}/commitlog does not exist: {store} is not a broker's storePathRootDir" in said
    assert not (tmp_path / "out").exists()
