"""How far a running dispatch is: lag through a StreamingQueryListener, rates from the sink.

Spark's Python sources report no metrics of their own, so what the source reports as its latest
offset is held against what the sink has made durable.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from store.errors import StoreError
from streaming.sinks.ordered_sink import BatchSink
from streaming.sources.options import OFFSET_KEY

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DispatchProgress:
    """One report. Offsets are physical offsets; rates are those since the last report."""

    reput_from_offset: int
    latest_offset: int
    messages: int
    bytes_per_second: float
    messages_per_second: float
    lag_bytes: int
    lag_ms: int  # how far the last message dispatched lies behind now, 0 when nothing is behind


class ProgressListener(StreamingQueryListener):
    """Turns Spark's progress events of one query into reports, and gives the root back."""

    def __init__(
        self, name: str, sink: BatchSink, report: Callable[[DispatchProgress], None] | None
    ) -> None:
        self._name = name
        self._sink = sink
        self._report = report
        self._ends: list[Callable[[], None]] = []
        self._run_id = ""
        self._last = (time.monotonic(), sink.counts)

    def on_end(self, do: Callable[[], None]) -> None:
        """Call when the query has ended."""
        self._ends.append(do)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Note which run is ours."""
        if event.name == self._name:
            self._run_id = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report progress."""
        if event.progress.name != self._name or self._report is None:
            return
        latest = event.progress.sources[0].latestOffset
        offset = json.loads(latest)[OFFSET_KEY] if latest else 0
        self._report(self.progress(offset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Report that nothing is behind."""
        if str(event.runId) == self._run_id and self._report is not None:
            self._report(self.progress(0))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Give the root back, whoever stopped the query."""
        if str(event.runId) != self._run_id:
            return
        # Not in this callback: closing waits for a batch, and Spark waits for listeners.
        threading.Thread(target=self._end, name="reput-close").start()

    def _end(self) -> None:
        try:
            self._sink.close()
        except StoreError as e:  # raised again where the query is stopped or waited for
            _log.debug("the sink was not closed: %s", e)
        for do in self._ends:
            do()

    def progress(self, latest_offset: int) -> DispatchProgress:
        """Return how far the sink is, against the log's end."""
        counts, now = self._sink.counts, time.monotonic()
        before, old = self._last
        seconds = max(now - before, 1e-6)
        self._last = (now, counts)
        latest = max(latest_offset, counts.reput_from_offset)
        lag = latest - counts.reput_from_offset
        behind = int(time.time() * 1000) - counts.last_store_timestamp
        return DispatchProgress(
            reput_from_offset=counts.reput_from_offset,
            latest_offset=latest,
            messages=counts.messages,
            bytes_per_second=(counts.bytes - old.bytes) / seconds,
            messages_per_second=(counts.messages - old.messages) / seconds,
            lag_bytes=lag,
            lag_ms=max(behind, 0) if lag and counts.last_store_timestamp else 0,
        )
