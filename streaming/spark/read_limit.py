"""The sizes of micro-batches and of their tasks.

Spark limits the batches of a Python data source from 4.2 on.
"""

from __future__ import annotations

import pyspark

from store.commitlog.planner import UNLIMITED
from store.errors import SparkError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise SparkError(
        f"Spark {pyspark.__version__} is not supported: before 4.2, a stream of a Python data "
        "source cannot limit its batches; install pyspark 4.2 or 4.3"
    ) from None

__all__ = ["ReadLimit", "SupportsTriggerAvailableNow", "max_bytes_of", "read_limit"]


def read_limit(max_bytes: int | None) -> ReadLimit:
    """Return the limit of a batch; None is no limit."""
    return ReadAllAvailable() if max_bytes is None else ReadMaxBytes(max_bytes)


def max_bytes_of(limit: ReadLimit) -> int:
    """Return the bytes of log that a batch may have at most."""
    return limit.max_bytes if isinstance(limit, ReadMaxBytes) else UNLIMITED
