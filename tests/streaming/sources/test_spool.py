"""The files of the spool: written by tasks, taken once, applied in log order."""

import time
from pathlib import Path

import pyarrow as pa
import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.scanner import Damage, LogRange, Stretch
from store.errors import StoreIOError
from store.io.disk import Disk
from streaming.queries.log_query import _BatchApplier
from streaming.sinks.dispatch_sink import DispatchSink
from streaming.sources.task_results import Spool, pack, parts_of
from tests.logs.walking import by_walk
from tests.support.dispatching import HastyDisk, assert_same_store, dispatch_all
from tests.support.stores.aged import sent
from tests.support.verify_stores import CONFIG, write_store


def stretches_in(store_root: Path) -> list[Stretch]:
    requests, _ = by_walk(store_root, CONFIG, 0)
    return [requests[0].slice(0, 3), requests[0].slice(3, len(requests[0])), *requests[1:]]


def part_of(*stretches: Stretch) -> LogRange:
    return LogRange(stretches[0].begin, stretches[-1].end, "", 0)


def name_in(row: pa.RecordBatch) -> str:
    name: str = row.column("spooled")[0].as_py()
    return name


def test_a_spooled_range_is_taken_once_and_stays_readable(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))
    end = stretches[-1].end
    spool = Spool(tmp_path / "spool")
    token, rows = spool.begin(), [pack(s) for s in stretches]
    assert spool.find(0) is None
    (tmp_path / "spool" / f"{0:020d}-{end:020d}-{'0' * 32}.12.tmp").touch()
    assert spool.find(0) is None
    assert spool.put(part_of(*stretches), rows, "token-of-another-machine") is rows
    (row,) = Spool(tmp_path / "spool").put(part_of(*stretches), rows, token)
    name = name_in(row)
    assert spool.find(0) == name
    assert spool.find(end) is None
    found = spool.take(name)
    assert [(s.begin, s.end) for s in found] == [(s.begin, s.end) for s in stretches]
    assert [s.commit_log_offset.tolist() for s in found] == [  # type: ignore[union-attr]
        s.commit_log_offset.tolist()  # type: ignore[union-attr]
        for s in stretches
    ]
    with pytest.raises(StoreIOError, match=name):
        spool.take(name)


def test_untaken_files_are_cleared(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))
    spool = Spool(tmp_path / "spool")
    token = spool.begin()
    for _ in range(2):  # two attempts of a task
        spool.put(part_of(stretches[0]), [pack(stretches[0])], token)
    name = spool.find(0)
    (tmp_path / "spool" / f"{name}.12.tmp").touch()  # left by a killed task
    spool.clear()
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [token]


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(40)))
    spool = Spool(tmp_path / "spool")
    token = spool.begin()

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "_pwrite", fail)
    with pytest.raises(StoreIOError, match="No space left"):
        spool.put(part_of(stretches[0]), [pack(stretches[0])], token)


def test_the_parts_of_a_batch_are_in_log_order(tmp_path: Path) -> None:
    stretches = stretches_in(write_store(tmp_path, sent(60)))
    spool = Spool(tmp_path / "spool")
    spooled = spool.put(part_of(stretches[1]), [pack(stretches[1])], spool.begin())
    damage = Damage(stretches[2].end, stretches[2].end + 9, "f", "why")
    rows = [pack(damage), *spooled, pack(stretches[2]), pack(stretches[0])]
    found = [(end, part()) for end, part in parts_of(pa.Table.from_batches(rows), spool)]
    assert [(end, [s.begin for s in part]) for end, part in found] == [
        (stretches[0].end, [stretches[0].begin]),
        (stretches[1].end, [stretches[1].begin]),
        (damage.end, [stretches[2].begin, damage.begin]),
    ]


def test_a_range_delivered_by_two_attempts_of_a_task_is_applied_once(tmp_path: Path) -> None:
    store_root, output = write_store(tmp_path, sent(60)), tmp_path / "output"
    stretches = stretches_in(store_root)
    spool = Spool(tmp_path / "spool")
    token = spool.begin()
    rows = []
    for stretch in stretches:
        part, packed = part_of(stretch), [pack(stretch)]
        of_both = [row for _ in range(2) for row in spool.put(part, packed, token)]
        rows.append(max(of_both, key=name_in))  # the other one is found

    class Batch:
        def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
            while sink.applied_to() < stretches[1].end:  # the thread of the spool applies both
                time.sleep(0.01)
            return pa.Table.from_batches(rows)

    owned = DispatchOutput.open(output, store_root, CONFIG, disk=HastyDisk())
    sink = DispatchSink(owned, CONFIG)
    _BatchApplier(sink, spool).apply(Batch(), 0)  # type: ignore[arg-type]
    sink.close()
    dispatch_all(store_root, tmp_path / "whole", CONFIG)
    assert_same_store(output, tmp_path / "whole")
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [token]
