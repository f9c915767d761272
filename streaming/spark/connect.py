"""Spark Connect: the detection of its sessions, and the refusal of them.

A client of Spark Connect has no driver in its process: the server has it.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from store.errors import ConfigError

_MODULE = "pyspark.sql.connect"


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect; nothing of Connect is imported."""
    return any(cls.__module__.startswith(_MODULE) for cls in type(spark).__mro__)


def refuse_connect(spark: SparkSession, what: str, command: str) -> None:
    """Raise ConfigError if a session is a client of Spark Connect.

    Call it before anything is written: ``what`` has a sink that runs in the driver's process.
    """
    if is_connect(spark):
        raise ConfigError(
            f"{what} cannot run through Spark Connect: it writes from the driver's process, which "
            "must be this one, and the driver of Spark Connect is its server; give it a classic "
            f"session, as build_session() returns in a process of its own, or run `{command}`"
        )
