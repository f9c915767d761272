"""A process that matches large bodies for ``match.py``, so that a match can be killed.

It reads from stdin the sizes of an expression and a body, and both; it answers with a byte. It ends
with its stdin; should its parent have ended in the middle of a match, an alarm ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from typing import BinaryIO

SIZES = struct.Struct("<QQ")
FOUND, NOT_FOUND = b"1", b"0"
_NICENESS = 10  # answers of the parent come first


def main() -> None:
    """Answer until stdin ends."""
    import pyarrow as pa  # noqa: PLC0415 - its import is the costly part of the start
    import pyarrow.compute as pc  # noqa: PLC0415 - likewise

    seconds, requests = int(sys.argv[1]), sys.stdin.buffer
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # kills the process, also amid a match
    while header := _read(requests, SIZES.size):
        pattern_size, body_size = SIZES.unpack(header)
        pattern = _read(requests, pattern_size).decode()
        body = pa.array([_read(requests, body_size)], pa.binary())
        signal.alarm(seconds)
        is_found = pc.match_substring_regex(body, pattern)[0].as_py()
        signal.alarm(0)
        os.write(sys.stdout.fileno(), FOUND if is_found else NOT_FOUND)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        sys.exit()
    return data


if __name__ == "__main__":
    main()
