"""RocketMQ's reput as a Spark Structured Streaming query.

``CommitLogDataSource`` is the data source ``rocketmq-commitlog``; ``start_dispatch`` starts the
query that builds ConsumeQueue and IndexFile, ``query_error`` tells what ended it;
``build_session`` makes a Spark session fit for both. Importing this package loads no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.query import query_error, start_dispatch
    from streaming.session import build_session
    from streaming.source import CommitLogDataSource

__all__ = ["CommitLogDataSource", "build_session", "query_error", "start_dispatch"]

_MODULES = {
    "CommitLogDataSource": "source",
    "build_session": "session",
    "query_error": "query",
    "start_dispatch": "query",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
