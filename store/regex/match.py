"""Bodies matched with a regular expression, in steps of bounded work that can be stopped.

RE2 takes a time proportional to the states of an expression times the bytes, at worst, and cannot
be interrupted. So bodies are matched in pieces of at most ``_WORK_MAX`` states times bytes, below a
second; between two pieces the caller may stop. A body that alone takes more work is matched by a
process (``match_process.py``), which is killed when the caller stops, or after ``BODY_SECONDS``.
"""

from __future__ import annotations

import atexit
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store.errors import ConfigError, SlowExpressionError, StoreIOError, shown
from store.regex import match_process
from store.regex.size import state_count

STATES_MAX = 5000
BODY_SECONDS = 30.0
_WORK_MAX = 40_000_000  # states times bytes of a piece
_PROCESSES_MAX = 2
_TICK_SECONDS = 0.05
_WRITE_BYTES = 1 << 20
_PROGRAM = Path(match_process.__file__)

IsStopped = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression that RE2 accepts, and how many states it has at most."""

    pattern: str
    states: int

    @classmethod
    def parse(cls, pattern: str) -> Regex:
        """Check an expression. Raises ConfigError if it is malformed or too large."""
        try:
            pc.match_substring_regex(pa.array([b""]), pattern)
        except pa.ArrowInvalid as e:
            raise ConfigError(f"regular expression {shown(pattern)}: {e}") from e
        states = state_count(pattern)
        if states > STATES_MAX:
            raise ConfigError(
                f"regular expression {shown(pattern)} expands to {states} states, more than "
                f"{STATES_MAX}: counts such as {{9}} multiply with what they repeat"
            )
        return cls(pattern, states)

    def matches(self, bodies: pa.Array, is_stopped: IsStopped) -> NDArray[np.bool_]:
        """Return for each body whether the expression is found in it; a null never matches.

        Once ``is_stopped`` returns true, no further body matches. Raises SlowExpressionError.
        """
        sizes = pc.binary_length(bodies).fill_null(0).to_numpy(zero_copy_only=False)
        piece_bytes = max(_WORK_MAX // self.states, 1)
        ends = np.cumsum(sizes, dtype=np.int64)
        if not len(ends) or ends[-1] <= piece_bytes:
            return self._found(bodies)
        mask = np.zeros(len(bodies), np.bool_)
        is_large = sizes > piece_bytes
        cuts = np.diff(ends // piece_bytes) != 0
        cuts |= is_large[1:] | is_large[:-1]
        edges = [0, *(np.flatnonzero(cuts) + 1).tolist(), len(bodies)]
        for begin, end in pairwise(edges):
            if is_stopped():
                break
            if is_large[begin]:
                body = bodies[begin].as_buffer()
                mask[begin] = _PROCESSES.match(self.pattern.encode(), body, is_stopped)
            else:
                mask[begin:end] = self._found(bodies.slice(begin, end - begin))
        return mask

    def _found(self, bodies: pa.Array) -> NDArray[np.bool_]:
        found = pc.match_substring_regex(bodies, self.pattern).fill_null(False)
        mask: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return mask


class _Stopped(Exception):  # noqa: N818 - no error
    """The caller has stopped."""


class _MatchProcesses:
    """The processes that match large bodies; few at a time, used again."""

    def __init__(self) -> None:
        self._free = threading.BoundedSemaphore(_PROCESSES_MAX)
        self._guard = threading.Lock()
        self._idle: list[_MatchProcess] = []
        atexit.register(self.close)

    def match(self, pattern: bytes, body: pa.Buffer, is_stopped: IsStopped) -> bool:
        """Return whether a body matches; False once the caller stops. Raises StoreError."""
        while not self._free.acquire(timeout=_TICK_SECONDS):
            if is_stopped():
                return False
        try:
            with self._guard:
                process = self._idle.pop() if self._idle else None
            try:
                process = process or _MatchProcess()
                found = process.match(pattern, memoryview(body), is_stopped)
            except _Stopped:
                return False
            except OSError as e:
                raise StoreIOError("match a body with", _PROGRAM, e) from e
            with self._guard:
                self._idle.append(process)
            return found
        finally:
            self._free.release()

    def close(self) -> None:
        """End the processes that are idle."""
        with self._guard:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()


class _MatchProcess:
    """One process; after an exception of ``match`` it has been killed."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C is for the caller, who stops it. It ends with its stdin.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(int(BODY_SECONDS) + 1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def match(self, pattern: bytes, body: memoryview, is_stopped: IsStopped) -> bool:
        deadline = time.monotonic() + BODY_SECONDS
        try:
            header = match_process.SIZES.pack(len(pattern), len(body))
            for part in (memoryview(header + pattern), body):
                sent = 0
                while sent < len(part):
                    self._wait(is_stopped, deadline, writes=True)
                    sent += os.write(self._stdin.fileno(), part[sent : sent + _WRITE_BYTES])
            self._wait(is_stopped, deadline, writes=False)
            answer = os.read(self._stdout.fileno(), 1)
            if not answer:
                raise OSError(f"it ended with exit code {self._process.wait()}")
        except BaseException:
            self.kill()
            raise
        return answer == match_process.FOUND

    def _wait(self, is_stopped: IsStopped, deadline: float, *, writes: bool) -> None:
        """Wait until the process takes or sends something."""
        poll = select.poll()  # unlike select, for any descriptor
        poll.register(
            self._stdin if writes else self._stdout, select.POLLOUT if writes else select.POLLIN
        )
        while not poll.poll(_TICK_SECONDS * 1000):
            if is_stopped():
                raise _Stopped
            if time.monotonic() > deadline:
                raise SlowExpressionError(
                    f"the regular expression takes more than {BODY_SECONDS:.0f} s for one body"
                )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()


_PROCESSES = _MatchProcesses()
