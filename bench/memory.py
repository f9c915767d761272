"""Peak memory of this process, Spark's JVM and its Python workers, private pages only."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_POLL_SECONDS = 0.1


class PeakMemory:
    """Samples while inside; ``peaks`` is by kind of process, in bytes."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid if pid is not None else os.getpid()  # the driver's
        self.peaks: dict[str, int] = {"driver": 0, "JVM": 0, "Python workers": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            now = dict.fromkeys(self.peaks, 0)
            for pid in _family(self._pid):
                kind = _kind(pid, self._pid)
                now[kind] += _private(pid)
            self.peaks = {k: max(v, now[k]) for k, v in self.peaks.items()}


def _family(pid: int) -> list[int]:
    """Return a process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += _family(int(child))
    return found


def _kind(pid: int, driver: int) -> str:
    if pid == driver:
        return "driver"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return "Python workers"
    return "JVM" if command.endswith(b"java") else "Python workers"


def _private(pid: int) -> int:
    """Return anonymous resident memory: mapped files are the page cache's."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
