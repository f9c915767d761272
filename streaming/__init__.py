"""RocketMQ's reput as a Spark Structured Streaming query.

``CommitLogDataSource`` is the data source ``rocketmq-commitlog``; ``start_dispatch`` starts the
query that builds ConsumeQueue and IndexFile, ``start_mirror`` the one that sends the messages to
Kafka, ``query_error`` returns what ended one, ``stop_query`` stops any streaming query between two
batches; ``build_session`` makes a Spark session fit for all, ``register_source`` makes a data
source known to any session.
Importing this package loads no PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.mirror_query import MirrorOptions, start_mirror
    from streaming.query import query_error, start_dispatch
    from streaming.session import build_session, register_source
    from streaming.source import CommitLogDataSource
    from streaming.stopping import stop_query

__all__ = [
    "CommitLogDataSource",
    "MirrorOptions",
    "build_session",
    "query_error",
    "register_source",
    "start_dispatch",
    "start_mirror",
    "stop_query",
]

_MODULES = {
    "CommitLogDataSource": "source",
    "MirrorOptions": "mirror_query",
    "build_session": "session",
    "query_error": "query",
    "register_source": "session",
    "start_dispatch": "query",
    "start_mirror": "mirror_query",
    "stop_query": "stopping",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
