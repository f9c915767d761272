"""A batch interrupted by a full disk or a power loss: the next start leads to equal bytes."""

import errno
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.batch_record import BatchRecord, read_batch
from checkpoints.output import DispatchOutput
from checkpoints.state_paths import BATCH
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.consumequeue.queue_ends import QueueEnd
from store.errors import DamageError, StoreError, StoreIOError
from store.index.index_end import IndexEnd
from streaming.sinks.dispatch_sink import DispatchSink
from tests.logs.build import PREPARED, Message, build_log, write_log
from tests.support.dispatching import HastyDisk, assert_same_store, dispatch_all, tree

FILE_SIZE = 8192
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    mapped_file_size_consume_queue_ext=404,
    max_hash_slot_num=1,
    max_index_num=50,
)
EXT = replace(CONFIG, enable_consume_queue_ext=True)
Fails = Callable[[Path, int], bool]


class FailingDisk(HastyDisk):
    """A disk on which some writes fail once failing is switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Fails = lambda _path, _offset: False

    def write(self, path: Path, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write, or fail as on a full device."""
        if self.fails(path, offset):
            raise StoreIOError("write", path, OSError(errno.ENOSPC, "No space left on device"))
        super().write(path, offset, data)


class LosingDisk(HastyDisk):
    """A disk that, when power fails, keeps only some of the writes since the last sync."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps: Fails | None = None

    def write(self, path: Path, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write, or lose it."""
        if self.keeps is None or self.keeps(path, offset):
            super().write(path, offset, data)

    def sync(self) -> None:
        """Sync, or fail because power is lost."""
        if self.keeps is not None:
            raise StoreIOError("sync", Path(), OSError(errno.EIO, "power lost"))
        super().sync()


def keyed(number: int, *, prepared: bool = False) -> Message:
    return Message(
        topic="T",
        queue_offset=0 if prepared else number,
        store_timestamp=1000 + number,
        sys_flag=PREPARED if prepared else 0,
        properties=[("KEYS", f"k{number}")],
    )


def scanned(owned: DispatchOutput, config: StoreConfig) -> DispatchRequests:
    (part,) = LogPlanner(owned.log, lambda: True).plan(0).ranges
    (requests,) = Scanner(config).read(part)
    assert isinstance(requests, DispatchRequests)
    return requests


def assert_recovers(directory: Path, config: StoreConfig) -> None:
    """Restart on a healthy disk, and compare."""
    dispatch_all(directory / "s", directory / "o", config)
    dispatch_all(directory / "s", directory / "undisturbed", config)
    assert_same_store(directory / "o", directory / "undisturbed")


@pytest.mark.parametrize(
    ("first", "place", "config"),
    [
        pytest.param(1, "index", CONFIG, id="index header"),
        pytest.param(1, "consumequeue", EXT, id="queue behind its ext units"),
        pytest.param(0, "consumequeue", CONFIG, id="first unit of a queue"),
        pytest.param(
            2,
            "consumequeue",
            replace(CONFIG, mapped_file_size_consume_queue=40),
            id="first unit of the next file",
        ),
        pytest.param(0, "consumequeue_ext", EXT, id="first ext unit"),
    ],
)
def test_a_full_disk_in_a_batch(
    tmp_path: Path, first: int, place: str, config: StoreConfig
) -> None:
    messages = [keyed(n) for n in range(4)]
    if place == "index":
        messages[1:] = [keyed(n, prepared=True) for n in (1, 2)]
    write_log(build_log(messages, FILE_SIZE), tmp_path / "s" / "commitlog")
    disk = FailingDisk()
    owned = DispatchOutput.open(tmp_path / "o", tmp_path / "s", config, disk=disk)
    with closing(DispatchSink(owned, config)) as sink:
        requests = scanned(owned, config)
        if first:
            sink.apply([requests.slice(0, first)])
        disk.fails = lambda path, at: place in path.parts and (place != "index" or at == 0)
        with pytest.raises(StoreIOError, match="No space left"):
            sink.apply([requests])
    assert_recovers(tmp_path, config)


@pytest.mark.parametrize("kept", ["index", "consumequeue", "nothing"])
def test_power_loss_in_a_batch(tmp_path: Path, kept: str) -> None:
    write_log(build_log([keyed(n) for n in range(4)], FILE_SIZE), tmp_path / "s" / "commitlog")
    disk = LosingDisk()
    owned = DispatchOutput.open(tmp_path / "o", tmp_path / "s", CONFIG, disk=disk)
    with closing(DispatchSink(owned, CONFIG)) as sink:
        requests = scanned(owned, CONFIG)
        sink.apply([requests.slice(0, 1)])
        disk.keeps = lambda path, at: kept in path.parts and at > 0
        with pytest.raises(StoreIOError, match="power lost"):
            sink.apply([requests])
    assert_recovers(tmp_path, CONFIG)


def test_a_batch_is_on_record_before_it_is_written(tmp_path: Path) -> None:
    write_log(build_log([keyed(n) for n in range(4)], FILE_SIZE), tmp_path / "s" / "commitlog")
    disk = FailingDisk()
    owned = DispatchOutput.open(tmp_path / "o", tmp_path / "s", CONFIG, disk=disk)
    with closing(DispatchSink(owned, CONFIG)) as sink:
        requests = scanned(owned, CONFIG)
        sink.apply([requests.slice(0, 2)])
        assert read_batch(tmp_path / "o") == BatchRecord(1, (QueueEnd("T", 0),), IndexEnd())
        before = tree(tmp_path / "o" / "consumequeue")
        disk.fails = lambda _path, _at: True
        with pytest.raises(StoreIOError):
            sink.apply([requests])
        record = read_batch(tmp_path / "o")
        assert record is not None
        assert (record.number, owned.progress.batch) == (2, 1)
        assert record.queues == (QueueEnd("T", 0, 40, 400),)
        assert tree(tmp_path / "o" / "consumequeue") == before


@pytest.mark.parametrize("name", ["checkpoint", BATCH])
def test_torn_state_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    write_log(build_log([keyed(n) for n in range(4)], FILE_SIZE), tmp_path / "s" / "commitlog")
    owned = DispatchOutput.open(tmp_path / "o", tmp_path / "s", CONFIG, disk=HastyDisk())
    sink = DispatchSink(owned, CONFIG)
    sink.apply([scanned(owned, CONFIG).slice(0, 1)])
    owned.close(clean=False)
    path = tmp_path / "o" / name
    good = path.read_bytes()
    path.write_bytes(b"")
    before = tree(tmp_path / "o")
    with pytest.raises(DamageError, match=str(path)):
        dispatch_all(tmp_path / "s", tmp_path / "o", CONFIG)
    assert tree(tmp_path / "o") == before
    path.write_bytes(good)
    dispatch_all(tmp_path / "s", tmp_path / "o", CONFIG)


def test_the_batch_record_is_read_with_care(tmp_path: Path) -> None:
    assert read_batch(tmp_path) is None
    (tmp_path / BATCH).mkdir(parents=True)
    with pytest.raises(StoreError, match="cannot read"):
        read_batch(tmp_path)
