"""What runs the tasks of an export: threads of this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


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
