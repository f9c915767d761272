"""Rebuild a store as a whole in small batches; a test may do something before each."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from checkpoints.root import DispatchRoot
from store.config import StoreConfig
from store.disk import Disk
from store.log_plan import LogPlanner
from store.log_replay import scan_in_order
from streaming.batch_sink import BatchSink
from streaming.rebuild import Rebuilt, rebuild_root
from tests.dispatching import HastyDisk

BATCH_BYTES = 1_500

BeforeBatch = Callable[[int], object]  # told where the next batch begins


def rebuild_all(  # noqa: PLR0913 - each is a way of the same rebuild
    store_root: Path,
    output: Path,
    config: StoreConfig,
    *,
    batch_bytes: int = BATCH_BYTES,
    before: BeforeBatch = lambda _: None,
    disk: Disk | None = None,
) -> Rebuilt:
    """Rebuild all; a process that is killed gives its lock back, and nothing more."""
    disk = disk if disk is not None else HastyDisk()
    root = DispatchRoot.replacing(output, store_root, config, disk=disk)

    def feed(span: tuple[int, int], is_clean: bool, sink: BatchSink) -> None:
        planner, at = LogPlanner(root.log, lambda: is_clean), span[0]
        scan = scan_in_order(planner, config, span, batch_bytes=batch_bytes)
        with closing(scan) as scanned:
            before(at)
            for at, stretches in scanned:
                sink.apply(stretches)
                before(at)

    try:
        return rebuild_root(root, feed)
    finally:
        root._release()


def fail_after(batches: int, error: BaseException) -> BeforeBatch:
    """Return what raises an error when so many batches have been applied."""
    left = batches

    def count(_at: int) -> None:
        nonlocal left
        if left == 0:
            raise error
        left -= 1

    return count
