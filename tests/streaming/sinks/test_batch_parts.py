"""A batch applied in parts: the files of a whole batch, and one rollback for all parts."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.scanner import Damage
from store.config import StoreConfig
from store.errors import DamageError
from store.io.disk import Disk
from store.output.progress import read_progress
from streaming.sinks import ordered_sink
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import Message
from tests.logs.walking import by_walk
from tests.support.cases import stride
from tests.support.crashes import CrashingDisk, Killed
from tests.support.dispatching import HastyDisk, assert_same_store, built_tree, dispatch_all
from tests.support.stores.aged import sent
from tests.support.verify_stores import CONFIG, VARIANTS, messages, write_store

MANY = 1_000_000


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply each part when it arrives, however few messages per queue it has."""
    monkeypatch.setattr(ordered_sink, "MESSAGES_PER_QUEUE_MIN", 0)


def apply_in_parts(
    store_root: Path, output: Path, config: StoreConfig, disk: Disk, sizes: Iterable[int]
) -> None:
    """Apply the log as one batch, in parts of these sizes; release the lock as a kill does."""
    owned = DispatchOutput.open(output, store_root, config, disk=disk)
    try:
        sink = DispatchSink(owned, config)
        requests, _ = by_walk(store_root, config, owned.progress.reput_from_offset)
        for stretch in requests:
            at = 0
            for size in sizes:
                if at + size < len(stretch):
                    sink.apply_part([stretch.slice(at, at + size)])
                    at += size
            sink.apply_part([stretch.slice(at, len(stretch))] if len(stretch) else [stretch])
        sink.apply([])
        sink.close()
    finally:
        owned._release()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_batch_in_parts_leaves_the_files_of_a_whole_batch(tmp_path: Path, variant: str) -> None:
    config, store_root = VARIANTS[variant], write_store(tmp_path, sent(60))
    apply_in_parts(store_root, tmp_path / "parts", config, HastyDisk(), [1, 2, 3])
    progress = dispatch_all(store_root, tmp_path / "whole", config)
    assert_same_store(tmp_path / "parts", tmp_path / "whole")
    found = read_progress(tmp_path / "parts")
    assert found is not None
    for name in ("reput_from_offset", "messages", "last_record", "index_count", "drops", "batch"):
        assert getattr(found, name) == getattr(progress, name), name


@stride(5)
def test_a_kill_between_parts_rolls_the_batch_back(tmp_path: Path, stride: int) -> None:
    config, store_root = VARIANTS["ext"], write_store(tmp_path, sent(30))
    copy, sizes = tmp_path / "copy", [1, 1, 2]
    dispatch_all(store_root, tmp_path / "whole", config)
    counted = CrashingDisk(MANY, tmp_path / "graves")
    apply_in_parts(store_root, copy, config, counted, sizes)
    rolled_back = 0
    for calls in range(0, MANY - counted.calls, 3 * stride):
        shutil.rmtree(copy)
        disk = CrashingDisk(calls, tmp_path / "graves")
        with pytest.raises(Killed):
            apply_in_parts(store_root, copy, config, disk, sizes)
        disk.lose(Random(calls), kept=calls % 4 / 3)
        if read_progress(copy) is not None:
            owned = DispatchOutput.open(copy, store_root, config, disk=HastyDisk())
            rolled_back += bool(owned.recovered)
            is_done = owned.progress.reput_from_offset > 0
            owned.close(clean=True)
            assert bool(built_tree(copy)) == is_done
        dispatch_all(store_root, copy, config)
        assert_same_store(copy, tmp_path / "whole")
    assert rolled_back > (10 if stride == 1 else 2)


def test_the_batch_record_names_the_beginning_even_if_the_first_part_reaches_no_queue(
    tmp_path: Path,
) -> None:
    config = replace(VARIANTS["plain"], max_index_num=4)
    prepared = [replace(m, sys_flag=4, queue_offset=0) for m in messages(5)]
    store_root = write_store(tmp_path, [*prepared, *messages(9)])
    dispatch_all(store_root, tmp_path / "whole", config)
    output = tmp_path / "output"
    owned = DispatchOutput.open(output, store_root, config, disk=HastyDisk())
    sink = DispatchSink(owned, config)
    (requests,), _ = by_walk(store_root, config, 0)
    sink.apply_part([requests.slice(0, 5)])
    assert built_tree(output)
    sink.apply_part([requests.slice(5, len(requests))])
    owned._release()  # killed
    owned = DispatchOutput.open(output, store_root, config, disk=HastyDisk())
    assert built_tree(output) == {}
    owned.close(clean=True)
    dispatch_all(store_root, output, config)
    assert_same_store(output, tmp_path / "whole")


def test_damage_in_a_part_keeps_what_precedes_it_and_nothing_after_it(tmp_path: Path) -> None:
    store_root = write_store(tmp_path, sent(60))
    requests = [s for s in by_walk(store_root, CONFIG, 0)[0] if len(s)]
    owned = DispatchOutput.open(tmp_path / "output", store_root, CONFIG, disk=HastyDisk())
    sink = DispatchSink(owned, CONFIG)
    first = requests[0].slice(0, 3)
    sink.apply_part([first, Damage(first.end, requests[0].end, "f", "why")])
    assert sink.applied_to() == first.end
    sink.apply_part([requests[1]])
    with pytest.raises(DamageError, match="why"):
        sink.apply([])
    sink.close()
    assert owned.progress.reput_from_offset == first.end
    assert not (tmp_path / "output" / "abort").exists()


def in_queues(count: int, queues: int) -> list[Message]:
    """Return messages that take turns in the queues of a topic."""
    return [
        replace(m, queue_id=n % queues, queue_offset=n // queues)
        for n, m in enumerate(messages(count))
    ]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_part_with_few_messages_per_queue_waits_for_the_end_of_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sparse: bool
) -> None:
    monkeypatch.setattr(ordered_sink, "MESSAGES_PER_QUEUE_MIN", 2 if is_sparse else 0)
    store_root = write_store(tmp_path, in_queues(12, queues=12))
    (requests,), _ = by_walk(store_root, CONFIG, 0)
    owned = DispatchOutput.open(tmp_path / "output", store_root, CONFIG, disk=HastyDisk())
    sink = DispatchSink(owned, CONFIG)
    sink.apply_part([requests.slice(0, 6)])
    assert bool(built_tree(tmp_path / "output")) != is_sparse
    assert sink.applied_to() == requests.slice(0, 6).end
    sink.apply_part([requests.slice(6, 12)])
    sink.close()  # commits what was waiting
    assert owned.progress.reput_from_offset == requests.end
    dispatch_all(store_root, tmp_path / "whole", CONFIG)
    assert_same_store(tmp_path / "output", tmp_path / "whole")
