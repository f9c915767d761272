"""What OUTPUT refuses: other settings, other logs, files that it did not write."""

import shutil
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.config import BrokerVersion, setting_name
from store.errors import ConfigError, DamageError, StoreError, StoreIOError
from store.output.progress import PROGRESS
from streaming.sinks.dispatch_sink import DispatchSink
from tests.checkpoints.conftest import (
    CONFIG,
    FILE_SIZE,
    LAST_BASE,
    LAST_OFFSET,
    MESSAGES,
    SIZE,
    opened,
    scanned,
)
from tests.logs.build import build_log, encode, write_log
from tests.support.dispatching import HastyDisk, assert_same_store, dispatch_all, tree

OTHERS: dict[str, object] = {
    "version": BrokerVersion(5, 3, 2),
    "message_delay_level": "1s 2s",
    **{
        name: getattr(CONFIG, name) * 2 if type(getattr(CONFIG, name)) is int else True
        for name in CONFIG.shape()
        if name not in ("version", "message_delay_level", "message_index_enable")
    },
    "message_index_enable": False,
}


def test_every_setting_is_tried() -> None:
    names = {f.name for f in fields(CONFIG)}
    assert names - set(OTHERS) == {
        "answers",
        "enable_controller_mode",
        "store_path_root_dir",
        "store_path_commit_log",
        "rocksdb_queues",
    }


@pytest.mark.parametrize("name", OTHERS)
def test_another_setting_is_refused_by_its_name(output: Path, store: Path, name: str) -> None:
    dispatch_all(store, output, CONFIG)
    before = tree(output)
    known_as = setting_name(name)
    with pytest.raises(ConfigError, match=known_as) as caught:
        DispatchOutput.open(output, store, replace(CONFIG, **{name: OTHERS[name]}))  # type: ignore[arg-type]
    assert f"{known_as}={getattr(CONFIG, name)}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == tree(output)


def test_other_settings_are_accepted_before_the_first_dispatch(output: Path, store: Path) -> None:
    wrong = replace(CONFIG, max_index_num=CONFIG.max_index_num * 2)
    DispatchOutput.open(output, store, wrong, disk=HastyDisk()).close(clean=True)
    dispatch_all(store, output, CONFIG)
    dispatch_all(store, output.with_name("undisturbed"), CONFIG)
    assert_same_store(output, output.with_name("undisturbed"))


def test_settings_are_named_as_in_broker_conf() -> None:
    assert setting_name("mapped_file_size_commit_log") == "mappedFileSizeCommitLog"
    assert setting_name("enabled_append_prop_crc") == "enabledAppendPropCRC"
    assert setting_name("version") == "version"


def test_the_log_of_another_store_is_refused(output: Path, store: Path, tmp_path: Path) -> None:
    dispatch_all(store, output, CONFIG)
    shutil.copytree(store, tmp_path / "copy")
    with pytest.raises(ConfigError, match=f"made from {store}"):
        DispatchOutput.open(output, tmp_path / "copy", CONFIG)


