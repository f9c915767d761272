"""One Spark session for all tests that need a JVM."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from streaming.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Start a local session with two cores."""
    session = build_session("tests", "local[2]")
    yield session
    session.stop()
