"""Stopping a streaming query between two batches.

Spark's own ``stop`` interrupts the batch in flight: its tasks are killed and log how they failed,
and where the batch is given to a Python function, Spark searches the text of that failure with a
regular expression that recurses once a character, until the stack overflows. Here Spark's query is
marked as terminated first, which its thread looks at before each batch. So the batch in flight is
finished and committed, and no other one begins.
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
    """Stop a query after the batch in flight, without errors in the log; return when it ended.

    A batch that takes longer than the timeout is interrupted as by ``query.stop()``. What ended a
    query earlier is not raised: ``query.exception()`` returns it.
    """
    finish_batch(query, timeout_seconds)
    query.stop()


def finish_batch(query: StreamingQuery, timeout_seconds: float) -> bool:
    """Let no further batch begin; return whether the query has ended, without an interruption.

    Waits for the batch in flight, for so long at most. Where Spark's internals are not those known
    here, nothing is done.
    """
    try:
        thread = set_terminated(query)
        deadline = time.monotonic() + timeout_seconds
        while thread.isAlive() and time.monotonic() < deadline and not _is_waiting(query):
            thread.join(_POLL_MS)
        return not thread.isAlive()
    except (SparkError, AttributeError, Py4JError):  # Spark Connect has no such objects
        return False


def _is_waiting(query: StreamingQuery) -> bool:
    """Return whether the query sleeps between two batches, from which ``stop`` wakes it."""
    status = query.status
    return not status["isTriggerActive"] and status["message"].startswith("Waiting for")
