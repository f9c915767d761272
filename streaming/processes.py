"""Bulk tasks in processes of this machine, without a JVM: for logs soon read, beside Spark's start.

Processes are forked when the kernels are loaded, so they have them at once, and before there are
threads. They end with the process that made them, however that ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from checkpoints.bulk.tasks import Run
from checkpoints.bulk.warm import load_kernels
from store.config import StoreConfig
from store.errors import StoreError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
SPARK_BYTES = 16 << 30  # of log: what is more is for Spark
_PR_SET_PDEATHSIG = 1


def is_for_spark(store_root: Path, config: StoreConfig) -> bool:
    """Tell whether a log is so large that Spark is to read it, where no master is named."""
    paths = config.commit_log_paths(store_root)
    files = (f for path in paths if path.is_dir() for f in path.iterdir())
    return sum(f.stat().st_size for f in files) > SPARK_BYTES


@contextmanager
def processes() -> Iterator[Run]:
    """Give what runs tasks on all cores; a StoreError that a task raises is raised here."""
    load_kernels()
    fork, cores = multiprocessing.get_context("fork"), len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=fork, initializer=_begin_process) as pool:
        pool.submit(int).result()  # all are forked now
        yield _ProcessRun(pool, cores)


@dataclass(slots=True)
class _ProcessRun:
    pool: ProcessPoolExecutor
    cores: int

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        futures = [self.pool.submit(function, task) for task in tasks]
        numbers = {future: number for number, future in enumerate(futures)}
        try:
            for future in as_completed(futures):
                future.result()
                advance(tasks[numbers[future]])
        except BrokenProcessPool as e:
            raise StoreError("a process at work was killed (was there memory enough?)") from e
        finally:
            for future in futures:
                future.cancel()
        return [future.result() for future in futures]


def _begin_process() -> None:
    """Leave the terminal's signals to the process that made this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
