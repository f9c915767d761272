"""Rebuild a store in small batches, with a hook before each batch."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from checkpoints.output import DispatchOutput
from checkpoints.output_entries import BUILT_DIRS
from checkpoints.swap import SwapRecord, write_swap
from store.commitlog.parallel_scan import scan_in_order
from store.commitlog.planner import LogPlanner
from store.config import StoreConfig
from store.io.disk import Disk
from store.output.progress import SWAP, read_progress
from streaming.queries.feed import Feed
from streaming.queries.rebuild import RebuildResult, rebuild_output
from streaming.sinks.ordered_sink import BatchSink
from tests.support.dispatching import HastyDisk

BATCH_BYTES = 1_500

BeforeBatch = Callable[[int], object]  # takes the offset where the next batch begins


def rebuild_all(  # noqa: PLR0913 - each varies the same rebuild
    store_root: Path,
    output: Path,
    config: StoreConfig,
    *,
    batch_bytes: int = BATCH_BYTES,
    before: BeforeBatch = lambda _: None,
    disk: Disk | None = None,
) -> RebuildResult:
    """Rebuild OUTPUT; a killed process only releases its lock."""
    disk = disk if disk is not None else HastyDisk()
    owned = DispatchOutput.replacing(output, store_root, config, disk=disk)
    try:
        return rebuild_output(owned, feed_in_batches(owned, batch_bytes, before))
    finally:
        owned._release()


def begin_swap(output: Path) -> Path:
    """Write the record of a swap whose files are all in place; return its path."""
    progress = read_progress(output)
    assert progress is not None
    names = tuple(name for name in BUILT_DIRS if (output / name).is_dir())
    write_swap(output, SwapRecord(progress, names), Disk())
    return output / SWAP


def feed_in_batches(owned: DispatchOutput, batch_bytes: int, before: BeforeBatch) -> Feed:
    """Return a feed of small batches."""

    def feed(span: tuple[int, int], is_clean: bool, sink: BatchSink) -> None:
        planner, at = LogPlanner(owned.log, lambda: is_clean), span[0]
        scan = scan_in_order(planner, owned.log.config, span, batch_bytes=batch_bytes)
        with closing(scan) as scanned:
            before(at)
            for at, stretches in scanned:
                sink.apply(stretches)
                before(at)

    return feed


def fail_after(batches: int, error: BaseException) -> BeforeBatch:
    """Return a hook that raises an error after `batches` batches have been applied."""
    left = batches

    def count(_at: int) -> None:
        nonlocal left
        if left == 0:
            raise error
        left -= 1

    return count
