"""Small stores to verify: a dispatched log of a few messages, and ways to change its files."""

import shutil
from dataclasses import replace
from pathlib import Path

from checkpoints.state_paths import REPUT_DIR
from store import layout
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.compare.store import Difference
from store.config import StoreConfig
from streaming.queries.verify import Verification
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

CONFIG = StoreConfig(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=100,  # 5 units
    max_hash_slot_num=7,
    max_index_num=13,  # 12 entries
)
EXT_CONFIG = replace(
    CONFIG, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=130
)  # 6 units a file
VARIANTS = {
    "plain": CONFIG,
    "ext": EXT_CONFIG,
    "lmq": replace(EXT_CONFIG, enable_multi_dispatch=True, enable_lmq=True),
    "tiny": replace(CONFIG, mapped_file_size_consume_queue=20, max_index_num=2),
}
QUEUE = "consumequeue/TopicTest/0"
EXT_QUEUE = "consumequeue_ext/TopicTest/0"
IN_A_BODY = 100
ENTRIES_AT = layout.index_entry_at(0, CONFIG.max_hash_slot_num)


def messages(count: int, first: int = 0) -> list[Message]:
    """Make messages of one queue, with two keys each, one second apart."""
    return [
        Message(
            queue_offset=n,
            body=b"0123456789" * 10,
            store_timestamp=1_700_000_000_000 + n * 1000,
            properties=[("TAGS", "A"), ("KEYS", f"k{n} common")],
        )
        for n in range(first, first + count)
    ]


def write_store(parent: Path, sent: list[Message], start: int = 0) -> Path:
    """Write a store whose log contains these messages."""
    store_root = parent / "store"
    files = build_log(sent, CONFIG.mapped_file_size_commit_log, start=start)
    write_log(files, store_root / "commitlog")
    return store_root


def make(parent: Path, config: StoreConfig = CONFIG, count: int = 12) -> tuple[Path, Path]:
    """Write a store and dispatch it."""
    store, output = write_store(parent, messages(count)), parent / "output"
    dispatch_all(store, output, config)
    return store, output


def forget_progress(output: Path) -> None:
    """Make an OUTPUT look like a broker's."""
    shutil.rmtree(output / REPUT_DIR)


def index_file(output: Path, number: int = 0) -> Path:
    """Return an index file by its number."""
    return sorted((output / "index").iterdir())[number]


def flip(path: Path, at: int, mask: int = 1) -> None:
    """Change one byte."""
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ mask]))


def only(result: Verification) -> Difference:
    """Return the only difference."""
    assert len(result.differences) == 1, [str(d) for d in result.differences]
    return result.differences[0]


def requests_of(store: Path, config: StoreConfig) -> DispatchRequests:
    """Scan a log of one file."""
    log = CommitLog(config.commit_log_paths(store), config)
    (part,) = LogPlanner(log, lambda: True).plan(0).ranges
    (requests,) = Scanner(config).read(part)
    assert isinstance(requests, DispatchRequests)
    return requests
