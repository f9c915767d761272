"""Settings with which no broker could run are refused, with the reason."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from store.config import load_config
from store.errors import ConfigError
from store.layout import INDEX_HEADER_SIZE
from tests.logs.build import Message, build_log, write_log

LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("maxIndexNum=2147483647", "index files would have 42969672980 bytes; a broker cannot map"),
        ("maxIndexNum=106374181", "maxIndexNum=106374181: index files would have 2147483660 bytes"),
        ("maxHashSlotNum=2147483647", "maxHashSlotNum=2147483647 and maxIndexNum=20000000: index"),
        ("mappedFileSizeConsumeQueue=2147483647", "consume queue files would have 2147483660 byt"),
        ("messageDelayLevel=999999999999999999d", "'999999999999999999d' is more than 922337203"),
        ("messageDelayLevel=1s -999999999999999999d", "'-999999999999999999d' is more than"),
        ("storePathCommitLog=,", "storePathCommitLog=',' names no directory"),
        ("storePathCommitLog= , ,", "names no directory"),
        ("storePathCommitLog=a\\u0000b", "names no directory"),
        ("storePathCommitLog=\\ud800", "names no directory"),
        ("storePathRootDir=/a\\u0000", "names no directory"),
    ],
)
def test_values_beyond_a_broker_are_refused(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "broker.conf").write_text(line + "\n")
    with pytest.raises(ConfigError, match=reason):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "maxIndexNum=106374180",
        "maxHashSlotNum=436870901",
        "mappedFileSizeConsumeQueue=2147483640",
        f"mappedFileSizeCommitLog={LARGEST}",
        f"mappedFileSizeConsumeQueueExt={LARGEST}",
        "messageDelayLevel=106751991167d",
        "storePathCommitLog=/a, ,b,",
    ],
)
def test_the_largest_values_of_a_broker_are_read(tmp_path: Path, line: str) -> None:
    (tmp_path / "broker.conf").write_text(line + "\n")
    assert load_config(tmp_path).delay_levels_ms()


def run_reput(*arguments: object) -> tuple[int, float]:
    """Run a command in a process of its own; return its exit code and peak memory in MB."""
    program = """
import resource, sys
from reput.cli import run
code = run(sys.argv[1:])
kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # a rebuild starts processes
print(max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024, file=sys.stderr)
sys.exit(code)
"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, float(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    "sizes",
    [(400_000_000, 1000), pytest.param((1000, 100_000_000), marks=pytest.mark.exhaustive)],
)
def test_memory_follows_the_slots_and_entries_in_use(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """The index file has 2 GB, nearly all of it a hole: none of that is read or held."""
    sent = [Message(queue_offset=n, properties=[("KEYS", f"k{n}")]) for n in range(20)]
    write_log(build_log(sent, 1 << 16), tmp_path / "commitlog")
    conf = f"mappedFileSizeCommitLog={1 << 16}\nmaxHashSlotNum={{}}\nmaxIndexNum={{}}\n"
    peaks = []
    for slots, entries in ((1000, 1000), sizes):
        (tmp_path / "broker.conf").write_text(conf.format(slots, entries))
        output = tmp_path / f"output-{slots}-{entries}"
        for command in ("rebuild", "verify", "recover"):
            code, peak = run_reput(command, tmp_path, "--output", output)
            assert (command, code) == (command, 0)
            peaks.append(peak)
    assert [b - a < 64 for a, b in zip(peaks[:3], peaks[3:], strict=True)] == [True] * 3, peaks
    (path,) = (output / "index").iterdir()
    table = np.memmap(path, ">i4", "r", INDEX_HEADER_SIZE, (sizes[0],))
    assert np.count_nonzero(table[:1000]) <= 20
