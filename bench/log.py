"""The benchmark's log: messages of about 385 bytes with 3 index keys each, in 8 queues.

The number of a message comes first in its keys: a Java hash multiplies it by a high power of 31
then, so the hashes of neighbours spread over the whole slot table, as those of business keys do.
"""

from __future__ import annotations

import time
from pathlib import Path

from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from tests.support.bulk_writer import BulkWriter

QUEUES = 8
_BODY = b"order ######## " + b"x" * 185


def templates(keys: int = 3) -> list[NewMessage]:
    """Return one numbered template a queue, of messages with 1 or 3 index keys."""
    properties = make_properties(
        uniq_key="########0123456789ABCDEF01234567",
        keys="########-order #####-user" if keys > 1 else "",
        tags="TagA",
        WAIT="true",
    )
    return [NewMessage("BenchTopic", queue, _BODY, properties) for queue in range(QUEUES)]


def write_bench_log(store: Path, messages: int) -> dict[str, float]:
    """Write the log if it is missing."""
    if (store / "commitlog").is_dir():
        return {}
    began = time.perf_counter()
    with BulkWriter(store, StoreConfig()) as writer:
        writer.append_many(templates(), messages)
        size = writer.end / messages
    seconds = time.perf_counter() - began
    return {"log: bytes a message": size, "log: messages/s written": messages / seconds}