class FailingDisk(HastyDisk):
    """Fails to replace a file of a given name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.is_failing = False

    def _rename(self, source: Path, target: Path) -> None:
        if self.is_failing and target.name == self.name:
            raise OSError(28, "No space left on device")
        super()._rename(source, target)


@pytest.mark.parametrize("name", ["checkpoint", "progress"])
@pytest.mark.parametrize("has_index", [True, False])
def test_data_beyond_progress_is_truncated(
    output: Path, store: Path, name: str, has_index: bool
) -> None:
    config = replace(CONFIG, message_index_enable=has_index)
    disk = FailingDisk(name)
    owned = DispatchOutput.open(output, store, config, disk=disk)
    with closing(DispatchSink(owned, config)) as sink:
        requests = scanned(owned, max_bytes=5 * SIZE)
        disk.is_failing = True
        for _ in range(2):  # after a failure the sink applies no further batch
            with pytest.raises(StoreIOError, match=f"cannot replace .*{name}.*No space left"):
                sink.apply(requests)
    assert (output / "abort").exists()
    with opened(output, store, config) as again:
        assert len(again.recovered) == (name == "progress")
    dispatch_all(store, output, config)
    dispatch_all(store, output.with_name("undisturbed"), config)
    assert_same_store(output, output.with_name("undisturbed"))


def test_a_run_interrupted_between_batches_resumes(output: Path, store: Path) -> None:
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    DispatchSink(owned, CONFIG).apply(scanned(owned, max_bytes=5 * SIZE))
    owned.close(clean=False)
    dispatch_all(store, output, CONFIG)
    dispatch_all(store, output.with_name("undisturbed"), CONFIG)
    assert_same_store(output, output.with_name("undisturbed"))


def test_damaged_progress_is_refused(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    data = bytearray((output / PROGRESS).read_bytes())
    data[20] ^= 1
    (output / PROGRESS).write_bytes(data)
    with pytest.raises(DamageError, match="does not match its checksum"):
        DispatchOutput.open(output, store, CONFIG)


def change_last_record(store: Path, at: int, data: bytes) -> int:
    """Overwrite bytes of the log's last record; return its offset."""
    with (store / "commitlog" / f"{LAST_BASE:020d}").open("r+b") as file:
        file.seek(LAST_OFFSET - LAST_BASE + at)
        file.write(data)
    return LAST_OFFSET


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, bytes(SIZE)), (59, b"\x01"), (62, b"\x01"), (8, b"\x01"), (28, b"\x01"), (4, b"\x01")],
    ids=["truncated", "store time", "later", "body CRC", "offset", "magic"],
)
def test_a_log_that_changed_at_its_end_is_followed(
    output: Path, store: Path, at: int, data: bytes
) -> None:
    dispatch_all(store, output, CONFIG)
    change_last_record(store, at, data)
    with opened(output, store) as owned:
        [recovered] = owned.recovered
        assert "no longer holds the record dispatched last" in recovered.why
        assert recovered.to_offset == owned.progress.reput_from_offset < LAST_OFFSET
    dispatch_all(store, output, CONFIG)
    dispatch_all(store, output.with_name("undisturbed"), CONFIG)
    assert_same_store(output, output.with_name("undisturbed"))


@pytest.mark.parametrize("at", [0, 62, 28])
def test_another_log_is_refused(output: Path, store: Path, at: int) -> None:
    dispatch_all(store, output, CONFIG)
    before = tree(output)
    offset = change_last_record(store, at, b"\x01")
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"the log changed.*nor any record.*new OUTPUT") as caught:
        DispatchOutput.open(output, store, CONFIG)
    assert caught.value.offset == offset + SIZE
    assert before == tree(output)


def test_a_log_that_changes_between_batches_is_refused(output: Path, store: Path) -> None:
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    with closing(DispatchSink(owned, CONFIG)) as sink:
        sink.apply(scanned(owned))
        end = owned.progress.reput_from_offset
        change_last_record(store, 62, b"\x01")
        change_last_record(store, SIZE, encode(MESSAGES[0], end))
        before = tree(output)
        [more] = scanned(owned, end)
        with pytest.raises(DamageError, match="the log changed"):
            sink.apply([more])
        assert before == tree(output)


def test_a_log_expired_up_to_progress_is_not_another_log(output: Path, store: Path) -> None:
    dispatch_all(store, output, CONFIG)
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").mkdir()
    base = 10 * FILE_SIZE
    write_log(build_log(MESSAGES, FILE_SIZE, start=base), store / "commitlog")
    with opened(output, store) as owned:
        assert owned.progress.reput_from_offset < base
    end = LAST_OFFSET + SIZE
    with pytest.raises(DamageError, match="has expired") as caught:
        dispatch_all(store, output, CONFIG)
    assert caught.value.offset == end
    progress = dispatch_all(store, output, CONFIG, fail_on_data_loss=False)
    [lost] = progress.lost
    assert (lost.begin, lost.end) == (end, base)
    assert progress.messages == 2 * len(MESSAGES)
    with opened(output, store) as owned:
        assert owned.recovered == ()


def test_batches_that_leave_a_gap_are_refused(output: Path, store: Path) -> None:
    owned = DispatchOutput.open(output, store, CONFIG, disk=HastyDisk())
    with closing(DispatchSink(owned, CONFIG)) as sink:
        stretches = scanned(owned, range_bytes=1)
        before = tree(output)
        with pytest.raises(StoreError, match=r"begins at .* the range between is missing"):
            sink.apply([stretches[0], stretches[2]])
        assert before == tree(output)
    with pytest.raises(StoreError, match="being stopped"):
        sink.apply(stretches)
