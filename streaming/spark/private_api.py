"""All uses of PySpark's private names: a Spark release that renames one breaks this module alone.

PySpark has no public way to start its JVM differently, to reach a session or a query inside the
JVM, or to end a query without interrupting it. Each function raises SparkError, which names the
version of Spark, if the name it needs is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyspark
from py4j.java_gateway import JavaClass, JavaGateway, JavaObject
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from store.errors import SparkError

_SESSION_CLASS = "org.apache.spark.sql.classic.SparkSession"
_TERMINATED_CLASS = "org.apache.spark.sql.execution.streaming.runtime.TERMINATED$"


def launch_jvm_once(launch: Callable[[], JavaGateway]) -> None:
    """Launch Spark's JVM with ``launch``, unless this process already has one."""
    if _private(SparkContext, "_gateway") is None:
        _private(SparkContext, "_ensure_initialized")(gateway=launch())


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the thread's active session in the JVM, and restore the previous one."""
    sessions = _private(spark, "_jvm")
    for name in _SESSION_CLASS.split("."):
        sessions = getattr(sessions, name)
    if not isinstance(sessions, JavaClass):  # py4j takes an unknown class for a package
        raise _missing(_SESSION_CLASS)
    previous = sessions.getActiveSession()
    sessions.setActiveSession(_private(spark, "_jsparkSession"))
    try:
        yield
    finally:
        if previous.isDefined():
            sessions.setActiveSession(previous.get())
        else:
            sessions.clearActiveSession()


def java_query(query: StreamingQuery) -> JavaObject:
    """Return the JVM's object of a streaming query, from which PySpark makes its own."""
    return _private(query, "_jsq")


def java_listener(listener: object) -> JavaObject:
    """Return the JVM's object of a listener of queries, a ``JStreamingQueryListener``."""
    return _private(SparkContext, "_jvm").PythonStreamingQueryListenerWrapper(listener)


def set_terminated(query: StreamingQuery) -> JavaObject:
    """Mark a query as terminated, so that its thread begins no further batch; return that thread.

    Raises Py4JError if the JVM lacks a name.
    """
    execution = java_query(query).streamingQuery()
    loader = execution.getClass().getClassLoader()
    terminated = loader.loadClass(_TERMINATED_CLASS).getField("MODULE$").get(None)
    execution.state().set(terminated)
    return execution.queryExecutionThread()


def _private(owner: object, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as e:
        kind = owner if isinstance(owner, type) else type(owner)
        raise _missing(f"{kind.__name__}.{name}") from e


def _missing(name: str) -> SparkError:
    return SparkError(
        f"Spark {pyspark.__version__} has no {name}, which reput needs: install the version of "
        "pyspark that reput requires"
    )
