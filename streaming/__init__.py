"""RocketMQ's reput as a Spark Structured Streaming query: sources, sinks, Kafka; no byte layout.

``CommitLogDataSource`` is the data source ``rocketmq-commitlog``. ``start_dispatch`` starts the
query that builds ConsumeQueue and IndexFile, ``start_mirror`` the query that sends messages to
Kafka. ``query_error`` returns the error that ended a dispatch, ``stop_query`` stops any streaming
query between two batches. ``BacklogListener`` reports how much of the logs a query has not read.
``build_session`` returns a Spark session with the settings that these queries need, and
``register_source`` registers a data source with any session. ``KafkaArrivals``, made from
``client_options``, is a listener of a dispatch that announces new messages in Kafka.

Importing this package does not import PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streaming.kafka.arrivals import KafkaArrivals
    from streaming.kafka.client_options import client_options
    from streaming.queries.backlog import BacklogListener
    from streaming.queries.dispatch_query import query_error, start_dispatch
    from streaming.queries.mirror_query import MirrorOptions, start_mirror
    from streaming.sources.message_source import CommitLogDataSource
    from streaming.spark.session import build_session, register_source
    from streaming.spark.stopping import stop_query

__all__ = [
    "BacklogListener",
    "CommitLogDataSource",
    "KafkaArrivals",
    "MirrorOptions",
    "build_session",
    "client_options",
    "query_error",
    "register_source",
    "start_dispatch",
    "start_mirror",
    "stop_query",
]

_MODULES = {
    "BacklogListener": "queries.backlog",
    "CommitLogDataSource": "sources.message_source",
    "KafkaArrivals": "kafka.arrivals",
    "MirrorOptions": "queries.mirror_query",
    "build_session": "spark.session",
    "client_options": "kafka.client_options",
    "query_error": "queries.dispatch_query",
    "register_source": "spark.session",
    "start_dispatch": "queries.dispatch_query",
    "start_mirror": "queries.mirror_query",
    "stop_query": "spark.stopping",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
