"""How long an OUTPUT takes to open after a batch was cut off, or when its log came back shorter.

The stores are written and dispatched here, without a JVM. A batch is cut off by a disk that fails
when all is written and nothing is synced: what a killed process leaves. An open that has nothing
to do is shown for comparison: the others include its work.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

from bench.reads import KEY_MESSAGES, KEYS_PER_MESSAGE, dispatch
from checkpoints.output import DispatchOutput
from checkpoints.recovery.steps import Recovered
from store import layout
from store.commitlog.planner import LogPlanner
from store.commitlog.record import NewMessage, make_properties
from store.commitlog.scanner import Scanner
from store.config import StoreConfig
from store.errors import StoreIOError
from store.io.disk import Disk
from store.io.mapped_file import file_name
from streaming.sinks.dispatch_sink import DispatchSink
from tests.support.bulk_writer import BulkWriter

QUEUES = (100, 1_000, 10_000)
MESSAGES_PER_QUEUE = 10
BATCH_MESSAGES = 16  # of the batch in flight, each for another queue if there are so many
INDEX_MESSAGES = KEY_MESSAGES - 1_000  # nearly fill an index file
ROUNDS = 3


class CutDisk(Disk):
    """A disk that syncs nothing once ``is_cut``; what was written stays."""

    is_cut = False

    def sync(self) -> None:
        """Sync, or end the batch in flight."""
        if self.is_cut:
            raise StoreIOError("sync", Path(), OSError(errno.EIO, "cut off"))
        super().sync()


class Dispatched:
    """A log of one file and its OUTPUT; a small batch is written to the log for each try."""

    def __init__(self, work: Path, templates: list[NewMessage], messages: int) -> None:
        """Write a log and dispatch it."""
        self.store, self.output = work / "store", work / "out"
        self._templates = templates
        self._messages = 0
        self._write(messages)
        dispatch(self.store, self.output)

    def open(self) -> tuple[float, Recovered | None]:
        """Open and close; return how long opening took, and what it recovered."""
        began = time.perf_counter()
        owned = DispatchOutput.open(self.output, self.store, StoreConfig())
        seconds = time.perf_counter() - began
        owned.close(clean=True)
        return seconds, owned.recovered[0] if owned.recovered else None

    def open_after_cut_off_batch(self) -> tuple[float, Recovered | None]:
        """Start to dispatch a small batch, cut it off, and open."""
        begin = self._write(BATCH_MESSAGES)
        disk, config = CutDisk(), StoreConfig()
        owned = DispatchOutput.open(self.output, self.store, config, disk=disk)
        with closing(DispatchSink(owned, config)) as sink:
            plan = LogPlanner(owned.log, lambda: True).plan(begin)
            batch = [s for part in plan.ranges for s in Scanner(config).read(part)]
            disk.is_cut = True
            with suppress(StoreIOError):
                sink.apply(batch)
        opened = self.open()
        dispatch(self.store, self.output)
        return opened

    def open_with_shorter_log(self) -> tuple[float, Recovered | None]:
        """Dispatch a small batch, and open while the log ends inside its first record."""
        at = self._write(BATCH_MESSAGES) + layout.RECORD_MIN_SIZE
        dispatch(self.store, self.output)
        with (self.store / layout.COMMIT_LOG_DIR / file_name(0)).open("r+b") as log:
            tail = os.pread(log.fileno(), 1 << 20, at)
            os.pwrite(log.fileno(), bytes(len(tail)), at)
            opened = self.open()
            os.pwrite(log.fileno(), tail, at)
        dispatch(self.store, self.output)
        return opened

    def _write(self, messages: int) -> int:
        """Append messages to the log; return where they begin."""
        with BulkWriter(self.store, StoreConfig()) as writer:
            begin = writer.end
            writer.append_many(self._templates, messages, first=self._messages)
        self._messages += messages
        return begin


def run(_store: Path, work: Path) -> dict[str, float]:
    """Return seconds, the best of some rounds, and how many queues were cut."""
    shutil.rmtree(work, ignore_errors=True)
    figures: dict[str, float] = {}
    try:
        for queues in QUEUES:
            name = f"recovery, {queues:,} queues"
            figures |= _measure(name, _many_queues(work / str(queues), queues))
        made = _full_index(work / "index")
        [index] = (made.output / layout.INDEX_DIR).iterdir()
        name = f"recovery, index file of {index.stat().st_size / 1e6:.0f} MB"
        figures |= _measure(name, made)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return figures


def _many_queues(work: Path, queues: int) -> Dispatched:
    properties = make_properties(uniq_key="0123456789ABCDEF01234567########", tags="TagA")
    templates = [NewMessage(f"Topic{n // 8}", n % 8, b"x" * 100, properties) for n in range(queues)]
    return Dispatched(work, templates, queues * MESSAGES_PER_QUEUE)


def _full_index(work: Path) -> Dispatched:
    keys = " ".join(f"key{n}-########" for n in range(KEYS_PER_MESSAGE))
    template = NewMessage("K", 0, b"x" * 10, make_properties(keys=keys))
    return Dispatched(work, [template], INDEX_MESSAGES)


def _measure(name: str, made: Dispatched) -> dict[str, float]:
    nothing = min(made.open()[0] for _ in range(ROUNDS))
    cut_off = [made.open_after_cut_off_batch() for _ in range(ROUNDS)]
    shorter = [made.open_with_shorter_log() for _ in range(ROUNDS)]
    shutil.rmtree(made.store.parent)
    return {
        f"{name}: open, nothing to do: s": nothing,
        f"{name}: batch cut off: s": min(seconds for seconds, _ in cut_off),
        f"{name}: batch cut off: queues cut": _queues(cut_off[0][1]),
        f"{name}: log shorter: s": min(seconds for seconds, _ in shorter),
        f"{name}: log shorter: queues cut": _queues(shorter[0][1]),
    }


def _queues(recovered: Recovered | None) -> int:
    if recovered is None:
        raise RuntimeError("there was nothing to recover")
    return recovered.cut.queues
