"""The last hour of a broker's figures, for graphs: sampled by a thread, kept in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

INTERVAL_SECONDS = 5.0
HISTORY_SECONDS = 3600
_BEGIN_SECONDS = 0.5  # between looks for the first read of the log
_MILLIS = 1000
_CLOSE_SECONDS = 2.0


class Sample(NamedTuple):
    """Figures as of a time (epoch ms): rates since the sample before; None if not known."""

    timestamp: int
    messages_per_second: float | None
    bytes_per_second: float | None
    behind_bytes: int | None


class History:
    """Samples a broker's status at an interval, and keeps the samples of an hour.

    ``read_status`` returns at least ``now_ms``, ``monitor_timestamp``, ``messages_in``,
    ``bytes_in`` and ``behind_bytes``.
    """

    def __init__(self, read_status: Callable[[], Mapping[str, Any]]) -> None:
        self._read_status = read_status
        self._guard = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=int(HISTORY_SECONDS / INTERVAL_SECONDS))
        self._last: Mapping[str, Any] = {"monitor_timestamp": None}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reput-history", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)  # no longer: the read may hang

    def add(self, status: Mapping[str, Any]) -> None:
        """Add a sample; none before the log is first read.

        It is a gap if the log was not read since the last sample. The next rates are an average
        since then.
        """
        before, self._last = self._last, status
        begin, end = before["monitor_timestamp"], status["monitor_timestamp"]
        if end is None:
            return

        is_gap = begin is not None and end <= begin

        def rate(name: str) -> float | None:
            if begin is None or is_gap:
                return None
            return float(round((status[name] - before[name]) * _MILLIS / (end - begin), 3))

        behind = None if is_gap else status["behind_bytes"]
        sample = Sample(status["now_ms"], rate("messages_in"), rate("bytes_in"), behind)
        with self._guard:
            self._samples.append(sample)

    def columns(self, since: int = 0) -> dict[str, list[Any]]:
        """Return the samples later than a time (epoch ms), the oldest first, as columns."""
        with self._guard:
            wanted = [sample for sample in self._samples if sample.timestamp > since]
        values = zip(*wanted, strict=True) if wanted else [()] * len(Sample._fields)
        return {name: list(v) for name, v in zip(Sample._fields, values, strict=True)}

    def has_arrivals(self) -> bool:
        """Return whether messages came in within the hour."""
        with self._guard:
            return any(sample.messages_per_second for sample in self._samples)

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(Exception):  # a gap; a request for the status logs the bug
                self.add(self._read_status())
            has_begun = self._last["monitor_timestamp"] is not None
            self._stop.wait(INTERVAL_SECONDS if has_begun else _BEGIN_SECONDS)
