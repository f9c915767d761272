"""Reads on a root whose files are replaced meanwhile: each answer is of one generation.

A swap, an adoption and a rollback each begin a new generation of a root's files
(``store.root.progress``); a dispatch only adds to the one there is. A read computes its answer from
the files as they are, then compares the root with the progress that the answer rests on:

* unchanged: the answer counts;
* another generation, or one in the making: the answer, whatever it is, is computed again, after
  waiting for the swap or the recovery to end;
* an error counts if it is raised twice in a row within a generation: a file may expire between its
  listing and its use.

Reads on one object run one at a time, so threads may share it. None waits inside the mutex.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from store.errors import StoreError
from store.root.progress import ProgressReader, ProgressView

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Reads = TypeVar("_Reads", bound="ConsistentReads")


class ConsistentReads:
    """What reads on one root share; a subclass marks its reads with the decorators below."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self._progress = ProgressReader(output)
        self._dispatched: ProgressView | None = None  # what answers rest on
        self._is_open = True
        self._guard = threading.RLock()

    def _see_progress(self) -> None:
        """Read the progress into ``_dispatched``; drop what is known of another generation."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"{self.output} has been closed")

    def _read_again(self, read: Callable[[], _T], error: Exception | None) -> _T:
        """Repeat a read that raised ``error``, or whose answer the root has changed under."""
        deadline = self._progress.deadline()
        while True:
            self._progress.await_generation(deadline)
            before, error = error, None
            with self._guard:
                self._check_open()
                try:
                    self._see_progress()
                    answer = read()
                except Exception as e:  # noqa: BLE001 - files of two generations: anything
                    error = e
                else:
                    if self._progress.is_generation(self._dispatched):
                        return answer
                is_one = error is not None and self._progress.is_generation(self._dispatched)
            is_late = time.monotonic() >= deadline
            if error is not None and is_one and (is_late or _is_same(error, before)):
                raise error
            if is_late:
                raise self._progress.replaced_again()


def of_generation(
    read: Callable[Concatenate[_Reads, _P], _T],
) -> Callable[Concatenate[_Reads, _P], _T]:
    """Let a read of queues or the index answer from files of one generation."""

    @wraps(read)
    def reading(self: _Reads, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        error: Exception | None = None
        with self._guard:
            self._check_open()
            try:
                answer = read(self, *args, **kwargs)
                if self._progress.is_unchanged(self._dispatched):
                    return answer
            except Exception as e:  # noqa: BLE001 - files of two generations: anything
                error = e
        return self._read_again(partial(read, self, *args, **kwargs), error)

    return reading


def of_log(
    read: Callable[Concatenate[_Reads, _P], _T],
) -> Callable[Concatenate[_Reads, _P], _T]:
    """Let a read of the log, which no swap touches, be repeated once: a file may have expired."""

    @wraps(read)
    def reading(self: _Reads, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._guard:
            self._check_open()
            try:
                self._see_progress()
                return read(self, *args, **kwargs)
            except StoreError:
                self._see_progress()
                return read(self, *args, **kwargs)

    return reading


def _is_same(error: Exception, other: Exception | None) -> bool:
    return type(error) is type(other) and str(error) == str(other)
