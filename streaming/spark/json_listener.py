"""A listener of streaming queries for which an event of progress costs little.

PySpark copies such an event field by field, about a hundred calls of the JVM, each by reflection:
80 ms of processor time, more than half of a small batch. Its JSON takes one call.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from streaming.spark.private_api import java_listener


class JsonListener(StreamingQueryListener):
    """The base of listeners; a client of Spark Connect, which gets JSON anyway, may use it too."""

    @cached_property
    def _jlistener(self) -> Any:
        """The object that Spark calls (as PySpark's, except for progress)."""
        return java_listener(_Events(self))


class _Events(JStreamingQueryListener):
    def onQueryProgress(self, jevent: Any) -> None:
        values = json.loads(jevent.progress().json())
        progress = StreamingQueryProgress.fromJson(values)
        self.pylistener.onQueryProgress(QueryProgressEvent(progress))
