"""Shared by the tests of checkpoints: a store, and an OUTPUT dispatched from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints.output import DispatchOutput
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import UNLIMITED, LogPlanner
from store.commitlog.scanner import Damage, Scanner
from store.config import StoreConfig
from tests.logs.build import Message, build_log, encode, write_log
from tests.support.dispatching import HastyDisk

FILE_SIZE = 1024
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=100,
    max_hash_slot_num=7,
    max_index_num=10,
)
MESSAGES = [
    Message(queue_offset=n, store_timestamp=1000 + n, properties=[("KEYS", f"k{n:02d}")])
    for n in range(20)
]
FILES = build_log(MESSAGES, FILE_SIZE)
SIZE = len(encode(MESSAGES[0], 0))
PER_FILE = (FILE_SIZE - 8) // SIZE
LAST_BASE = max(FILES)
LAST_OFFSET = LAST_BASE + (len(MESSAGES) - 1) % PER_FILE * SIZE


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store with a log of several files."""
    write_log(FILES, tmp_path / "store" / "commitlog")
    return tmp_path / "store"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the path of an OUTPUT that does not exist yet."""
    return tmp_path / "output"


@contextmanager
def opened(output: Path, store: Path, config: StoreConfig = CONFIG) -> Iterator[DispatchOutput]:
    """Open an OUTPUT, and close it at the end."""
    owned = DispatchOutput.open(output, store, config, disk=HastyDisk())
    try:
        yield owned
    finally:
        owned.close(clean=True)


def scanned(
    owned: DispatchOutput,
    begin: int = 0,
    *,
    max_bytes: int = UNLIMITED,
    range_bytes: int = UNLIMITED,
) -> list[DispatchRequests | Damage]:
    """Plan and scan an OUTPUT's log."""
    planner = LogPlanner(owned.log, lambda: True, range_bytes=range_bytes)
    plan = planner.plan(begin, max_bytes=max_bytes)
    scanner = Scanner(owned.log.config)
    return [s for part in plan.ranges for s in scanner.read(part)]
