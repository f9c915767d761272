"""Bulk work as Spark jobs: each task a row, run by any executor that sees the files.

Executors need this package (installed, or sent with ``--py-files``), and STORE and OUTPUT at the
same paths. What a task did is on the shared file system; through Spark go the task and a
short answer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from checkpoints.bulk.rebuild import BulkRebuilt, Report, rebuild_root
from store.given_path import given_path
from streaming.failures import error_of
from streaming.take_root import take_root

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_LOOK_SECONDS = 0.2
_TASKS_A_CORE = 16  # of Spark, at most: enough for cores to end at about the same time


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
    root = take_root(given_path(store_root), given_path(output), conf, broker_version)
    rebuilt = rebuild_root(root, SparkRun(spark.sparkContext), report)
    if rebuilt.damage is not None:
        raise rebuilt.damage.error()
    return rebuilt


class SparkRun:
    """Runs tasks on the executors of a session: a job whose rows are a few tasks each."""

    def __init__(self, context: SparkContext) -> None:
        self.cores: int = context.defaultParallelism
        self._context = context

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        """Run all; how many are done is asked of Spark."""
        if not tasks:
            return []
        context, group = self._context, f"reput-{uuid.uuid4().hex}"
        context.setJobGroup(group, "reput", interruptOnCancel=False)
        count = min(len(tasks), self.cores * _TASKS_A_CORE)
        bounds = [n * len(tasks) // count for n in range(count + 1)]
        groups = [tasks[begin:end] for begin, end in pairwise(bounds)]
        rows = context.parallelize(groups, count).map(_Each(function))

        def tell(number: int) -> None:
            for task in groups[number]:
                advance(task)

        with _Watch(lambda: _completed(context, group), tell, count):
            try:
                return [result for results in rows.collect() for result in results]
            except Exception as e:
                raise error_of(e) from e


@dataclass(frozen=True, slots=True)
class _Each(Generic[_Task, _Result]):
    """Runs a function on each of a Spark task's tasks: one of Spark's own costs 30 ms and more."""

    function: Callable[[_Task], _Result]

    def __call__(self, tasks: Sequence[_Task]) -> list[_Result]:
        return [self.function(task) for task in tasks]


def _completed(context: SparkContext, group: str) -> int:
    """Return how many tasks of a group's jobs are done."""
    tracker, done = context.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(group):
        found = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(n) for n in found.stageIds] if found is not None else []
        done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return done


class _Watch:
    """Tells of so many tasks while a job runs, in their order, as there are done."""

    def __init__(self, done: Callable[[], int], tell: Callable[[int], None], count: int) -> None:
        self._done = done
        self._tell = tell
        self._count = count
        self._told = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reput-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            self._tell_up_to(self._count)

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self._tell_up_to(min(self._done(), self._count))

    def _tell_up_to(self, count: int) -> None:
        for number in range(self._told, count):
            self._tell(number)
        self._told = max(self._told, count)
