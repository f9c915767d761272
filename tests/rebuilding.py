"""Rebuild a store as a whole without Spark: tasks run here, or fail when a test wants it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checkpoints.bulk.rebuild import BulkRebuilt, rebuild_root
from checkpoints.bulk.tasks import Run, RunHere
from checkpoints.root import DispatchRoot
from store.config import StoreConfig
from store.disk import Disk

PART_BYTES = 400


class AsOnCores(RunHere):
    """Runs tasks here that are cut as for several cores."""

    cores = 3


_HERE = AsOnCores()


def rebuild_all(  # noqa: PLR0913 - each is a way of the same rebuild
    store_root: Path,
    output: Path,
    config: StoreConfig,
    *,
    run: Run = _HERE,
    part_bytes: int = PART_BYTES,
    disk: Disk | None = None,
) -> BulkRebuilt:
    """Rebuild all; a process that is killed gives its lock back, and nothing more."""
    root = DispatchRoot.replacing(output, store_root, config, disk=disk)
    try:
        return rebuild_root(root, run, part_bytes=part_bytes)
    finally:
        root._release()


class FailingRun:
    """Runs ``tasks`` tasks, the last ones first, then fails with an error."""

    cores = 3

    def __init__(self, tasks: int, error: BaseException) -> None:
        self.left = tasks
        self.error = error
        self.done: list[Any] = []

    def __call__(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], advance: Callable[[Any], None]
    ) -> list[Any]:
        results = []
        for task in reversed(tasks):
            if self.left == 0:
                raise self.error
            self.left -= 1
            self.done.append(task)
            results.append(function(task))
            advance(task)
        return results[::-1]
