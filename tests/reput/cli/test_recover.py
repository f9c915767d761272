"""`reput recover`: output and exit codes."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from reput.cli import run
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.errors import StoreError
from store.output.progress import read_progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.dispatching import HastyDisk, assert_same_store, built_tree, dispatch_all
from tests.support.rebuilding import begin_swap
from tests.support.verify_stores import CONFIG, forget_progress, make, messages, write_store

CONF = "".join(
    f"{name}={size}\n"
    for name, size in {
        "mappedFileSizeCommitLog": CONFIG.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": CONFIG.mapped_file_size_consume_queue,
        "maxHashSlotNum": CONFIG.max_hash_slot_num,
        "maxIndexNum": CONFIG.max_index_num,
    }.items()
)


@dataclass
class FailingDispatcher:
    """A dispatcher that fails, so that its batch is cut off."""

    def dispatch(self, requests: DispatchRequests) -> None:
        """Fail."""
        raise StoreError(f"cut off at {requests.begin}")


def cut_off(parent: Path) -> tuple[Path, Path]:
    """Write a store and dispatch it in two batches, the second of which is cut off."""
    store, output = write_store(parent, messages(12)), parent / "output"
    (store / "broker.conf").write_text(CONF)
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    with closing(DispatchSink(owned, CONFIG)) as sink:
        (part, *_) = LogPlanner(owned.log, lambda: True).plan(0).ranges
        (requests,) = Scanner(CONFIG).read(part)
        assert isinstance(requests, DispatchRequests)
        sink.apply([requests.slice(0, 5)])
        sink.dispatchers.append(FailingDispatcher())
        with pytest.raises(StoreError, match="cut off"):
            sink.apply([requests])
    return store, output


def recover(store: Path, output: Path, *more: str) -> int:
    return run(["recover", str(store), "--output", str(output), *more])


def test_an_interrupted_batch_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = cut_off(tmp_path)
    progress = read_progress(output)
    assert progress is not None
    at = progress.reput_from_offset
    assert recover(store, output) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "recovered (a dispatch was interrupted in a batch): rolled back from offset" in printed
    assert f"to {at:,}; queues checked: 1; truncated: " in printed
    assert f"a dispatch into {output} resumes at offset {at}" in printed
    assert not (output / "abort").exists()
    assert recover(store, output) == 0
    assert "nothing to recover: a dispatch into" in " ".join(capsys.readouterr().out.split())
    dispatch_all(store, output, CONFIG)
    dispatch_all(store, tmp_path / "clean", CONFIG)
    assert_same_store(output, tmp_path / "clean")


def test_a_completed_swap_is_a_recovery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = make(tmp_path)
    (store / "broker.conf").write_text(CONF)
    begin_swap(output)
    assert recover(store, output) == 0
    printed = capsys.readouterr().out
    assert "recovered (a swap of rebuilt files was interrupted, and is complete now)" in printed
    assert "nothing to recover" not in printed
    assert recover(store, output) == 0
    assert "nothing to recover" in capsys.readouterr().out


def test_json_is_one_object_per_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = cut_off(tmp_path)
    assert recover(store, output, "--json") == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["event"], first["why"]) == ("recovered", "a dispatch was interrupted in a batch")
    assert first["cut"]["queues"] == 1
    assert first["cut"]["units"] > 0
    assert last == {
        "event": "ready",
        "output": str(output),
        "reput_from_offset": first["to_offset"],
    }


def test_a_brokers_queues_are_adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, output = make(tmp_path)
    (store / "broker.conf").write_text(CONF)
    before = built_tree(output)
    forget_progress(output)
    assert recover(store, output) == 0
    assert "recovered (a broker made it)" in capsys.readouterr().out
    assert read_progress(output) is not None
    assert before == built_tree(output)


def test_a_failed_recovery_exits_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = cut_off(tmp_path)
    assert recover(store, tmp_path / "none") == 2
    assert "contains nothing to recover" in capsys.readouterr().err
    owned = DispatchOutput.open(output, store, CONFIG)
    assert recover(store, output) == 4
    owned.close(clean=True)
    for path in (store / "commitlog").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert recover(store, output) == 3
    assert "nor any record that an earlier batch ended with" in capsys.readouterr().err
