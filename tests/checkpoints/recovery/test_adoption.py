"""Adoption of a broker's files: afterwards they equal a clean dispatch of its log."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from checkpoints.checkpoint_file import StoreCheckpoint, write_checkpoint
from checkpoints.output import DispatchOutput
from store import layout
from store.config import StoreConfig
from store.errors import ConfigError, DamageError, OutputInUseError
from store.io.disk import Disk
from streaming.queries.verify import verify
from tests.checkpoints.conftest import CONFIG, FILE_SIZE, MESSAGES, SIZE, opened
from tests.conftest import Golden
from tests.logs.build import build_log, write_log
from tests.logs.random_logs import Mix, random_messages
from tests.support.cases import first_cases
from tests.support.dispatching import HastyDisk, assert_same_store, built_tree, dispatch_all
from tests.support.stores.golden import golden_slice
from tests.support.verify_stores import flip, forget_progress

HOLD = """
import fcntl, sys
held = open(sys.argv[1], "r+b")
fcntl.lockf(held, fcntl.LOCK_EX, 1, 0)
print(flush=True)
sys.stdin.read()
"""
BUILT = ("consumequeue", "consumequeue_ext", "index")


def copy_root(source: Path, target: Path) -> Path:
    """Copy queues and index, holes as holes."""
    target.mkdir(parents=True, exist_ok=True)
    there = [source / name for name in BUILT if (source / name).is_dir()]
    subprocess.run(["cp", "-r", "--sparse=always", *there, target], check=True)
    return target


@golden_slice
def test_a_brokers_files_are_adopted(golden: Golden, tmp_path: Path) -> None:
    for kind in ("expected", "crashed"):
        if not (golden.directory / kind).is_dir():
            continue
        output = copy_root(golden.directory / kind, tmp_path / kind)
        if golden.name == "v-magic2-5.0.0":  # which that broker takes for the end of its log
            with pytest.raises(DamageError, match="V2 record"):
                dispatch_all(golden.store_root, output, golden.config, adopts=True)
        else:
            dispatch_all(golden.store_root, output, golden.config, adopts=True)
            found = verify(golden.store_root, output, golden.config)
            assert found.is_dispatched
            assert found.differences == ()
            if found.begin_offset:
                continue  # older units are kept, which a clean dispatch lacks
        assert_same_store(output, golden.expected)


def test_adoption_reports_what_was_truncated(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    forget_progress(output)
    flip(output / "consumequeue/TopicTest/0" / f"{100:020d}", 7)  # unit 5
    owned = DispatchOutput.open(output, store, CONFIG, adopts=True, disk=HastyDisk())
    owned.close(clean=True)
    [recovered] = owned.recovered
    assert recovered.why.startswith("a broker made it; ")
    assert "unit 0 (position 5) expected commit log offset" in recovered.why
    assert (recovered.to_offset, recovered.cut.units) == (5 * SIZE, 15)
    assert recovered.cut.index_entries == 15
    assert recovered.cut.files == 3 + 2  # of the queue, of the index


def random_config(random: Random) -> StoreConfig:
    """Draw settings under which new files are created often."""
    return StoreConfig(
        mapped_file_size_commit_log=8192,
        mapped_file_size_consume_queue=20 * random.choice([1, 3, 10]),
        mapped_file_size_consume_queue_ext=20 * random.choice([2, 7]) + 4,
        enable_consume_queue_ext=random.random() < 0.5,
        enable_multi_dispatch=random.random() < 0.5,
        enable_lmq=True,
        max_hash_slot_num=random.choice([1, 7]),
        max_index_num=random.choice([2, 13, 200]),
    )


def damage(output: Path, random: Random) -> None:
    """Damage an OUTPUT as crashes, truncations and restores do."""
    files = sorted(p for name in BUILT for p in (output / name).rglob("*") if p.is_file())
    for path in random.sample(files, min(len(files), random.randint(1, 3))):
        size = path.stat().st_size
        kind = random.randrange(4)
        if kind == 0:
            flip(path, random.randrange(size), 1 << random.randrange(8))
        elif kind == 1:
            with path.open("r+b") as file:  # the rest was never written
                at = random.randrange(size)
                file.seek(at)
                file.write(bytes(size - at))
        elif kind == 2:
            path.unlink()
        else:
            data = path.read_bytes()  # duplicate units or entries
            path.write_bytes((data[:60] + data[40:])[:size])


@pytest.mark.parametrize("seed", first_cases([235, *range(60)], 8))
def test_a_damaged_output_is_adopted(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    config = random_config(random)
    store = tmp_path / "s"
    sent = random_messages(random, random.randint(20, 120), Mix())
    write_log(build_log(sent, config.mapped_file_size_commit_log), store / "commitlog")
    dispatch_all(store, tmp_path / "clean", config)
    output = copy_root(tmp_path / "clean", tmp_path / "o")
    damage(output, random)
    try:
        dispatch_all(store, output, config, adopts=True, reopen=random.random() < 0.5)
    except ConfigError as e:
        assert "belongs to another log" in str(e)  # noqa: PT017 - the only error allowed
        return
    assert_same_store(output, tmp_path / "clean")


def test_queues_and_index_ahead_of_the_log_are_cut(output: Path, tmp_path: Path) -> None:
    for count, name in ((20, "whole"), (7, "short")):
        write_log(build_log(MESSAGES[:count], FILE_SIZE), tmp_path / name / "commitlog")
        dispatch_all(tmp_path / name, output.with_name(f"{name}.out"), CONFIG)
    copy_root(output.with_name("whole.out"), output)
    dispatch_all(tmp_path / "short", output, CONFIG, adopts=True)
    assert_same_store(output, output.with_name("short.out"))


def a_broker_stopped(output: Path) -> None:
    write_checkpoint(output, StoreCheckpoint(1, 2, 3), Disk())


def a_broker_was_killed(output: Path) -> None:
    (output / "abort").write_bytes(b"4711")


def a_broker_of_4_x_was_killed(output: Path) -> None:
    (output / "lock").write_bytes(b"lock")  # abort already existed


@pytest.mark.parametrize(
    ("ran", "was_clean"),
    [(a_broker_stopped, True), (a_broker_was_killed, True), (a_broker_of_4_x_was_killed, False)],
)
def test_an_output_on_which_a_broker_ran_is_adopted_again(
    output: Path, store: Path, ran: Callable[[Path], None], was_clean: bool
) -> None:
    dispatch_all(store, output, CONFIG)
    clean = built_tree(output)
    if not was_clean:
        DispatchOutput.open(output, store, CONFIG, disk=HastyDisk()).close(clean=False)
    flip(output / "consumequeue/TopicTest/0" / f"{100:020d}", 7)
    ran(output)
    with opened(output, store) as owned:
        [recovered] = owned.recovered
        assert recovered.why.startswith(f"a broker ran on it since: {output}/")
        assert recovered.to_offset == 5 * SIZE
    dispatch_all(store, output, CONFIG)
    assert built_tree(output) == clean
    with opened(output, store) as owned:
        assert owned.recovered == ()


def test_files_that_a_power_loss_left_empty_are_recreated(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    clean = built_tree(output)
    forget_progress(output)
    for path in output.rglob("*"):
        if path.is_file() and path.name.isdigit():
            path.write_bytes(b"")
    dispatch_all(store, output, CONFIG, adopts=True)
    assert built_tree(output) == clean


@pytest.mark.parametrize("is_ours", [True, False])
def test_older_units_of_an_aged_output_stay(output: Path, store: Path, is_ours: bool) -> None:
    dispatch_all(store, output, CONFIG)
    before = (output / "consumequeue/TopicTest/0" / f"{0:020d}").read_bytes()
    oldest = min((store / "commitlog").iterdir())
    oldest.unlink()
    if is_ours:
        a_broker_stopped(output)
    else:
        forget_progress(output)
    owned = DispatchOutput.open(output, store, CONFIG, adopts=not is_ours, disk=HastyDisk())
    [recovered] = owned.recovered
    assert recovered.cut.units == recovered.cut.index_entries == 0
    owned.close(clean=True)
    assert before == (output / "consumequeue/TopicTest/0" / f"{0:020d}").read_bytes()
    assert verify(store, output, CONFIG).differences == ()
    progress = dispatch_all(store, output, CONFIG)
    assert progress.reput_from_offset == owned.progress.reput_from_offset
    assert verify(store, output, CONFIG).differences == ()


def test_an_output_in_use_is_not_adopted(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    forget_progress(output)
    before = built_tree(output)
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, output / "lock"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert held.stdout is not None
    held.stdout.readline()
    try:
        with pytest.raises(OutputInUseError):
            DispatchOutput.open(output, store, CONFIG, adopts=True)
    finally:
        held.communicate()
    assert before == built_tree(output)


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (replace(CONFIG, mapped_file_size_consume_queue=200), "mappedFileSizeConsumeQueue"),
        (replace(CONFIG, max_index_num=20), "maxIndexNum"),
        (replace(CONFIG, max_hash_slot_num=20), "maxHashSlotNum"),
    ],
)
def test_an_output_with_other_file_sizes_is_refused(
    output: Path, store: Path, config: StoreConfig, setting: str
) -> None:
    dispatch_all(store, output, CONFIG)
    forget_progress(output)
    before = built_tree(output)
    with pytest.raises(ConfigError, match=rf"has \d+ bytes, not \d+ \(.*{setting}"):
        DispatchOutput.open(output, store, config, adopts=True)
    assert before == built_tree(output)


def test_the_output_of_another_log_is_refused(output: Path, store: Path, tmp_path: Path) -> None:
    dispatch_all(store, output, CONFIG)
    forget_progress(output)
    others = [replace(m, body=b"another size" * 3) for m in MESSAGES]
    write_log(build_log(others, FILE_SIZE), tmp_path / "other" / "commitlog")
    before = built_tree(output)
    with pytest.raises(ConfigError, match=r"belongs to another log: .* names a record"):
        DispatchOutput.open(output, tmp_path / "other", CONFIG, adopts=True)
    assert before == built_tree(output)


def test_another_store_with_its_queues_is_refused_as_output(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(store, other)
    dispatch_all(other, other, CONFIG)
    forget_progress(other)
    with pytest.raises(ConfigError, match="has queues and a log of its own"):
        DispatchOutput.open(other, store, CONFIG, adopts=True)


class DyingDisk(HastyDisk):
    """Crashes at one of the calls that change the disk."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._count()
        return super()._pwrite(fd, data, offset)

    def _unlink(self, path: Path) -> None:
        self._count()
        super()._unlink(path)

    def _rename(self, source: Path, target: Path) -> None:
        self._count()
        super()._rename(source, target)

    def _count(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt


def test_a_killed_adoption_is_repeated(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    clean = built_tree(output)
    forget_progress(output)
    flip(output / "consumequeue/TopicTest/0" / f"{100:020d}", 7)
    for calls in range(100):
        killed = output.with_name(f"killed{calls}")
        shutil.copytree(output, killed)
        try:
            disk = DyingDisk(calls)
            DispatchOutput.open(killed, store, CONFIG, adopts=True, disk=disk).close(clean=True)
            break
        except KeyboardInterrupt:
            dispatch_all(store, killed, CONFIG, adopts=True)
            assert built_tree(killed) == clean
    assert 10 < calls < 99


def test_adoption_reports_its_progress(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    forget_progress(output)
    reports: list[tuple[str, int, int]] = []
    owned = DispatchOutput.open(
        output, store, CONFIG, adopts=True, disk=HastyDisk(), report=lambda *r: reports.append(r)
    )
    owned.close(clean=True)
    assert [(d, t) for what, d, t in reports if what == "comparing with the log"][-1] == (
        owned.progress.reput_from_offset,
        owned.progress.reput_from_offset,
    )
    assert layout.ABORT_FILE not in {p.name for p in output.iterdir()}
