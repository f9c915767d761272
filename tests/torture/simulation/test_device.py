"""The simulated device leaves exactly the legal states: all of them, and no others."""

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.errors import StoreIOError
from store.io.disk import Disk
from tests.torture.simulation.choosers import MODES, EachInTurn, chooser_for
from tests.torture.simulation.device import SECTOR, Device
from tests.torture.simulation.simulated_disk import Plan, PowerLost, SimulatedDisk, process

Work = Callable[[Disk, Path], None]
State = frozenset[tuple[str, bytes | None]]


def state_of(root: Path) -> State:
    """Return the content of each path in a tree; None for a directory."""
    paths = sorted(root.rglob("*"))
    return frozenset(
        (str(p.relative_to(root)), p.read_bytes() if p.is_file() else None) for p in paths
    )


def states_after(directory: Path, *works: Work, dies_at: int = 0) -> list[State]:
    """Return every state that a power loss can leave after these processes."""
    chooser, has_next = EachInTurn(), True
    states: list[State] = []
    while has_next:
        device = Device(directory / str(len(states)))
        for work in works:
            plan = Plan(dies_at=dies_at if work is works[-1] else 0)
            with process(device, plan) as disk:
                work(disk, device.root)
        device.power_loss(chooser)
        assert device.pending == 0
        states.append(state_of(device.root))
        has_next = chooser.next()
    return states


def sectors(text: str) -> bytes:
    """Return one sector per character; a dot is a sector of zeros."""
    return "".join(c * SECTOR for c in text).replace(".", "\0").encode()


def files(*contents: tuple[str, str]) -> State:
    return frozenset((name, sectors(text)) for name, text in contents)


def test_each_unsynced_sector_is_kept_or_lost(tmp_path: Path) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "f", 3 * SECTOR)
        disk.sync()
        disk.write(root / "f", 0, sectors("abc"))

    texts = [a + b + c for a in ".a" for b in ".b" for c in ".c"]
    states = states_after(tmp_path, work)
    assert len(states) == 8
    assert set(states) == {files(("f", text)) for text in texts}


def test_a_sector_holds_the_result_of_one_of_its_writes(tmp_path: Path) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "f", SECTOR)
        disk.write(root / "f", 0, sectors("a"))
        disk.sync()
        disk.write(root / "f", 0, sectors("a"))
        disk.write(root / "f", 0, sectors("b"))
        disk.write(root / "f", 1, b"x")

    changed = b"b" + b"x" + sectors("b")[2:]
    expected = {frozenset({("f", content)}) for content in (sectors("a"), sectors("b"), changed)}
    assert set(states_after(tmp_path, work)) == expected


def test_name_size_and_data_of_a_new_file_are_lost_independently(tmp_path: Path) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "f", 2 * SECTOR)
        disk.write(root / "f", SECTOR, sectors("b"))

    expected = {files(), files(("f", "")), files(("f", "..")), files(("f", ".b"))}
    assert set(states_after(tmp_path, work)) == expected


def test_synced_changes_survive(tmp_path: Path) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "b" / "f", SECTOR)
        disk.write(root / "a" / "b" / "f", 0, sectors("x"))
        disk.create(root / "gone", SECTOR)
        disk.remove(root / "gone")
        disk.sync()

    (state,) = states_after(tmp_path, work)
    assert state == {("a", None), ("a/b", None), ("a/b/f", sectors("x"))}


def test_a_file_is_lost_with_its_directory(tmp_path: Path) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "b" / "f", 0)

    a, b, f = ("a", None), ("a/b", None), ("a/b/f", b"")
    expected = [frozenset[object](), {a}, {a, b}, {a, b, f}]
    states = states_after(tmp_path, work)
    assert len(states) == len(expected)
    assert all(state in states for state in expected)


def test_a_replaced_file_is_the_old_or_the_new_one_until_it_is_synced(tmp_path: Path) -> None:
    def before(disk: Disk, root: Path) -> None:
        disk.replace(root / "f", sectors("a"))

    def work(disk: Disk, root: Path) -> None:
        disk.replace(root / "f", sectors("b"))

    old, new = files(("f", "a")), files(("f", "b"))
    assert set(states_after(tmp_path / "1", before, work)) == {new}
    states = [set(states_after(tmp_path / f"c{n}", before, work, dies_at=n)) for n in range(1, 6)]
    temporary = files(("f", "a"), ("f.tmp", ""))
    written = files(("f", "a"), ("f.tmp", "b"))
    zeros = files(("f", "a"), ("f.tmp", "."))
    assert states[0] == {old}
    assert states[1] == {old, temporary}
    assert states[2] == {old, temporary, zeros, written}
    assert states[3] == {old, written}
    assert states[4] == {old, written, new}


