"""Consistent reads: each answer comes from one generation of files.

A swap, an adoption and a rollback each start a new generation of the files of OUTPUT
(``store.output.progress_reader``); a dispatch only adds to the current one. A read computes its
answer from the current files, then compares OUTPUT with the progress on which the answer is
based:

* unchanged: the answer is valid;
* another generation, or a replacement in progress: the read waits for the swap or recovery to end,
  then is repeated, whatever its result was;
* the progress was deleted: the error is raised at once;
* an error is raised if it occurs twice in a row within a generation: a file may expire between its
  listing and its use.

Reads on one object run one at a time, so threads may share it. None waits while holding the mutex.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from store.errors import StoreError
from store.io.mapped_file import intact
from store.output.progress import ProgressView
from store.output.progress_reader import SWAP_SECONDS, ProgressReader, Wait

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Reads = TypeVar("_Reads", bound="ConsistentReads")


class ConsistentReads:
    """Base of consistent reads of one OUTPUT; a subclass decorates its reads as defined below.

    ``swap_wait_seconds`` is the time that a read waits while a swap or a recovery replaces files.
    """

    swap_wait_seconds = SWAP_SECONDS

    def __init__(self, output: Path) -> None:
        self.output = output
        self._progress_reader = ProgressReader(output)
        self._progress: ProgressView | None = None  # the progress on which answers are based
        self._is_open = True
        self._guard = threading.RLock()

    def _refresh_progress(self) -> None:
        """Read the progress into ``_progress``; drop what is cached of another generation."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"{self.output} has been closed")

    def _retry(self, read: Callable[[], _T], error: Exception | None) -> _T:
        """Repeat a read that raised ``error``, or during which OUTPUT changed."""
        wait = Wait(self.swap_wait_seconds)
        while True:
            self._progress_reader.await_generation(wait)
            previous, error = error, None
            with self._guard:
                self._check_open()
                try:
                    with intact():
                        self._refresh_progress()
                        answer = read()
                except Exception as e:  # noqa: BLE001 - a mix of two generations raises anything
                    error = e
                else:
                    if self._progress_reader.is_same_generation(self._progress):
                        return answer
                if error is not None and self._progress_reader.is_deleted(self._progress):
                    raise error
                is_consistent = error is not None and self._progress_reader.is_same_generation(
                    self._progress
                )
            is_late = wait.is_over()
            if error is not None and is_consistent and (is_late or _is_same(error, previous)):
                raise error
            if is_late:
                raise self._progress_reader.replaced_repeatedly(wait)


def of_generation(
    read: Callable[Concatenate[_Reads, _P], _T],
) -> Callable[Concatenate[_Reads, _P], _T]:
    """Make a read of queues or the index answer from the files of one generation."""

    @wraps(read)
    def consistent_read(self: _Reads, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        error: Exception | None = None
        with self._guard:
            self._check_open()
            try:
                with intact():
                    answer = read(self, *args, **kwargs)
                if self._progress_reader.is_unchanged(self._progress):
                    return answer
            except Exception as e:  # noqa: BLE001 - a mix of two generations raises anything
                error = e
        return self._retry(partial(read, self, *args, **kwargs), error)

    return consistent_read


def of_log(
    read: Callable[Concatenate[_Reads, _P], _T],
) -> Callable[Concatenate[_Reads, _P], _T]:
    """Repeat a read of the log once if it fails: a file may have expired.

    No swap touches the log, so its reads need no generation.
    """

    @wraps(read)
    def consistent_read(self: _Reads, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._guard:
            self._check_open()
            try:
                with intact():
                    self._refresh_progress()
                    return read(self, *args, **kwargs)
            except StoreError:
                with intact():
                    self._refresh_progress()
                    return read(self, *args, **kwargs)

    return consistent_read


def _is_same(error: Exception, other: Exception | None) -> bool:
    return type(error) is type(other) and str(error) == str(other)
