"""Stores whose messages may carry queue offsets that differ from their positions."""

from dataclasses import replace
from pathlib import Path

from store.config import StoreConfig
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 4096
CONFIG = replace(
    StoreConfig(),
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=5,
    max_index_num=100,
)
CONF = f"""
mappedFileSizeCommitLog={FILE_SIZE}
mappedFileSizeConsumeQueue=400
maxHashSlotNum=5
maxIndexNum=100
"""


def make(store_root: Path, messages: list[Message], config: StoreConfig = CONFIG) -> str:
    """Write a store and dispatch it into itself."""
    write_log(build_log(messages, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF)
    dispatch_all(store_root, store_root, config)
    return str(store_root)


def numbered(*queue_offsets: int) -> list[Message]:
    """Make messages of one queue with these queue offsets and alternating tags."""
    return [
        Message(topic="T", queue_offset=at, properties=[("TAGS", "AB"[n % 2])])
        for n, at in enumerate(queue_offsets)
    ]
