"""The kernels alone, on one core: decode (with and without CRC), queue and index puts."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import DispatchRequests, concat
from store.commitlog.planner import LogPlanner
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.consumequeue.writer import ConsumeQueueStore
from store.index.writer import IndexService
from store.io.disk import Disk

ROUNDS = 3


def run(store: Path, work: Path) -> dict[str, float]:
    """Return the best of some rounds of each, the first of which compiles."""
    config = StoreConfig()
    log = CommitLog(config.commit_log_paths(store), config)
    ranges = LogPlanner(log, lambda: True).plan(log.min_offset()).ranges
    figures = {}
    parts: list[DispatchRequests] = []
    for with_crc in (True, False):
        best = 0.0
        for _ in range(ROUNDS):
            scanner = Scanner(config)
            scanner.rules = scanner.rules._replace(check_crc=with_crc)
            began = time.perf_counter()
            parts = [s for r in ranges for s in scanner.read(r) if isinstance(s, DispatchRequests)]
            best = max(best, sum(map(len, parts)) / (time.perf_counter() - began))
        figures[f"decode, {'with' if with_crc else 'without'} CRC: messages/s a core"] = best
    requests = concat(parts)
    queue_rate, key_rate = 0.0, 0.0
    for _ in range(ROUNDS):
        shutil.rmtree(work, ignore_errors=True)
        disk = Disk()
        queues, index = ConsumeQueueStore(work, config, disk), IndexService(work, config, disk)
        began = time.perf_counter()
        queues.put_message_position_info(requests)
        queue_rate = max(queue_rate, len(requests) / (time.perf_counter() - began))
        began = time.perf_counter()
        index.build_index(requests)
        key_rate = max(key_rate, len(requests.key_hash) / (time.perf_counter() - began))
        disk.close()
    shutil.rmtree(work)
    figures["consume queue puts: units/s a core"] = queue_rate
    figures["index puts: keys/s a core"] = key_rate
    return figures
