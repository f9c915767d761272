"""``reput status``: whether a dispatch is stuck, as a health check sees it."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from checkpoints.output import DispatchOutput
from reput.cli import run
from store.config import StoreConfig, config_to_json
from store.errors import OutputInUseError
from store.output.progress import PROGRESS
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 4096
CONF = f"mappedFileSizeCommitLog={FILE_SIZE}\nmappedFileSizeConsumeQueue=400\n"
CONFIG = StoreConfig(mapped_file_size_commit_log=FILE_SIZE, mapped_file_size_consume_queue=400)
HOUR = 3_600_000


class Made:
    """A store of messages stored an hour ago; any number of them has been dispatched."""

    def __init__(self, directory: Path) -> None:
        self.store, self.output = directory / "store", directory / "out"
        self.now = int(time.time() * 1000)
        self.store.mkdir()
        (self.store / "broker.conf").write_text(CONF)

    def write(self, count: int, *, last: int = HOUR) -> None:
        """Write messages stored an hour ago; the last one ``last`` ms ago."""
        shutil.rmtree(self.store / "commitlog", ignore_errors=True)
        messages = [
            Message(
                topic="T",
                queue_offset=n,
                body=b"x" * 100,
                store_timestamp=self.now - (last if n == count - 1 else HOUR),
            )
            for n in range(count)
        ]
        write_log(build_log(messages, FILE_SIZE), self.store / "commitlog")

    def dispatch(self, *, ago: int) -> int:
        """Dispatch the current log as if ``ago`` ms ago; return its end."""
        dispatch_all(self.store, self.output, CONFIG)
        then = self.now / 1000 - ago / 1000
        os.utime(self.output / PROGRESS, (then, then))
        return int(
            json.loads((self.output / PROGRESS).read_text().splitlines()[0])["reput_from_offset"]
        )


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def status(
    made: Made, capture: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    code = run(["status", str(made.store), "--output", str(made.output), "--json", *options])
    out, _ = capture.readouterr()
    return code, json.loads(out)


@pytest.mark.parametrize("count", [5, 19, 40])
def test_there_is_no_backlog_at_the_end_of_the_log(
    made: Made, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    made.write(count)
    end = made.dispatch(ago=HOUR)
    code, shown = status(made, capsys)
    assert (code, shown["reput_from_offset"], shown["waiting_timestamp"]) == (0, end, None)
    assert (shown["is_stuck"], shown["stuck_ms"]) == (False, 0)
    assert (shown["behind_bytes"], shown["behind_ms"]) == (0, 0)


def test_a_dispatch_that_stopped_before_damage_is_stuck(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(5)
    end = made.dispatch(ago=HOUR // 2)
    made.write(40)
    first = made.store / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[end + 4] ^= 0xFF  # the magic of the next record
    first.write_bytes(data)
    code, shown = status(made, capsys)
    assert (code, shown["is_stuck"]) == (1, True)
    assert shown["behind_bytes"] > FILE_SIZE
    assert shown["behind_ms"] >= HOUR // 2


# The waiting message is the next in the file, or the first in the next file after a blank.
@pytest.mark.parametrize("count", range(5, 40))
def test_a_dispatch_is_stuck_if_a_message_waits_for_long(
    made: Made, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    made.write(count)
    made.dispatch(ago=HOUR // 2)
    made.write(count + 1)
    code, shown = status(made, capsys)
    assert (code, shown["is_stuck"]) == (1, True)
    assert shown["behind_bytes"] > 0
    assert shown["behind_ms"] >= HOUR
    assert shown["waiting_timestamp"] == made.now - HOUR
    assert HOUR // 2 - 1000 <= shown["stuck_ms"] < HOUR // 2 + 60_000


def test_a_dispatch_catching_up_with_an_old_log_is_not_stuck(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(5)
    made.dispatch(ago=5_000)
    made.write(9)
    assert status(made, capsys)[0] == 0
    assert status(made, capsys, "--stuck-after", "4")[0] == 1


def test_a_dispatch_idle_for_long_is_not_stuck_when_a_message_arrives(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(5)
    made.dispatch(ago=HOUR)
    made.write(6, last=1000)
    code, shown = status(made, capsys)
    assert (code, shown["waiting_timestamp"]) == (0, made.now - 1000)


def test_text_and_exit_codes(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    made.write(5)
    command = ["status", str(made.store), "--output", str(made.output)]
    made.output.mkdir()
    assert run(command) == 2
    assert "holds no dispatch" in capsys.readouterr().err
    made.dispatch(ago=HOUR)
    assert run(command) == 0
    assert "no backlog" in capsys.readouterr().out
    made.write(6)
    assert run(command) == 1
    assert (
        "a message has been waiting for 1h 00m, nothing dispatched since" in capsys.readouterr().out
    )


HOLDER = """
import sys
from pathlib import Path

from checkpoints.output import DispatchOutput
from store.config import config_from_json

store, output, config = sys.argv[1:]
owned = DispatchOutput.open(Path(output), Path(store), config_from_json(config))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_process_that_holds_the_output_is_running_and_is_not_disturbed(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(5)
    made.dispatch(ago=HOUR)
    assert status(made, capsys)[1]["is_running"] is False
    assert run(["status", str(made.store), "--output", str(made.output)]) == 0
    assert capsys.readouterr().out.endswith("no backlog; no process is running\n")
    arguments = [str(made.store), str(made.output), config_to_json(CONFIG)]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        for _ in range(2):
            assert status(made, capsys)[1]["is_running"] is True
        with pytest.raises(OutputInUseError):
            DispatchOutput.open(made.output, made.store, CONFIG)
        holder.kill()
    code, shown = status(made, capsys)
    assert (code, shown["is_running"]) == (0, False)


def test_an_output_that_this_process_holds_is_running(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    made.write(5)
    made.dispatch(ago=HOUR)
    owned = DispatchOutput.open(made.output, made.store, CONFIG)
    assert status(made, capsys)[1]["is_running"] is True
    owned.close(clean=True)
    assert status(made, capsys)[1]["is_running"] is False
