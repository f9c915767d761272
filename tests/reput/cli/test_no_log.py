"""A commit log without files: an error, except for a dispatch, which waits for the first."""

from pathlib import Path

import pytest

from reput.cli import run
from store.errors import ConfigError
from streaming.queries.dispatch_query import DispatchOptions, prepare_dispatch
from streaming.sources.message_rows import MessageRows
from streaming.sources.message_source import CommitLogReader
from streaming.sources.options import parse_options


@pytest.fixture
def new_broker(tmp_path: Path) -> Path:
    """Create the store of a broker that has not stored a message yet."""
    store = tmp_path / "store"
    for name in ("commitlog", "consumequeue", "index", "config"):
        (store / name).mkdir(parents=True)
    return store


@pytest.mark.parametrize(
    "command",
    [
        ["rebuild", "--output", "{o}"],
        ["dispatch", "--output", "{o}", "--available-now"],
        ["verify"],
        ["recover", "--output", "{s}"],
        ["topics"],
        ["get", "--topic", "T", "--queue", "0", "--offset", "0"],
        ["offset", "--topic", "T", "--queue", "0", "--time", "0"],
        ["query", "--topic", "T", "--key", "k"],
        ["message", "--commit-log-offset", "0"],
        ["status", "--output", "{s}"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("path", [None, "/usr", "commitlog,/usr"])
def test_every_other_command_names_the_directory(
    new_broker: Path, capsys: pytest.CaptureFixture[str], command: list[str], path: str | None
) -> None:
    output = new_broker.parent / "output"
    if path is not None:
        (new_broker / "broker.conf").write_text(f"storePathCommitLog={path}\n")
    first, *rest = (part.format(o=output, s=new_broker) for part in command)
    assert run([first, str(new_broker), *rest]) == 2
    names = [str(new_broker / name) for name in sorted((path or "commitlog").split(","))]
    assert f"{' and '.join(names)} holds no commit log file" in capsys.readouterr().err
    assert not output.exists()


def test_a_rebuild_of_devices_is_refused(
    new_broker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (new_broker / "broker.conf").write_text("storePathCommitLog=/dev\n")
    assert run(["rebuild", str(new_broker), "--output", str(new_broker.parent / "output")]) == 2
    assert "/dev holds no commit log file" in capsys.readouterr().err


def test_a_batch_read_of_it_is_an_error(new_broker: Path) -> None:
    options = parse_options({"path": str(new_broker)}, streaming=False)
    with pytest.raises(ConfigError, match="holds no commit log file"):
        CommitLogReader(MessageRows(options, ("topic",))).partitions()


def test_a_dispatch_waits_for_the_first_file(new_broker: Path) -> None:
    output = new_broker.parent / "output"
    prepared = prepare_dispatch(new_broker, output, DispatchOptions())
    try:
        assert prepared.output.progress.reput_from_offset == 0
    finally:
        prepared.close()
    assert run(["status", str(new_broker), "--output", str(output)]) == 0
    assert run(["topics", str(new_broker), "--output", str(output)]) == 0
