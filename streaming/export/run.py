"""The runners of an export's tasks: threads of this process, or a Spark job.

Executors need this package (installed, or sent with ``--py-files``), and must see STORE and the
target directory at the same paths. Only the task and a short result pass through Spark.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from pyspark import SparkContext

from streaming.spark.errors import to_store_error

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_POLL_SECONDS = 0.2
_TASKS_PER_CORE = 16  # Spark tasks, at most: enough for all cores to finish at about the same time


@dataclass(frozen=True, slots=True)
class Tasks(Generic[_Task, _Result]):
    """A function and its arguments, the tasks; ``advance`` is called with each finished task."""

    function: Callable[[_Task], _Result]
    tasks: Sequence[_Task]
    advance: Callable[[_Task], None]


class TaskRunner(Protocol):
    """Runs tasks, in any order and in any process."""

    def __call__(self, work: Tasks[_Task, _Result]) -> list[_Result]:
        """Return the results in the order of the tasks. Raises the StoreError of a task."""


def run_in_threads(work: Tasks[_Task, _Result]) -> list[_Result]:
    """Run the tasks in one thread per core; after a failure, start no further task."""
    threads = ThreadPoolExecutor(os.cpu_count(), "reput-export")
    try:
        results = []
        for task, result in zip(work.tasks, threads.map(work.function, work.tasks), strict=True):
            results.append(result)
            work.advance(task)
        return results
    finally:
        threads.shutdown(cancel_futures=True)


class SparkRunner:
    """Runs tasks on the executors of a session: one job, each of whose rows is a group of tasks."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def __call__(self, work: Tasks[_Task, _Result]) -> list[_Result]:
        """Run all tasks; Spark's status tracker is polled for the number of those finished."""
        tasks = work.tasks
        if not tasks:
            return []
        context, group = self._context, f"reput-{uuid.uuid4().hex}"
        context.setJobGroup(group, "reput", interruptOnCancel=False)
        count = min(len(tasks), context.defaultParallelism * _TASKS_PER_CORE)
        bounds = [n * len(tasks) // count for n in range(count + 1)]
        groups = [tasks[begin:end] for begin, end in pairwise(bounds)]
        rows = context.parallelize(groups, count).map(_RunGroup(work.function))

        def report(number: int) -> None:
            for task in groups[number]:
                work.advance(task)

        with _ProgressPoller(lambda: _completed_count(context, group), report, count):
            try:
                return [result for results in rows.collect() for result in results]
            except Exception as e:
                raise to_store_error(e) from e


@dataclass(frozen=True, slots=True)
class _RunGroup(Generic[_Task, _Result]):
    """Runs a function on a group of tasks in one Spark task, which costs 30 ms or more."""

    function: Callable[[_Task], _Result]

    def __call__(self, tasks: Sequence[_Task]) -> list[_Result]:
        return [self.function(task) for task in tasks]


def _completed_count(context: SparkContext, group: str) -> int:
    """Return the number of finished Spark tasks of a job group."""
    tracker, done = context.statusTracker(), 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(n) for n in info.stageIds] if info is not None else []
        done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return done


class _ProgressPoller:
    """Polls a job for finished Spark tasks, and reports as many group numbers, in order."""

    def __init__(self, done: Callable[[], int], report: Callable[[int], None], count: int) -> None:
        self._done = done
        self._report = report
        self._count = count
        self._reported = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="reput-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if kind is None:
            self._report_up_to(self._count)

    def _poll(self) -> None:
        while not self._end.wait(_POLL_SECONDS):
            self._report_up_to(min(self._done(), self._count))

    def _report_up_to(self, count: int) -> None:
        for number in range(self._reported, count):
            self._report(number)
        self._reported = max(self._reported, count)
