"""Stopping a streaming query between two batches.

Spark's own ``stop`` interrupts the batch in flight: its tasks are killed and log their failures.
If the batch is passed to a Python function, Spark also searches the text of that failure with a
regular expression that recurses once per character, until the stack overflows. This module first
marks Spark's query as terminated, which its thread checks before each batch. So the batch in flight
is finished and committed, and no further batch begins.
"""

from __future__ import annotations

import time

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

from store.errors import SparkError
from streaming.spark.private_api import set_terminated

LAST_BATCH_SECONDS = 10.0
_POLL_MS = 20


def stop_query(query: StreamingQuery, timeout_seconds: float = LAST_BATCH_SECONDS) -> None:
    """Stop a query after the batch in flight, without logging errors; return when it has ended.

    A batch that outlasts the timeout is interrupted, as ``query.stop()`` does. The error of a query
    that failed earlier is not raised: ``query.exception()`` returns it.
    """
    finish_batch(query, timeout_seconds)
    query.stop()


def finish_batch(query: StreamingQuery, timeout_seconds: float) -> bool:
    """Prevent further batches; return whether the query ended without being interrupted.

    Waits up to ``timeout_seconds`` for the batch in flight. Does nothing if this release of Spark
    has other internals.
    """
    try:
        thread = set_terminated(query)
        deadline = time.monotonic() + timeout_seconds
        while thread.isAlive() and time.monotonic() < deadline and not _is_waiting(query):
            thread.join(_POLL_MS)
        return not thread.isAlive()
    except (SparkError, AttributeError, Py4JError):  # as with Spark Connect
        return False


def _is_waiting(query: StreamingQuery) -> bool:
    """Return whether the query sleeps between two batches, from which ``stop`` wakes it."""
    status = query.status
    return not status["isTriggerActive"] and status["message"].startswith("Waiting for")