def test_an_unsynced_removal_may_be_lost(tmp_path: Path) -> None:
    def before(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "f", SECTOR)
        disk.write(root / "a" / "f", 0, sectors("x"))
        disk.sync()

    def work(disk: Disk, root: Path) -> None:
        disk.remove(root / "a" / "f")
        disk.remove_directory(root / "a")

    a, f = ("a", None), ("a/f", sectors("x"))
    assert set(states_after(tmp_path, before, work)) == {
        frozenset(),
        frozenset({a}),
        frozenset({a, f}),
    }


def test_changes_to_one_name_survive_in_order(tmp_path: Path) -> None:
    def before(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "f", 0)
        disk.sync()

    def work(disk: Disk, root: Path) -> None:
        disk.remove(root / "a" / "f")
        disk.remove_directory(root / "a")
        disk.create(root / "a" / "g", 0)

    a, f, g = ("a", None), ("a/f", b""), ("a/g", b"")
    expected = {frozenset[object](), frozenset({a}), frozenset({a, f}), frozenset({a, g})}
    assert set(states_after(tmp_path, before, work)) == expected


def test_a_sync_by_the_next_process_covers_what_a_killed_process_created(tmp_path: Path) -> None:
    def killed(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "b" / "f", SECTOR)

    def next_process(disk: Disk, root: Path) -> None:
        disk.lock(root / "a" / "lock", b"lock")
        disk.zero(root / "a" / "b" / "f", 0)
        disk.replace(root / "a" / "state", b"1")
        disk.sync()

    for state in states_after(tmp_path, killed, next_process):
        assert ("a/b/f", sectors(".")) in state


def test_the_writes_of_a_killed_process_are_visible_but_not_durable(tmp_path: Path) -> None:
    def killed(disk: Disk, root: Path) -> None:
        disk.create(root / "f", SECTOR)
        disk.write(root / "f", 0, sectors("a"))

    def next_process(disk: Disk, root: Path) -> None:
        assert (root / "f").read_bytes() == sectors("a")
        disk.write(root / "f", 0, b"b")
        disk.sync()

    content = b"b" + sectors("a")[1:]
    states = states_after(tmp_path, killed, next_process)
    assert set(states) == {frozenset(), frozenset({("f", content)})}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_leaves_a_legal_state(tmp_path: Path, mode: str) -> None:
    def work(disk: Disk, root: Path) -> None:
        disk.create(root / "a" / "f", 2 * SECTOR)
        disk.write(root / "a" / "f", 0, sectors("ab"))

    legal = set(states_after(tmp_path / "legal", work))
    for seed in range(20):
        device = Device(tmp_path / str(seed))
        with process(device) as disk:
            work(disk, device.root)
        device.power_loss(chooser_for(mode, Random(seed), device.last_number))
        assert state_of(device.root) in legal


def test_all_lost_and_all_kept_are_the_extreme_states(tmp_path: Path) -> None:
    for name in ("lost", "kept"):
        device = Device(tmp_path / name)
        with process(device) as disk:
            disk.create(device.root / "f", SECTOR)
            disk.write(device.root / "f", 0, sectors("a"))
        device.power_loss(chooser_for(f"all {name}", Random(1), 1))
        assert state_of(device.root) == (files(("f", "a")) if name == "kept" else files())


def test_a_dead_disk_makes_no_further_change(tmp_path: Path) -> None:
    device = Device(tmp_path)
    with process(device, Plan(dies_at=6)) as disk:
        handle = disk.lock(device.root / "lock", b"lock")
        disk.create(device.root / "f", 10)
        try:
            disk.write(device.root / "f", 0, b"x")
        finally:
            before = state_of(device.root)
            for work in (disk.sync, lambda: disk.remove(device.root / "f")):
                with pytest.raises(PowerLost):
                    work()
    assert handle.closed
    assert state_of(device.root) == before == {("lock", b"lock"), ("f", bytes(10))}
    with process(device) as other:
        other.lock(device.root / "lock", b"lock")


def test_a_failing_call_fails_once(tmp_path: Path) -> None:
    device = Device(tmp_path)
    disk = SimulatedDisk(device, Plan(fails_at=3, errno=errno.EIO))
    disk.create(device.root / "f", 10)
    with pytest.raises(StoreIOError, match=r"cannot write .*f: Input/output error"):
        disk.write(device.root / "f", 0, b"x")
    disk.write(device.root / "f", 0, b"x")
    disk.end()
    assert disk.failed == device.root / "f"
