"""Following a log that is truncated: by its broker, or in place by whatever copies it."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.commitlog.record import NewMessage, encode_record, make_properties
from store.config import StoreConfig
from store.errors import DamageError
from store.reads import message_search
from store.reads.message_filter import MessageFilter
from store.reads.message_search import LogSearch
from tests.support.consoles import SECONDS, wait_until
from tests.support.stores.written import corrupt, make_store, small_config

CONFIG = small_config()
FILE_SIZE = CONFIG.mapped_file_size_commit_log


class Follower:
    """Follows the log of a store in a thread; `bodies` are those found."""

    def __init__(self, root: Path) -> None:
        self.job = LogSearch(root, CONFIG, MessageFilter())
        self.offsets = [m.commit_log_offset for m in self.job.messages()]
        self.bodies: list[bytes] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            for message in self.job.follow(self.job.end, 0.01):
                self.bodies.append(message.body)
        except DamageError as e:
            self.error = e


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    """Follow a log of three files whose broker runs, and has appended a message since."""
    make_store(tmp_path, 900)
    (tmp_path / "abort").touch()
    followed = Follower(tmp_path)
    followed.thread.start()
    write(last_file(tmp_path), followed.job.end, [b"old"])
    wait_until(lambda: followed.bodies == [b"old"])
    yield followed
    followed.job.stop.set()
    followed.thread.join(SECONDS)


def last_file(root: Path) -> Path:
    return max((root / "commitlog").iterdir())


def write(path: Path, offset: int, bodies: list[bytes], config: StoreConfig = CONFIG) -> None:
    """Write records from an offset on, over what is there."""
    with path.open("r+b") as f:
        for n, body in enumerate(bodies):
            message = NewMessage("T", 0, body, make_properties())
            record = encode_record(
                message, config, queue_offset=n, commit_log_offset=offset, store_timestamp=1
            )
            f.seek(offset % FILE_SIZE)
            f.write(record)
            offset += len(record)


def shrink(path: Path, at: int) -> None:
    os.truncate(path, at)
    time.sleep(0.1)
    os.truncate(path, FILE_SIZE)


def regrow_at_once(path: Path, at: int) -> None:
    os.truncate(path, at)
    os.truncate(path, FILE_SIZE)


def overwrite(path: Path, at: int) -> None:
    """Leave the file as it is: a broker only moves its position."""


@pytest.mark.parametrize("truncate", [shrink, regrow_at_once, overwrite])
@pytest.mark.parametrize("count", [3, 60])
def test_what_is_written_after_a_truncation_is_found(
    tmp_path: Path, follower: Follower, truncate: Callable[[Path, int], None], count: int
) -> None:
    cut, path = follower.offsets[-10], last_file(tmp_path)
    truncate(path, cut % FILE_SIZE)
    bodies = [b"new %d" % n for n in range(count)]
    write(path, cut, bodies)
    wait_until(lambda: follower.bodies[-count:] == bodies)
    assert follower.error is None


def test_a_file_that_is_copied_again_is_followed_on(tmp_path: Path, follower: Follower) -> None:
    path, copy = last_file(tmp_path), tmp_path / "copy"
    shutil.copy(path, copy)
    with path.open("wb") as f:
        for at in range(0, FILE_SIZE, 16384):
            f.write(copy.read_bytes()[at : at + 16384])
            f.flush()
            time.sleep(0.05)
    write(path, follower.job.log.max_offset(), [b"new"])
    wait_until(lambda: follower.bodies[-1:] == [b"new"])
    assert follower.bodies.count(b"old") == 1


def test_a_file_that_stays_truncated_is_damage(
    tmp_path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_search, "_REFILL_SECONDS", 0.2)
    os.truncate(last_file(tmp_path), 100)
    wait_until(lambda: follower.error is not None)
    assert "truncated" in str(follower.error) or "has 100 bytes" in str(follower.error)


def test_damage_is_raised_at_once(tmp_path: Path, follower: Follower) -> None:
    (tmp_path / "abort").unlink()
    path, end = last_file(tmp_path), follower.job.end
    began = time.monotonic()
    shutil.copy(path, tmp_path / "copy")
    write(tmp_path / "copy", end, [b"bad", b"good"])
    corrupt(tmp_path / "copy", end % FILE_SIZE + 90)
    (tmp_path / "copy").rename(path)
    wait_until(lambda: follower.error is not None)
    assert time.monotonic() - began < 5
