"""RocketMQ's reput as a Spark Structured Streaming query.

``CommitLogDataSource`` is the data source ``rocketmq-commitlog``; ``start_dispatch`` starts the
query that builds ConsumeQueue and IndexFile. Importing this package loads no PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.query import start_dispatch
    from streaming.source import CommitLogDataSource

__all__ = ["CommitLogDataSource", "start_dispatch"]


def __getattr__(name: str) -> Any:
    if name == "start_dispatch":
        from streaming.query import start_dispatch  # noqa: PLC0415 - loads PySpark

        return start_dispatch
    if name == "CommitLogDataSource":
        from streaming.source import CommitLogDataSource  # noqa: PLC0415 - loads PySpark

        return CommitLogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
