"""Data before progress (promise I4), observed at ``Disk``, which performs all writes."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.dispatch_request import DispatchRequests
from store.errors import StoreError
from store.io.disk import Disk
from store.output.progress import read_progress
from streaming.sinks.dispatch_sink import DispatchSink
from tests.checkpoints.conftest import CONFIG, MESSAGES, opened, scanned
from tests.support.dispatching import dispatch_all, tree


class RecordingDisk(Disk):
    """Records every write, sync and rename, with the file's path below OUTPUT."""

    def __init__(self, output: Path) -> None:
        super().__init__()
        self.output = output
        self.events: list[tuple[str, str]] = []

    def _note(self, event: str, path: Path) -> None:
        self.events.append((event, os.path.relpath(path, self.output.resolve())))

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._note("write", path_of(fd))
        return super()._pwrite(fd, data, offset)

    def _fsync(self, fd: int) -> None:
        self._note("sync", path_of(fd))
        super()._fsync(fd)

    def _fsync_directory(self, fd: int) -> None:
        self._note("sync", path_of(fd))
        super()._fsync_directory(fd)

    def _rename(self, source: Path, target: Path) -> None:
        self._note("rename", target.resolve())
        super()._rename(source, target)

    def create(self, path: Path, size: int) -> None:
        super().create(path, size)
        self._note("create", path.resolve())


def path_of(fd: int) -> Path:
    """Return the path of an open file."""
    return Path(f"/proc/self/fd/{fd}").readlink()


def is_data(name: str) -> bool:
    """Return whether a file is one that a dispatch builds."""
    return name.startswith(("consumequeue", "index")) and Path(name).name.isdigit()


def unsynced_at_each_progress(events: list[tuple[str, str]]) -> Iterator[set[str]]:
    """Yield, for each replacement of progress, the files that were written but not yet synced."""
    unsynced: set[str] = set()
    directories: set[Path] = set()
    for event, name in events:
        if event in ("write", "create"):
            unsynced.add(name)
        if event == "create":
            made = set(Path(name).parents) - directories
            unsynced |= {str(Path(name).parent), *(str(p.parent) for p in made)}
            directories |= made
        if event == "sync":
            unsynced.discard(name)
        if (event, name) == ("rename", "reput/progress"):
            yield unsynced - {"lock"}


@pytest.fixture
def disk(output: Path) -> RecordingDisk:
    """Return a disk that records the operations in OUTPUT."""
    return RecordingDisk(output)


def test_progress_names_only_what_has_been_synced(
    output: Path, store: Path, disk: RecordingDisk
) -> None:
    dispatch_all(store, output, CONFIG, one_by_one=True, disk=lambda: disk)
    states = list(unsynced_at_each_progress(disk.events))
    assert len(states) > len(MESSAGES)
    assert [set()] * len(states) == states


def test_a_batch_is_written_in_the_order_data_progress_checkpoint(
    output: Path, store: Path, disk: RecordingDisk
) -> None:
    owned = DispatchOutput.open(output, store, CONFIG, disk=disk)
    with closing(DispatchSink(owned, CONFIG)) as sink:
        requests = scanned(owned)
        disk.events.clear()
        sink.apply(requests)
        events = list(disk.events)
    written = {name for event, name in events if event == "write" and is_data(name)}
    assert {"consumequeue", "index"} == {name.split("/")[0] for name in written}
    numbered = [(n, event) for n, (event, name) in enumerate(events) if name in written]
    last_write = max(n for n, event in numbered if event == "write")
    syncs = [n for n, event in numbered if event == "sync"]
    checkpoint, progress = (
        events.index(("rename", name)) for name in ("checkpoint", "reput/progress")
    )
    assert len(written) == len(syncs)
    assert last_write < min(syncs) <= max(syncs) < progress < checkpoint


@pytest.mark.parametrize("name", ["checkpoint", "reput/progress", "abort"])
def test_a_state_file_is_replaced_atomically_and_synced(
    output: Path, store: Path, disk: RecordingDisk, name: str
) -> None:
    dispatch_all(store, output, CONFIG, disk=lambda: disk)
    renamed = disk.events.index(("rename", name))
    directory = str(Path(name).parent)
    before, after = disk.events[:renamed], disk.events[renamed + 1 :]
    assert before[-2:] == [("write", f"{name}.tmp"), ("sync", f"{name}.tmp")]
    assert ("sync", directory) in after
    assert ("write", name) not in disk.events


def test_a_clean_close_removes_abort_last(output: Path, store: Path, disk: RecordingDisk) -> None:
    dispatch_all(store, output, CONFIG, disk=lambda: disk)
    assert disk.events[-1] == ("sync", ".")
    assert not (output / "abort").exists()


def test_a_checkpoint_that_stays_the_same_is_not_written_again(
    output: Path, store: Path, disk: RecordingDisk
) -> None:
    dispatch_all(store, output, CONFIG)
    dispatch_all(store, output, CONFIG, disk=lambda: disk)
    assert ("rename", "checkpoint") not in disk.events


class BrokenDispatcher:
    """An error that is not a StoreError."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def dispatch(self, _requests: DispatchRequests) -> None:
        """Fail."""
        raise self.error


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_an_interrupted_batch_is_not_followed_by_another(
    output: Path, store: Path, error: BaseException
) -> None:
    owned = DispatchOutput.open(output, store, CONFIG)
    with closing(DispatchSink(owned, CONFIG)) as sink:
        requests = scanned(owned)
        sink.dispatchers.append(BrokenDispatcher(error))
        with pytest.raises(type(error)):
            sink.apply(requests)
        sink.dispatchers.pop()
        written = tree(output)
        with pytest.raises(StoreError, match="was not applied"):
            sink.apply(requests)
        assert written == tree(output)
    progress = read_progress(output)
    assert progress is not None
    assert progress.reput_from_offset == 0
    assert (output / "abort").exists()
    with opened(output, store) as owned:
        assert [r.why for r in owned.recovered] == ["a dispatch was interrupted in a batch"]
