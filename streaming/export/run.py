"""What runs the tasks of an export: a job of Spark's, or this process.

Executors need this package (installed, or sent with ``--py-files``), and STORE and the directory
that is written at the same paths. Through Spark go the task and a short answer.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from pyspark import SparkContext

from streaming.spark.errors import to_store_error

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_LOOK_SECONDS = 0.2
_TASKS_A_CORE = 16  # of Spark, at most: enough for cores to end at about the same time


class TaskRunner(Protocol):
    """Runs a function on each of some tasks, in any order and anywhere.

    ``cores``: how many run at a time. ``advance`` is told of each task that is done. Raises the
    StoreError that a task raised.
    """

    cores: int

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        """Run all, and return what they came to, in the order of the tasks."""


class LocalRunner:
    """Runs one task after the other in this process."""

    cores = 1

    def __call__(
        self,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        advance: Callable[[_Task], None],
    ) -> list[_Result]:
        """Run all."""
        results = []
        for task in tasks:
            results.append(function(task))
            advance(task)
        return results


class SparkRunner:
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

        def report(number: int) -> None:
            for task in groups[number]:
                advance(task)

        with _Watch(lambda: _completed(context, group), report, count):
            try:
                return [result for results in rows.collect() for result in results]
            except Exception as e:
                raise to_store_error(e) from e


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

    def __init__(self, done: Callable[[], int], report: Callable[[int], None], count: int) -> None:
        self._done = done
        self._report = report
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
            self._report(number)
        self._told = max(self._told, count)
