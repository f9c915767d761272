"""Bulk tasks in processes: results in order, errors as they were, no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpoints.bulk.state import BULK_DIR
from store.errors import DamageError, StoreError, UnsupportedFormatError
from streaming.cli import run
from streaming.processes import is_for_spark, processes
from tests.dispatching import assert_same_store, dispatch_all
from tests.verify_stores import CONFIG, flip, messages, write_store

CONF = """mappedFileSizeCommitLog=4096
mappedFileSizeConsumeQueue=100
maxHashSlotNum=7
maxIndexNum=13
"""


def double(number: int) -> int:
    if number < 0:
        raise DamageError(Path("f"), 7, "such a record", "do this")
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def refuse(_: int) -> None:
    raise UnsupportedFormatError("not read here")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = write_store(tmp_path, messages(60))
    (root / "broker.conf").write_text(CONF)
    return root


def test_results_come_in_the_order_of_the_tasks_and_each_is_told() -> None:
    told: list[int] = []
    with processes() as pool:
        assert pool(double, range(50), told.append) == [2 * n for n in range(50)]
        assert pool(double, [], told.append) == []
    assert sorted(told) == list(range(50))


def test_an_error_of_a_task_is_raised_as_it_was() -> None:
    with processes() as pool:
        with pytest.raises(DamageError, match="f at offset 7: such a record; do this") as caught:
            pool(double, [1, -1, 2], lambda _: None)
        assert (caught.value.offset, caught.value.reason) == (7, "such a record")
        with pytest.raises(UnsupportedFormatError, match="not read here"):
            pool(refuse, [1, 2], lambda _: None)
        assert pool(double, [4], lambda _: None) == [8]


def test_a_process_that_is_killed_is_told() -> None:
    with processes() as pool, pytest.raises(StoreError, match="was killed"):
        pool(double, [99, 1], lambda _: None)


def test_the_commands_rebuild_and_verify_without_a_jvm(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    output = str(tmp_path / "output")
    assert run(["rebuild", str(store), "--output", output]) == 0
    assert capsys.readouterr().out.startswith(f"rebuilt {output}: 60 messages")
    dispatch_all(store, tmp_path / "dispatched", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "dispatched")
    assert run(["verify", str(store), "--output", output]) == 0
    flip(min((tmp_path / "output/consumequeue/TopicTest/0").iterdir()), 30)
    assert run(["verify", str(store), "--output", output]) == 1
    assert "unit 1" in capsys.readouterr().out
    assert run(["rebuild", str(store), "--output", output, "--master", "local[1]"]) == 7
    assert not is_for_spark(store, CONFIG)


def test_no_process_outlives_the_one_that_made_it(tmp_path: Path) -> None:
    program = (
        "import time\nfrom streaming.processes import processes\n"
        "with processes() as run:\n"
        "    print('ready', flush=True)\n"
        "    run(time.sleep, [600, 600], print)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.kill()
    deadline = time.monotonic() + 30
    while any(is_there(int(pid)) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_killed_rebuild_leaves_the_root_and_goes_on(store: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / BULK_DIR).mkdir(parents=True)
    (output / BULK_DIR / "plan").write_text('{"half a pl')
    assert run(["rebuild", str(store), "--output", str(output)]) == 0
    assert not (output / BULK_DIR).exists()
