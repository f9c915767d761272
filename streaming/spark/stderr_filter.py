"""The filter for Spark's standard error: drops start-up lines and the noise of a stopping query.

The Python process that plans a stream reads from a socket to Spark's JVM. When a query ends, the
JVM closes the socket before it ends the process, which then prints tracebacks: it could not read,
and it could not report that. A real failure there reaches the query as its error. The same holds
for workers whose task was cancelled.
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
_CHAINED = (b"During handling of the above", b"The above exception was")
_PLANNER = b"python_streaming_source_runner.py"
_WORKER, _BROKEN_PIPE = b"pyspark/daemon.py", b"BrokenPipeError"


def without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that carry information; a traceback is held back until it is complete."""
    block: list[bytes] = []
    has_ended = False  # the exception line was read; a chained traceback may follow
    for line in lines:
        if block and _belongs(line, has_ended=has_ended):
            block.append(line)
            if line.strip():
                has_ended = not line.startswith((b" ", _TRACEBACK, *_CHAINED))
            continue
        yield from _unless_noise(block)
        block, has_ended = [], False
        if line.startswith(_TRACEBACK):
            block = [line]
        elif not line.startswith(_NOISE):
            yield line
    yield from _unless_noise(block)


def _belongs(line: bytes, *, has_ended: bool) -> bool:
    return not has_ended or not line.strip() or line.startswith(_CHAINED)


def _unless_noise(block: list[bytes]) -> list[bytes]:
    text = b"".join(block)
    is_cancelled = _WORKER in text and text.rstrip().rpartition(b"\n")[2].startswith(_BROKEN_PIPE)
    return [] if is_cancelled or _PLANNER in text else block
