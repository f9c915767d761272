"""The rebuild of a whole log beside RocketMQ's own store: ``python -m bench.rebuild``.

For each size of log: ``reput rebuild`` as a command (in all, and without the start of Python), and
each release's store opened on the log alone until it has dispatched all of it (its load included:
5.x dispatches while it loads). Below it a running dispatch for which all but the first GiB appears
at once. Then one size by a Spark query on one core and on all. Messages of about 390 bytes with 3
keys or 1, index on, CRC on. Files are in the page cache for every measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.broker import run_java
from bench.log import templates
from bench.memory import PeakMemory
from bench.picture import Line, draw
from bench.streaming_query import falls_behind_rate
from store.config import StoreConfig
from tests.support.bulk_writer import BulkWriter
from tools.maven import rocketmq_jars

GIB = 1 << 30
_REPUT = [sys.executable, "-m", "reput"]
_Run = TypeVar("_Run")
_SMALL_SHARE = 0.97  # of a part of a file, so that the log ends inside it


@dataclass(frozen=True, slots=True)
class Row:
    """One size of log. Seconds; memory in MB; rates in messages a second."""

    gib: float
    messages: int
    command_seconds: float
    work_seconds: float  # without the start of Python, or of Spark
    stages: dict[str, float]
    memory_mb: dict[str, float]
    falls_behind_rate: float | None  # of a running dispatch; None for a log of one file
    broker_seconds: dict[str, float]  # by version: load and dispatch
    broker_command_seconds: dict[str, float]  # with its JVM's start, without its shutdown


def main() -> None:
    """Measure, print a table, and write it as JSON and as a picture if asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.rebuild", description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.5, 1, 2, 4, 8], metavar="GIB")
    parser.add_argument("--cores-at", type=float, default=2, metavar="GIB")
    parser.add_argument(
        "--broker", nargs="*", default=[], metavar="VERSION", help="releases to fetch with Maven"
    )
    parser.add_argument(
        "--broker-lib", type=Path, nargs="*", default=[], metavar="DIR", help="lib/ of a release"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each, in turn; the median counts")
    parser.add_argument("--keys", type=int, choices=(1, 3), default=3, help="of a message")
    parser.add_argument("--directory", type=Path, help="where to work (default: temporary)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="an SVG file")
    arguments = parser.parse_args()
    load = os.getloadavg()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="reput-rebuild-"))
    libs = {version: rocketmq_jars(version) for version in arguments.broker}
    libs |= {version_of(lib): lib.resolve() for lib in arguments.broker_lib}
    if not libs:
        print("RocketMQ's own store: not run; name releases with --broker or --broker-lib")
    try:
        rows = []
        for gib in sorted(arguments.sizes):
            store = make_log(directory, gib, arguments.keys)
            rows.append(measure(store, directory, gib, libs, arguments.runs))
            print_row(rows[-1], is_first=len(rows) == 1)
        log = make_log(directory, arguments.cores_at, arguments.keys)
        cores = measure_cores(log, directory, arguments.runs)
        for count, seconds in cores.items():
            print(
                f"{arguments.cores_at:g} GiB on {count} cores: {seconds:.1f} s after Spark's start"
            )
    finally:
        if arguments.directory is None:
            shutil.rmtree(directory)
    result = {
        "rows": [asdict(row) for row in rows],
        "cores": cores,
        "machine_cores": os.cpu_count(),
        "keys": arguments.keys,
        "runs": arguments.runs,
        "load_average_before": load[0],
        "page_cache": "warm",
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.picture is not None:
        arguments.picture.write_text(picture(rows, cores, arguments.cores_at), "utf-8")


def version_of(lib: Path) -> str:
    """Return the release whose jars lie in a folder. Raises ValueError if none do."""
    for jar in sorted(lib.glob("rocketmq-store-*.jar")):
        return jar.stem.removeprefix("rocketmq-store-")
    raise ValueError(f"{lib} holds no rocketmq-store jar")


def make_log(directory: Path, gib: float, keys: int) -> Path:
    """Write the log of a size if it is missing; whole files are shared with the larger logs."""
    store = directory / f"log-{gib:g}"
    if store.is_dir():
        return store
    files, part = divmod(gib, 1)
    if part:
        write_log(store, int(part * GIB * _SMALL_SHARE), keys)
        return store
    largest = directory / "log-files"
    if len(list((largest / "commitlog").glob("*"))) < files + 1:
        shutil.rmtree(largest, ignore_errors=True)
        write_log(largest, int((files + 0.01) * GIB), keys)
    (store / "commitlog").mkdir(parents=True)
    for file in sorted((largest / "commitlog").iterdir())[: int(files)]:
        os.link(file, store / "commitlog" / file.name)
    return store


def write_log(store: Path, size: int, keys: int) -> None:
    """Write about so many bytes of messages."""
    step = 200_000
    with BulkWriter(store, StoreConfig()) as writer:
        while writer.end < size:
            before = writer.end
            writer.append_many(templates(keys), step)
            step = min(step, max((size - writer.end) * step // (writer.end - before), 1))


def measure(store: Path, directory: Path, gib: float, libs: dict[str, Path], runs: int) -> Row:
    """Measure one size: ours, then each release, ``runs`` times in turn; return the medians."""
    warm(store)
    ours, fallen = [], []
    theirs = {version: list[tuple[float, float]]() for version in libs}
    for _ in range(runs):
        ours.append(rebuild(store, directory / "output"))
        if gib > 1:
            fallen.append(falls_behind_rate(store, directory / "running"))
        for version, lib in libs.items():
            theirs[version].append(dispatch_by_broker(store, directory, lib))
    seconds, result, memory = median(ours, lambda run: sum(run[1]["stages"].values()))
    brokers = {version: median(times, lambda run: run[0]) for version, times in theirs.items()}
    return Row(
        gib=gib,
        messages=result["messages"],
        command_seconds=seconds,
        work_seconds=sum(result["stages"].values()),
        stages=result["stages"],
        memory_mb={kind: peak / 1e6 for kind, peak in memory.items()},
        falls_behind_rate=statistics.median_low(fallen) if fallen else None,
        broker_seconds={version: inner for version, (inner, _) in brokers.items()},
        broker_command_seconds={version: whole for version, (_, whole) in brokers.items()},
    )


def median(runs: Sequence[_Run], seconds: Callable[[_Run], float]) -> _Run:
    """Return the run with the median seconds."""
    return sorted(runs, key=seconds)[(len(runs) - 1) // 2]


def measure_cores(store: Path, directory: Path, runs: int) -> dict[int, float]:
    """Return the seconds of a rebuild by a Spark query on 1, 2, 4 … cores of this machine."""
    counts, cores = [1], os.cpu_count() or 1
    while counts[-1] < cores:
        counts.append(min(2 * counts[-1], cores))
    warm(store)
    found = {}
    for count in counts:
        taken = []
        for _ in range(runs):
            _, result, _ = rebuild(store, directory / "output", "--master", f"local[{count}]")
            taken.append(sum(result["stages"].values()))
        found[count] = statistics.median_low(taken)
    return found


def rebuild(
    store: Path, output: Path, *options: str
) -> tuple[float, dict[str, Any], dict[str, int]]:
    """Run the command; return its seconds, what it printed and the peak memory by process."""
    shutil.rmtree(output, ignore_errors=True)
    command = [*_REPUT, "rebuild", str(store), "--output", str(output), "--json", *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with process, PeakMemory(process.pid) as memory:
        printed, _ = process.communicate()
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} ended with {process.returncode}")
    shutil.rmtree(output)
    return seconds, json.loads(printed), memory.peaks


def dispatch_by_broker(store: Path, directory: Path, lib: Path) -> tuple[float, float]:
    """Return a release's seconds on the same log: load and dispatch, and with its JVM's start."""
    store_root = directory / "broker"
    shutil.rmtree(store_root, ignore_errors=True)
    (store_root / "commitlog").mkdir(parents=True)
    for file in (store / "commitlog").iterdir():
        os.link(file, store_root / "commitlog" / file.name)
    began = time.perf_counter()
    figures = run_java(lib, "StoreDispatch", [str(store_root)], store_root)
    whole = time.perf_counter() - began
    shutil.rmtree(store_root)
    taken = {name: float(seconds) for name, seconds in figures}
    return taken["load"] + taken["dispatch"], whole - taken["shutdown"]


def warm(store: Path) -> None:
    """Read the log once, so that it is in the page cache for every measurement."""
    buffer = bytearray(1 << 24)
    for file in sorted((store / "commitlog").iterdir()):
        with file.open("rb", buffering=0) as f:
            while f.readinto(buffer):
                pass


def print_row(row: Row, *, is_first: bool) -> None:
    """Print a line of the table, and its head before the first."""
    versions = list(row.broker_seconds)
    if is_first:
        heads = "".join(f" {f'{v} s':>9} {'ratio':>6} {'cmd':>6}" for v in versions)
        print(f"{'GiB':>5} {'messages':>12} {'cmd s':>7} {'work s':>7} {'M msg/s':>8}{heads}  MB")
    line = f"{row.gib:5g} {row.messages:12,} {row.command_seconds:7.1f} {row.work_seconds:7.1f}"
    line += f" {row.messages / row.work_seconds / 1e6:8.2f}"
    for version in versions:
        inner, whole = row.broker_seconds[version], row.broker_command_seconds[version]
        line += f" {inner:9.1f} {inner / row.work_seconds:5.1f}x"
        line += f" {whole / row.command_seconds:5.1f}x"
    memory = ", ".join(f"{kind} {peak:,.0f}" for kind, peak in row.memory_mb.items())
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in row.stages.items())
    print(f"{line}  {memory}\n      {stages}", flush=True)
    if row.falls_behind_rate is not None:
        line = f"      a running one that falls behind {row.falls_behind_rate / 1e6:.2f} M msg/s"
        for version, seconds in row.broker_seconds.items():
            ratio = row.falls_behind_rate / (row.messages / seconds)
            line += f", {ratio:.1f}x the rate of {version}"
        print(line, flush=True)


def picture(rows: Sequence[Row], cores: dict[int, float], cores_at: float) -> str:
    """Draw log size against seconds, and cores against seconds."""
    sizes = [row.gib for row in rows]
    lines = [
        Line("reput rebuild, whole command", sizes, [row.command_seconds for row in rows]),
        Line("reput rebuild, its work", sizes, [row.work_seconds for row in rows]),
    ]
    for version in rows[0].broker_seconds:
        seconds = [row.broker_seconds[version] for row in rows]
        lines.append(Line(f"RocketMQ {version}: load and dispatch", sizes, seconds))
    by_cores = Line(f"{cores_at:g} GiB", [float(c) for c in cores], list(cores.values()))
    return draw([("GiB of log", lines), ("cores", [by_cores])], "seconds")


if __name__ == "__main__":
    main()
