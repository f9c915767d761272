"""The real query, ``reput dispatch``, killed repeatedly with SIGKILL: the files are equal."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from checkpoints.batch_record import read_batch
from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from store.output.progress import read_progress
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT
from tests.support.dispatching import assert_same_store, dispatch_all

_SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "mappedFileSizeConsumeQueueExt": 20_004,
    "maxHashSlotNum": 200,
    "maxIndexNum": 4_000,
}
_CONF = "".join(f"{name}={size}\n" for name, size in _SIZES.items()) + (
    "enableConsumeQueueExt=true\nenableMultiDispatch=true\nenableLmq=true\n"
)
CONFIG = replace(
    StoreConfig(),
    mapped_file_size_commit_log=_SIZES["mappedFileSizeCommitLog"],
    mapped_file_size_consume_queue=_SIZES["mappedFileSizeConsumeQueue"],
    mapped_file_size_consume_queue_ext=_SIZES["mappedFileSizeConsumeQueueExt"],
    max_hash_slot_num=_SIZES["maxHashSlotNum"],
    max_index_num=_SIZES["maxIndexNum"],
    enable_consume_queue_ext=True,
    enable_multi_dispatch=True,
    enable_lmq=True,
)
_BATCH_BYTES = "20k"
_MESSAGES_A_KILL = 3_000


def spark_kills(directory: Path, kills: int, seed: int = 1) -> dict[str, int]:
    """Kill a running dispatch ``kills`` times; return the counts of outcomes."""
    random, store, output = Random(seed), directory / "store", directory / "out"
    _write(store, kills * _MESSAGES_A_KILL)
    cut_off, before = 0, 0
    for _ in range(kills):
        _run_and_kill(store, output, random.uniform(0.0, 2.0))
        record, progress = read_batch(output), read_progress(output)
        assert progress is not None
        assert progress.messages >= before
        before = progress.messages
        cut_off += record is not None and record.number > progress.batch
    progress = dispatch_all(store, output, CONFIG)
    dispatch_all(store, directory / "clean", CONFIG)
    assert_same_store(output, directory / "clean")
    return {
        "kills of the query": kills, "batches cut off": cut_off,
        "messages before the last kill": before, "messages": progress.messages,
    }  # fmt: skip


def _write(store: Path, count: int) -> None:
    store.mkdir(parents=True)
    (store / "broker.conf").write_text(_CONF)
    lmq = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
    templates = [
        NewMessage("T", 0, b"x" * 40, make_properties(keys="k-######## all", tags="A")),
        NewMessage("T", 1, b"y" * 400, make_properties(uniq_key="U########")),
        NewMessage("主题", 0, b"z", make_properties(keys="z", tags="B", **lmq)),
    ]
    with BulkWriter(store, CONFIG) as writer:
        writer.append_many(templates, count)


def _run_and_kill(store: Path, output: Path, seconds: float) -> None:
    """Kill a dispatch some seconds after its first progress report."""
    arguments = ["dispatch", store, "--output", output, "--max-bytes-per-trigger", _BATCH_BYTES]
    with subprocess.Popen([*REPUT, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " progress " in line:
                break
        time.sleep(seconds)
        assert process.poll() is None, "".join(lines)
        process.send_signal(signal.SIGKILL)
