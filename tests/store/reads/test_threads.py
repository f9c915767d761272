"""Threads share the objects that the docs permit, with the shortest possible switch interval."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import store.io.disk
from store import MessageStore
from store.errors import OutputInUseError
from store.io import mapped_file
from store.io.disk import Disk
from store.io.lock_file import find_owner
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.stores.numbered import CONFIG, make_store, numbered, offsets

THREADS = 8


@pytest.fixture(autouse=True)
def switched_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_threads(*work: Callable[[int], None]) -> list[BaseException]:
    """Run each function with its number, all concurrently; return the errors that they raised."""
    raised: list[BaseException] = []
    begin = threading.Barrier(len(work))

    def run(number: int, do: Callable[[int], None]) -> None:
        begin.wait()
        try:
            do(number)
        except BaseException as e:  # noqa: BLE001 - the test reports it
            raised.append(e)

    threads = [threading.Thread(target=run, args=each) for each in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.parametrize("is_shared", [True, False], ids=["one store", "a store each"])
def test_maps_that_other_threads_drop_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(mapped_file, "_MAPS_MAX", 2)
    directories = make_store(tmp_path / "store", numbered(200)), tmp_path / "out"
    dispatch_all(*directories, CONFIG)
    with MessageStore.open(*directories) as one:
        topics = one.topics()
        time = one.message_store_timestamp("T", 0, 150)
        found = one.offset_in_queue_by_time("T", 0, time)
    stores = [MessageStore.open(*directories) for _ in range(1 if is_shared else THREADS)]

    def read(number: int) -> None:
        s = stores[number % len(stores)]
        for step in range(25):
            at = (number * 7 + step * 3) % 10 * 20
            assert offsets(s.get_message("T", 0, at).messages) == list(range(at, at + 20))
            assert offsets(s.query_message("T", f"k{at}").messages) == [at]
            assert s.offset_in_queue_by_time("T", 0, time) == found
            assert s.topics() == topics

    raised = run_threads(*[read] * THREADS)
    for s in stores:
        s.close()
    assert raised == []


def test_threads_that_share_messages_see_their_fields(tmp_path: Path) -> None:
    directories = make_store(tmp_path / "store", numbered(200)), tmp_path / "out"
    dispatch_all(*directories, CONFIG)
    with MessageStore.open(*directories) as s:
        bodies = [m.body for m in s.get_message("T", 0, 0).messages]
        shared = [s.get_message("T", 0, 0).messages for _ in range(100)]

    def read(_: int) -> None:
        for messages in shared:
            assert offsets(messages) == list(range(20))
            assert [m.body for m in messages] == bodies
            assert {(m.topic, m.queue_id) for m in messages} == {("T", 0)}

    assert run_threads(*[read] * THREADS) == []


def test_threads_write_through_one_disk_what_each_of_them_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.io.disk, "OPEN_FILES_MAX", 2)
    disk, files, size = Disk(), 5, 400

    def write(number: int) -> None:
        paths = [tmp_path / str(number) / str(n) for n in range(files)]
        for path in paths:
            disk.create(path, size)
        for at in range(size):
            disk.write(paths[at % files], at, bytes([number + 1]))
            if at % 100 == 0:
                disk.sync()

    assert run_threads(*[write] * THREADS) == []
    disk.sync()
    disk.close()
    for number in range(THREADS):
        for n in range(files):
            expected = bytes((number + 1) * (at % files == n) for at in range(size))
            assert (tmp_path / str(number) / str(n)).read_bytes() == expected


def test_one_thread_of_a_process_at_a_time_owns_an_output(tmp_path: Path) -> None:
    path, tries = tmp_path / "lock", 50
    inside, seen = [0] * THREADS, []

    def take(number: int) -> None:
        for _ in range(tries):
            disk = HastyDisk()
            try:
                handle = disk.lock(path, b"lock")
            except OutputInUseError:
                continue
            inside[number] = 1
            seen.append(sum(inside))
            inside[number] = 0
            disk.unlock(handle)

    assert run_threads(*[take] * THREADS) == []
    assert set(seen) == {1}
    assert find_owner(path) is None


def find_owner_elsewhere(path: Path) -> str:
    """Return the owner that another process sees."""
    code = "import sys; from pathlib import Path; from store.io.lock_file import find_owner; "
    code += "print(find_owner(Path(sys.argv[1])), end='')"
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_owner_of_an_output_is_found_from_anywhere_and_keeps_its_lock(tmp_path: Path) -> None:
    path, disk = tmp_path / "lock", Disk()
    assert find_owner(path) is None
    handle = disk.lock(path, b"lock")
    for _ in range(2):  # finding the owner from its own process does not release the lock
        assert find_owner(path) == os.getpid()
        assert find_owner_elsewhere(path) == str(os.getpid())
    child = os.fork()
    if child == 0:  # which inherits descriptors, but no lock
        os._exit(0 if find_owner(path) == os.getppid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert find_owner_elsewhere(path) == str(os.getpid())
    disk.unlock(handle)
    assert find_owner(path) is None
    assert find_owner_elsewhere(path) == "None"
