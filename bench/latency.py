"""Trickle latency and its cost: from a record complete in the log to its readable unit.

``reput dispatch`` runs as a process of its own. Its cost is the processor time of that process and
its descendants, the JVM and Spark's workers, as a share of one core. In the first seconds Spark's
code is not compiled yet: they are left out.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from bench.log import templates
from store.commitlog.writer import CommitLogWriter
from store.config import StoreConfig
from store.consumequeue.files import ConsumeQueue
from store.output.progress import read_progress
from tests.support.bulk_writer import numbered

# The interval, and messages a second. At one message in 5 s, each comes after a pause.
RUNS = (("0s", 100), ("auto", 100), ("auto", 16), ("auto", 0.2), ("auto", 0))
COLD_SECONDS, SECONDS = 20.0, 60.0
_WARM_MESSAGES = 100
_POLL_SECONDS = 0.004
_START_SECONDS = 60.0


def run(_store: Path, work: Path) -> dict[str, float]:
    """Write at a trickle while a dispatch runs; poll the queue's end as a reader would."""
    figures: dict[str, float] = {}
    for interval, rate in RUNS:
        name = f"{interval}, {rate}/s" if rate else f"{interval}, idle"
        delays, share = _measure(work / "trickle", interval, rate)
        figures |= {f"{name}: share of a core, %": 100 * share}
        if delays:
            figures |= _figures(delays, f"{name}: latency")
    return figures


def _measure(work: Path, interval: str, rate: float) -> tuple[list[float], float]:
    """Return the delays of messages in seconds, and the cost as a share of one core."""
    config = StoreConfig()
    store, output = work / "store", work / "output"
    template = templates()[0]
    written: list[float] = []
    seen: list[float] = []
    command = [sys.executable, "-m", "reput", "dispatch"]
    arguments = [str(store), "--output", str(output), "--trigger-interval", interval]
    try:
        with CommitLogWriter(store, config) as writer:
            for n in range(_WARM_MESSAGES):
                writer.append(numbered(template, n))
            with subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL) as process:
                _await_start(output)
                stop = threading.Event()
                reader = threading.Thread(target=_watch, args=(config, output, seen, stop))
                reader.start()
                processes, sampled = _Processes(process.pid), 0.0
                began, cold, begun = time.perf_counter(), 0.0, 0
                while (elapsed := time.perf_counter() - began) < COLD_SECONDS + SECONDS:
                    if elapsed - sampled >= 1:
                        used, sampled = processes.seconds(), elapsed
                        if elapsed < COLD_SECONDS:
                            cold, begun = used, len(written)
                    if len(written) < elapsed * rate:
                        writer.append(numbered(template, len(written)))
                        written.append(time.perf_counter())
                    else:
                        time.sleep(_POLL_SECONDS)
                share = (processes.seconds() - cold) / SECONDS
                while len(seen) < len(written):
                    time.sleep(_POLL_SECONDS)
                stop.set()
                reader.join()
                process.send_signal(signal.SIGTERM)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [b - a for a, b in zip(written, seen, strict=False)][begun:], share


def _await_start(output: Path) -> None:
    """Wait until the messages written before the start have been dispatched."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        progress = read_progress(output) if output.is_dir() else None
        if progress is not None and progress.messages >= _WARM_MESSAGES:
            return
        time.sleep(0.1)
    raise TimeoutError("the dispatch did not start")


class _Processes:
    """The processor time of a process and its descendants, ended ones up to their last sample."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, int] = {}  # clock ticks by process
        self._ticks = 0

    def seconds(self) -> float:
        """Return the time so far; call it every second, because descendants come and go."""
        self._sample(self._pid)
        return self._ticks / os.sysconf("SC_CLK_TCK")

    def _sample(self, pid: int) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])
            self._ticks += ticks - self._seen.get(pid, 0)
            self._seen[pid] = ticks
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    self._sample(int(child))


def _figures(delays: list[float], name: str) -> dict[str, float]:
    delays = sorted(delays)
    return {
        f"{name}, p50, ms": delays[len(delays) // 2] * 1000,
        f"{name}, p99, ms": delays[len(delays) * 99 // 100] * 1000,
        f"{name}, largest, ms": delays[-1] * 1000,
    }


def _watch(config: StoreConfig, output: Path, seen: list[float], stop: threading.Event) -> None:
    """Note when each unit after the warm-up's becomes readable."""
    directory = output / "consumequeue" / templates()[0].topic / "0"
    while not stop.is_set():
        end = ConsumeQueue(directory, config.mapped_file_size_consume_queue).max_offset()
        now = time.perf_counter()
        seen.extend([now] * (end - _WARM_MESSAGES - len(seen)))
        time.sleep(_POLL_SECONDS)
