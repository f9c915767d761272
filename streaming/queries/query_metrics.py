"""The progress of a running query: lag from a StreamingQueryListener, rates from the sink.

Spark's Python sources report no metrics of their own. So the lag is the source's latest offset
minus the offset up to which the sink's data is durable.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from store.errors import StoreError
from store.java import now_ms
from streaming.sinks.ordered_sink import BatchSink
from streaming.sources.options import OFFSET_KEY
from streaming.spark.json_listener import JsonListener

_log = logging.getLogger(__name__)

OnBatch = Callable[[Mapping[str, int]], None]  # the durations of a batch's phases, in ms


@dataclass(frozen=True, slots=True)
class DispatchProgress:
    """One progress report. Offsets are physical offsets; rates are since the last report."""

    reput_from_offset: int
    latest_offset: int
    messages: int
    bytes_per_second: float
    messages_per_second: float
    lag_bytes: int
    lag_ms: int  # age of the last message dispatched, 0 without lag


class ProgressListener(JsonListener):
    """Converts Spark's progress events of one query to reports; closes the sink at its end."""

    def __init__(
        self,
        name: str,
        sink: BatchSink,
        report: Callable[[DispatchProgress], None] | None,
        on_batch: OnBatch | None = None,
    ) -> None:
        self._name = name
        self._sink = sink
        self._report = report
        self._on_batch = on_batch
        self._end_callbacks: list[Callable[[], None]] = []
        self._run_id = ""
        self._last = (time.monotonic(), sink.counts)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Add a callback for the end of the query."""
        self._end_callbacks.append(callback)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember the run of this listener's query."""
        if event.name == self._name:
            self._run_id = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report a batch and the progress."""
        if event.progress.name != self._name:
            return
        if self._on_batch is not None:
            self._on_batch(event.progress.durationMs)
        if self._report is None:
            return
        latest = event.progress.sources[0].latestOffset
        offset = json.loads(latest)[OFFSET_KEY] if latest else 0
        self._report(self.progress(offset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Report that there is no lag."""
        if str(event.runId) == self._run_id and self._report is not None:
            self._report(self.progress(0))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Close the sink, whatever ended the query."""
        if str(event.runId) != self._run_id:
            return
        # Not in this callback: closing waits for a batch, and Spark waits for listeners.
        threading.Thread(target=self._end, name="reput-close").start()

    def _end(self) -> None:
        try:
            self._sink.close()
        except StoreError as e:  # raised again where the query is stopped or waited for
            _log.debug("the sink was not closed: %s", e)
        for callback in self._end_callbacks:
            callback()

    def progress(self, latest_offset: int) -> DispatchProgress:
        """Return the sink's progress, relative to the log's end."""
        counts, now = self._sink.counts, time.monotonic()
        previous_time, previous = self._last
        seconds = max(now - previous_time, 1e-6)
        self._last = (now, counts)
        latest = max(latest_offset, counts.durable_to)
        lag = latest - counts.durable_to
        age_ms = now_ms() - counts.last_store_timestamp
        return DispatchProgress(
            reput_from_offset=counts.durable_to,
            latest_offset=latest,
            messages=counts.messages,
            bytes_per_second=(counts.bytes - previous.bytes) / seconds,
            messages_per_second=(counts.messages - previous.messages) / seconds,
            lag_bytes=lag,
            lag_ms=max(age_ms, 0) if lag and counts.last_store_timestamp else 0,
        )
