"""Bodies in bulk: batches are bounded in size, and bodies beyond the limit raise or become null."""

import logging
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from store.arrow.batches import BodyLimits, message_batches
from store.errors import BodyTooLargeError
from store.layout import SYS_COMPRESSED
from tests.logs.scanned_bodies import COLUMNS, CONFIG, scan
from tests.support.bombs import BOMBS

SIZES = (100, 400, 0, 300, 200, 900, 50, 50)


def read(
    bodies: list[tuple[bytes, int]], limits: BodyLimits, **rows: object
) -> list[pa.RecordBatch]:
    requests, view = scan(bodies)
    return list(message_batches(requests, view, 0, COLUMNS, config=CONFIG, limits=limits, **rows))


@pytest.mark.parametrize("rows", [None, [0, 1, 3, 4, 5, 7]])
def test_batches_keep_decompressed_bodies_within_the_limit(rows: list[int] | None) -> None:
    bodies = [bytes([n]) * size for n, size in enumerate(SIZES)]
    packed = [(zlib.compress(b), SYS_COMPRESSED) for b in bodies]
    packed[3] = (bodies[3], 0)
    chosen = None if rows is None else np.array(rows)
    (whole,) = read(packed, BodyLimits(), rows=chosen)
    assert [whole["body"][i].as_py() for i in range(len(whole))] == [
        b for n, b in enumerate(bodies) if rows is None or n in rows
    ]
    batches = read(packed, BodyLimits(batch_bytes=600), rows=chosen)
    expected = [4, 1, 1, 2] if rows is None else [3, 1, 1, 1]  # uncompressed bodies do not count
    assert [len(batch) for batch in batches] == expected
    assert pa.Table.from_batches(batches) == pa.Table.from_batches([whole])


def test_a_body_beyond_the_limit_is_an_error_or_null(caplog: pytest.LogCaptureFixture) -> None:
    packed = [(zlib.compress(bytes(size)), SYS_COMPRESSED) for size in SIZES]
    requests, _ = scan(packed)
    limits = BodyLimits(body_bytes=899)
    offset = int(requests.commit_log_offset[5])
    with pytest.raises(BodyTooLargeError, match=f"offset {offset} .* 899 bytes; .* maxBodyBytes"):
        read(packed, limits)
    with caplog.at_level(logging.WARNING):
        (batch,) = read(packed, replace(limits, leaves_out=True))
    expected = [bytes(size) for size in SIZES]
    assert batch["body"].to_pylist() == [*expected[:5], None, *expected[6:]]
    assert f"offset {offset} decompresses to more than 899 bytes" in caplog.text
    assert caplog.text.endswith("; its body is null\n")


@pytest.mark.parametrize("kind", ["nothing", *BOMBS, "many"])
def test_memory_for_bombs_is_bounded(kind: str) -> None:
    """Neither one body of gigabytes nor many of 60 MB in one range of the log are held at once."""
    program = f"""
import resource, zlib
from store.arrow.batches import BodyLimits, message_batches
from tests.support.bombs import BOMBS
from tests.logs.scanned_bodies import COLUMNS, CONFIG, scan
bodies = {{"nothing": [(b"", 0)], "many": [(zlib.compress(bytes(60 << 20)), 1)] * 12}}
bodies |= {{name: [(make(), flag)] for name, (make, flag) in BOMBS.items()}}
requests, view = scan([(b"", 0), *bodies[{kind!r}]])
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
limits = BodyLimits(leaves_out=True)
sizes = [
    [len(b) if b is not None else None for b in batch["body"].to_pylist()]
    for batch in message_batches(requests, view, 0, COLUMNS, config=CONFIG, limits=limits)
]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base, sum(sizes, []))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    grown, _, sizes = done.stdout.decode().partition(" ")
    many = [0, *[60 << 20] * 12]
    expected = {"nothing": [0, 0], "many": many}.get(kind, [0, None])
    assert (sizes.strip(), int(grown) < 320 * 1024) == (str(expected), True), grown
