"""Exports that are killed: the next one leaves no duplicate and no hole."""

from pathlib import Path
from typing import Any

import pytest

from reput.export.directory import STAGING, ExportDirectory
from reput.export.options import ExportOptions
from reput.export.run import export_part, open_export
from store.io.disk import Disk
from tests.support.cases import stride
from tests.support.exporting import export, grow, make_store, offsets_of
from tests.support.stores.aged import log_files
from tests.support.verify_stores import messages


class Killed(BaseException):
    """Simulates a kill: nothing after it takes effect."""


class DyingDisk(Disk):
    """Simulates a kill at the n-th change of the disk."""

    def __init__(self, steps: list[int]) -> None:
        super().__init__()
        self._steps = steps

    def _step(self) -> None:
        self._steps[0] -= 1
        if self._steps[0] < 0:
            raise Killed

    def _rename(self, source: Path, target: Path) -> None:
        self._step()
        super()._rename(source, target)

    def _mkdir(self, path: Path) -> None:
        self._step()
        super()._mkdir(path)

    def _create(self, path: Path) -> int:
        self._step()
        return super()._create(path)

    def _unlink(self, path: Path) -> None:
        self._step()
        super()._unlink(path)

    def _rmdir(self, path: Path) -> None:
        self._step()
        super()._rmdir(path)


@stride(5)
def test_an_export_killed_anywhere_leaves_no_duplicate_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    store, to = make_store(tmp_path, messages(50)), tmp_path / "to"
    export(store, tmp_path / "all")
    expected = offsets_of(tmp_path / "all")
    kills = 0
    for first in (20, 50):
        for step in range(0, 200, stride):
            if not killed_at(store, to, (first, step), monkeypatch):
                break
            kills += 1
            grow(store, 50)
            export(store, to, append=True)
            assert offsets_of(to) == expected, (first, step)
            assert not (to / STAGING).exists()
            Disk().remove_tree(to)
    assert kills * stride >= 20


def killed_at(
    store: Path, to: Path, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Export a log of `count` messages, at once or after the first 20; die at a step."""
    count, step = place
    grow_to = [count] if count == 20 else [20, count]
    for path in log_files(store)[1:]:
        path.unlink()
    for number, messages_now in enumerate(grow_to):
        grow(store, messages_now)
        if number < len(grow_to) - 1:
            export(store, to, append=True)
    with monkeypatch.context() as patch:
        patch.setattr("reput.export.directory.Disk", lambda: DyingDisk([step]))
        patch.setattr(ExportDirectory, "roll_back", lambda _: None)
        try:
            export(store, to, append=True)
        except Killed:
            return True
    Disk().remove_tree(to)
    return False


def test_a_late_task_of_an_ended_export_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, to = make_store(tmp_path, messages(3)), tmp_path / "to"

    late: list[Any] = []

    def fail(*task: object, spec: object) -> None:
        late.append((*task, spec))
        raise Killed

    monkeypatch.setattr("reput.export.run.export_part", fail)
    with pytest.raises(Killed), open_export(store, to, ExportOptions()) as job:
        job.run()
    with pytest.raises(Exception, match="has ended"):
        export_part(*late[0])
    assert not to.exists()
