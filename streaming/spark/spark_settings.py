"""Spark's master and settings as a user gives them, checked before Spark is started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from store.errors import ConfigError, shown

_PREFIX = "spark."
# With one of these, PySpark starts no session of its own. It sets the second one itself.
_REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
# With another value, the queries, the workers or the exported files would not be what they are.
_REFUSED = {
    "spark.master": "use --master",
    "spark.submit.deployMode": "the driver runs in this process",
    "spark.pyspark.python": "set the environment variable PYSPARK_PYTHON",
    "spark.pyspark.driver.python": "the driver runs in this process",
    "spark.python.daemon.module": "workers start with this program's own module",
    "spark.sql.python.filterPushdown.enabled": "the data source needs it",
    "spark.sql.parquet.outputTimestampType": "exported files would change",
}


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The Spark master, None for ``local[*]``, and further settings of the session."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def parse_conf(pairs: Iterable[str]) -> dict[str, str]:
    """Parse the values of ``--conf``. Raises ConfigError; no message shows a setting's value."""
    conf = {}
    for pair in pairs:
        key, separator, value = (part.strip() for part in pair.partition("="))
        if not separator or not key:
            raise ConfigError(f"--conf {shown(pair)} is not KEY=VALUE")
        if not key.startswith(_PREFIX):
            raise ConfigError(f"--conf {shown(key)} is not a setting of Spark ({_PREFIX}…)")
        if key in _REFUSED:
            raise ConfigError(f"--conf {key} cannot be set: {_REFUSED[key]}")
        conf[key] = value
    return conf


def refuse_remote() -> None:
    """Raise ConfigError if sessions of this process are clients of Spark Connect."""
    for name in _REMOTE:
        if name in os.environ:
            raise ConfigError(
                f"{name} is set, so sessions of this process are clients of Spark Connect, but a "
                "classic session is needed: unset it, in a process that has no such client"
            )
