"""The backlog of a stream over commit logs: how much of each log it has not read.

Spark does not ask a Python data source for metrics, so the progress of its queries has none. But it
reports the end of each log as ``latestOffset`` of the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from streaming.sources.options import OFFSET_KEY
from streaming.spark.json_listener import JsonListener

Backlog = dict[str, int]  # bytes by broker; the only store of a path has the name ""


def backlog_bytes(end_offset: str | None, latest_offset: str | None) -> Backlog:
    """Return the bytes of each log between two offsets of a source, as progress reports them.

    Empty if either is missing, or if they are not offsets of ``rocketmq-commitlog``.
    """
    end, latest = _positions(end_offset), _positions(latest_offset)
    return {name: max(latest[name] - at, 0) for name, at in end.items() if name in latest}


class BacklogListener(JsonListener):
    """Calls ``report`` with a query's name (or id) and its backlog after each of its batches.

    Add it with ``spark.streams.addListener(BacklogListener(report))``. Queries over other sources
    are not reported.
    """

    def __init__(self, report: Callable[[str, Backlog], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the backlog of all sources of the query."""
        progress = event.progress
        for source in progress.sources:
            backlog = backlog_bytes(source.endOffset, source.latestOffset)
            if backlog:
                self._report(progress.name or str(progress.id), backlog)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: an idle query has no new backlog."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""


def _positions(text: str | None) -> Backlog:
    """Return the commit log offsets in the JSON of an offset, by broker."""
    try:
        value = json.loads(text or "null")
    except ValueError:
        return {}
    if not isinstance(value, Mapping):
        return {}
    if isinstance(value.get(OFFSET_KEY), int):
        return {"": value[OFFSET_KEY]}
    return {
        name: of_broker[OFFSET_KEY]
        for name, of_broker in value.items()
        if isinstance(of_broker, Mapping) and isinstance(of_broker.get(OFFSET_KEY), int)
    }
