"""What of Spark's standard error is passed on: not what every start says, nor the planner's end.

The process that plans a stream reads from Spark's JVM. When a query ends, that is closed before the
process is, which then prints how it failed to read, and to write that it failed. What really fails
there reaches the query as its error. So it is with workers whose task was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_NOISE = (
    b"WARNING: Using incubator modules",
    b"Setting default log level",
    b"To adjust logging level",
    b"Picked up JAVA_TOOL_OPTIONS",
)
_TRACEBACK = b"Traceback (most recent call last):"
_GOES_ON = (b"During handling of the above", b"The above exception was")
_PLANNER = b"python_streaming_source_runner.py"
_WORKER, _BROKEN_PIPE = b"pyspark/daemon.py", b"BrokenPipeError"


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that say something; a traceback is held until it is known to be complete."""
    block: list[bytes] = []
    has_ended = False  # the block has the line of its exception: it may go on with another
    for line in lines:
        if block and _belongs(line, has_ended=has_ended):
            block.append(line)
            if line.strip():
                has_ended = not line.startswith((b" ", _TRACEBACK, *_GOES_ON))
            continue
        yield from _kept(block)
        block, has_ended = [], False
        if line.startswith(_TRACEBACK):
            block = [line]
        elif not line.startswith(_NOISE):
            yield line
    yield from _kept(block)


def _belongs(line: bytes, *, has_ended: bool) -> bool:
    return not has_ended or not line.strip() or line.startswith(_GOES_ON)


def _kept(block: list[bytes]) -> list[bytes]:
    said = b"".join(block)
    is_cut_off = _WORKER in said and said.rstrip().rpartition(b"\n")[2].startswith(_BROKEN_PIPE)
    return [] if is_cut_off or _PLANNER in said else block
