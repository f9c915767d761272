"""``reput rebuild`` killed repeatedly with SIGKILL: it resumes, and the result is equal."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

from checkpoints.state_paths import NEW_OUTPUT_DIR
from store.commitlog.record import NewMessage, make_properties
from store.config import StoreConfig
from store.output.progress import SWAP, read_progress
from tests.support.bulk_writer import BulkWriter
from tests.support.commands import REPUT
from tests.support.dispatching import assert_same_store, dispatch_all

_CONFIG = StoreConfig(mapped_file_size_commit_log=64 << 20, max_hash_slot_num=50_000)
_CONF = "mappedFileSizeCommitLog=67108864\nmaxHashSlotNum=50000\n"
_LOG_BYTES = 1 << 30
_SECONDS = (0.5, 3.0)  # the range of times after which a rebuild is killed


def rebuild_kills(directory: Path, kills: int, seed: int = 1) -> dict[str, int]:
    """Kill ``kills`` rebuilds; return the counts of outcomes."""
    random, store, output = Random(seed), directory / "store", directory / "out"
    _write(store)
    dispatch_all(store, directory / "clean", _CONFIG)
    killed = finished = resumed = in_swap = 0
    at = 0  # the offset that the rebuild in progress has reached
    while killed < kills:
        result = _run(store, output, random.uniform(*_SECONDS))
        progress = read_progress(output / NEW_OUTPUT_DIR)
        if result is None:
            killed += 1
            now = progress.reput_from_offset if progress is not None else 0
            is_swapped = (output / SWAP).exists() or read_progress(output) is not None
            assert is_swapped or now >= at, "an interrupted rebuild started over"
            at = 0 if is_swapped else now
            in_swap += is_swapped
            continue
        finished += 1
        assert result["resumed_from"] >= at
        resumed += result["resumed_from"] > 0
        at = 0
        assert_same_store(output, directory / "clean")
        shutil.rmtree(output)
    return {
        "kills": killed, "of these during or after the swap": in_swap,
        "finished": finished, "resumed": resumed,
    }  # fmt: skip


def _write(store: Path) -> None:
    store.mkdir(parents=True)
    (store / "broker.conf").write_text(_CONF)
    properties = make_properties(uniq_key="01234567########", keys="order-######## all", tags="A")
    templates = [NewMessage("Topic", q, b"x" * 200, properties) for q in range(5)]
    with BulkWriter(store, _CONFIG) as writer:
        while writer.end < _LOG_BYTES:
            writer.append_many(templates, 100_000)


def _run(store: Path, output: Path, seconds: float) -> dict[str, Any] | None:
    """Run a rebuild, killing it after some seconds; return its output, or None if killed."""
    command = [*REPUT, "rebuild", str(store), "--output", str(output), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            printed, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(printed)
    return result
