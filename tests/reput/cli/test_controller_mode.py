"""Controller mode: a broker dispatches to its confirm offset, so its queues are not built here."""

from pathlib import Path

import pytest

from reput.cli import run
from tests.support.rebuilding import rebuild_all
from tests.support.stores.written import make_store


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    """Return the store of a broker in controller mode."""
    make_store(tmp_path / "store", 30)
    with (tmp_path / "store" / "broker.conf").open("a") as file:
        file.write("enableControllerMode=true\n")
    return tmp_path / "store"


@pytest.mark.parametrize(
    "command",
    [
        ["verify"],
        ["rebuild", "--output", "{s}"],
        ["rebuild", "--output", "{o}"],
        ["dispatch", "--output", "{o}", "--available-now"],
        ["recover", "--output", "{s}"],
    ],
    ids=" ".join,
)
def test_what_builds_or_compares_queues_refuses_it(
    store_root: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    output = store_root.parent / "output"
    (store_root / "consumequeue").mkdir()
    before = sorted(store_root.rglob("*"))
    first, *rest = (part.format(s=store_root, o=output) for part in command)
    assert run([first, str(store_root), *rest]) == 5
    assert "enableControllerMode=true" in capsys.readouterr().err
    assert sorted(store_root.rglob("*")) == before
    assert not output.exists()


def test_log_and_queues_are_read(store_root: Path) -> None:
    (store_root / "broker.conf").rename(store_root.parent / "controller.conf")
    conf = ["--broker-conf", str(store_root.parent / "controller.conf")]
    rebuild_all(store_root, store_root, make_store(store_root, 0))
    (store_root / "broker.conf").unlink()
    assert run(["verify", str(store_root), *conf]) == 0
    assert run(["search", str(store_root), *conf]) == 0
    get = ["get", str(store_root), "--topic", "TopicA", "--queue", "0", "--offset", "9"]
    assert run([*get, *conf]) == 0


def test_a_broker_conf_without_the_setting_confirms_the_whole_log(store_root: Path) -> None:
    lines = (store_root / "broker.conf").read_text().splitlines(keepends=True)
    (store_root.parent / "all.conf").write_text("".join(lines[:-1]))
    output = ["--output", str(store_root.parent / "output")]
    command = [
        "rebuild",
        str(store_root),
        *output,
        "--broker-conf",
        str(store_root.parent / "all.conf"),
    ]
    assert run(command) == 0
