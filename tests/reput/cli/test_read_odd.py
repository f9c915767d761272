"""Reads of odd stores: messages that a broker has displaced, and the log of another store."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from reput.cli import run
from store import MessageStore
from store.errors import ConfigError
from tests.logs.build import Message
from tests.support.dispatching import dispatch_all
from tests.support.stores.displaced import CONF, CONFIG, make, numbered

QUEUE = ("--topic", "T", "--queue", "0")
MULTI = [("INNER_MULTI_DISPATCH", "%LMQ%a"), ("INNER_MULTI_QUEUE_OFFSET", "0"), ("TAGS", "B")]


def shown_offsets(out: str) -> list[int]:
    """Return the column of queue offsets of a table."""
    return [int(line.split()[1]) for line in out.splitlines() if line.split()[:1] == ["0"]]


def test_messages_at_other_offsets_than_they_carry_are_noted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store_root = make(tmp_path, numbered(0, 1, 7, 8, 20))  # a broker closes the gaps
    with MessageStore.open(store_root) as s:
        found = s.get_message("T", 0, 1, tags="A")
        assert [m.queue_offset for m in found.messages] == [7, 20]
        assert found.message_queue_offsets == (2, 4)
    assert run(["get", store_root, *QUEUE, "--offset", "1"]) == 0
    out, err = capfd.readouterr()
    assert shown_offsets(out) == [1, 7, 8, 20]
    assert err.startswith("3 of these messages have another position ")
    assert "the first has offset 7 and position 2;" in err
    assert err.count("\n") == 1
    assert run(["get", store_root, *QUEUE, "--offset", "3", "--tags", "A"]) == 0
    assert "the first has offset 20 and position 4;" in capfd.readouterr().err
    assert run(["get", store_root, *QUEUE, "--offset", "0", "--max", "2"]) == 0
    assert capfd.readouterr().err == ""
    assert run(["get", store_root, *QUEUE, "--offset", "3", "--json"]) == 0
    out, err = capfd.readouterr()
    assert ([json.loads(line)["queue_offset"] for line in out.splitlines()], err) == ([8, 20], "")


def test_a_message_in_a_further_queue_is_not_displaced(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = replace(CONFIG, enable_multi_dispatch=True, enable_lmq=True)
    messages = [*numbered(0, 1), Message(topic="T", queue_offset=2, properties=MULTI)]
    store_root = make(tmp_path, messages, config)
    (tmp_path / "broker.conf").write_text(CONF + "enableMultiDispatch=true\nenableLmq=true\n")
    assert run(["get", store_root, "--topic", "%LMQ%a", "--queue", "0", "--offset", "0"]) == 0
    out, err = capfd.readouterr()
    assert (shown_offsets(out), err) == ([2], "")


def test_dispatch_verify_and_reads_report_the_wrong_store_alike(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    right, wrong, copy = (tmp_path / name for name in ("right", "wrong", "copy"))
    make(right, numbered(0, 1, 2))
    make(wrong, [replace(m, body=b"other") for m in numbered(0, 1, 2)])
    shutil.copytree(right / "commitlog", copy / "commitlog")
    shutil.copy(right / "broker.conf", copy)
    output = tmp_path / "out"
    dispatch_all(right, output, CONFIG)
    says = f"{output} was made from {right}, not from {wrong}"
    read = ["get", str(wrong), *QUEUE, "--offset", "0"]
    for command in (read, ["verify", str(wrong)]):
        assert run([*command, "--output", str(output)]) == 2
        assert f"reput: {says}: the log" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=f"^{says}; "):
        DispatchOutput.open(output, wrong, CONFIG)
    for store in (right, copy):  # a store may have moved
        assert run(["get", str(store), "--output", str(output), *QUEUE, "--offset", "0"]) == 0
        assert run(["verify", str(store), "--output", str(output)]) == 0
    # The log changed in place: that is not the wrong store.
    shutil.rmtree(right)
    shutil.copytree(wrong, right)
    for command in (["get", str(right), *QUEUE, "--offset", "0"], ["verify", str(right)]):
        capfd.readouterr()
        assert run([*command, "--output", str(output)]) == 3
        assert "was made from" not in capfd.readouterr().err
