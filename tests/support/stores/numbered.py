"""Stores of numbered messages of one queue."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from store.config import StoreConfig
from tests.logs.build import Batch, Message, build_log, write_log

FILE_SIZE = 16 * 1024
CONF = f"""
mappedFileSizeCommitLog={FILE_SIZE}
mappedFileSizeConsumeQueue=400
maxHashSlotNum=5
maxIndexNum=40
"""
CONFIG = replace(
    StoreConfig(),
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=5,
    max_index_num=40,
)
START = 1_700_000_000_000


def numbered(
    count: int, *, body: bytes = b"hello", tags: Sequence[str] = ("A", "B")
) -> list[Message]:
    """Make messages of topic T, queue 0, one second apart, each with keys `k<n>` and `all`."""
    return [
        Message(
            topic="T",
            queue_offset=n,
            body=body,
            properties=[("KEYS", f"k{n} all"), ("TAGS", tags[n % len(tags)])],
            store_timestamp=START + 1000 * n,
        )
        for n in range(count)
    ]


def make_store(
    store_root: Path, messages: Sequence[Message | Batch], config: StoreConfig = CONFIG
) -> Path:
    """Write a store: its log and broker.conf."""
    write_log(build_log(messages, config.mapped_file_size_commit_log), store_root / "commitlog")
    (store_root / "broker.conf").write_text(
        CONF.replace(str(FILE_SIZE), str(config.mapped_file_size_commit_log))
    )
    return store_root


def offsets(found: Sequence[object]) -> list[int]:
    return [m.queue_offset for m in found]  # type: ignore[attr-defined]
