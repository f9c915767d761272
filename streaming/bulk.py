"""Bulk work as Spark jobs: each task a row, run by any executor that sees the files.

Executors need this package (installed, or sent with ``--py-files``), and STORE and OUTPUT at the
same paths. What a task did is on the shared file system; through Spark go the task, and how much of
the log is done, which an accumulator brings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession

from checkpoints.bulk.rebuild import BulkRebuilt, Report, rebuild_root
from checkpoints.bulk.tasks import Run
from checkpoints.root import DispatchRoot
from checkpoints.settings import resolve_config
from store.errors import ConfigError
from store.foreign import refuse_foreign_store
from streaming.failures import error_of

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_LOOK_SECONDS = 0.2


def rebuild(  # noqa: PLR0913 - as start_dispatch
    spark: SparkSession,
    store_root: str | Path,
    output: str | Path,
    *,
    broker_conf: str | Path | None = None,
    broker_version: str | None = None,
    report: Report | None = None,
) -> BulkRebuilt:
    """Build all queues and the index of a log anew in ``output``, and swap them in.

    ``report`` is called with the bytes of log done and those in all. A rebuild that was killed goes
    on. Raises ConfigError, RootInUseError, UnsupportedFormatError, StoreIOError, SparkError; then
    OUTPUT is as it was. Where the log is damaged, what lies before is built and in its place when
    DamageError is raised.
    """
    conf = Path(broker_conf) if broker_conf is not None else None
    root = take_root(Path(store_root), Path(output), conf, broker_version)
    rebuilt = rebuild_root(root, spark_run(spark.sparkContext), report)
    if rebuilt.damage is not None:
        raise rebuilt.damage.error()
    return rebuilt


def take_root(
    store_root: Path, output: Path, broker_conf: Path | None, broker_version: str | None
) -> DispatchRoot:
    """Take the root of a rebuild: all that can be refused is refused without Spark."""
    if not store_root.is_dir():
        raise ConfigError(f"{store_root} is not a directory: give the broker's storePathRootDir")
    config = resolve_config(store_root, output, broker_conf, broker_version)
    refuse_foreign_store(store_root, config)
    return DispatchRoot.replacing(output.absolute(), store_root.absolute(), config)


def spark_run(context: SparkContext) -> Run:
    """Return what runs tasks on the executors of a session."""

    def run(
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        return _run(context, function, tasks, advance) if tasks else []

    return run


class _Numbers(AccumulatorParam[list[int]]):
    """Gathers the numbers of the tasks that are done."""

    def zero(self, value: list[int]) -> list[int]:
        return []

    def addInPlace(self, value1: list[int], value2: list[int]) -> list[int]:
        return value1 + value2


def _run(
    context: SparkContext,
    function: Callable[[_Task], _Result],
    tasks: Sequence[_Task],
    advance: Callable[[_Task], None],
) -> list[_Result]:
    done = context.accumulator([], _Numbers())

    def do(numbered: tuple[int, _Task]) -> tuple[int, _Result]:
        number, task = numbered
        result = function(task)
        done.add([number])
        return number, result

    with _Watch(lambda: done.value, lambda number: advance(tasks[number])):
        try:
            rows = context.parallelize(list(enumerate(tasks)), len(tasks)).map(do).collect()
        except Exception as e:
            raise error_of(e) from e
    return [result for _, result in sorted(rows, key=lambda row: row[0])]


class _Watch:
    """Tells of finished tasks while a job runs, each once."""

    def __init__(self, done: Callable[[], list[int]], tell: Callable[[int], None]) -> None:
        self._done = done
        self._tell = tell
        self._told: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reput-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for number in self._done():
            if number not in self._told:
                self._told.add(number)
                self._tell(number)
