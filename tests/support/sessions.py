"""One Spark session for all tests that need a JVM, classic or of Spark Connect.

``tests/conftest.py`` imports these fixtures; tests that start no JVM load no PySpark for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.cases import first_cases
from tests.support.commands import reput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT = "REPUT_TEST_CONNECT"


def skip_classic(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``classic`` over Spark Connect, each with its reason."""
    for item in items if CONNECT in os.environ else ():
        if marker := item.get_closest_marker("classic"):
            item.add_marker(pytest.mark.skip(reason=f"not over Spark Connect: {marker.args[0]}"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start a session with two cores; with REPUT_TEST_CONNECT, the client of a server."""
    from pyspark.sql import SparkSession

    from streaming.spark.session import build_session
    from tests.support.connect import connect_server, make_spark_home

    home = make_spark_home(tmp_path_factory.mktemp("spark"))
    if CONNECT in os.environ:
        with connect_server(tmp_path_factory.mktemp("connect"), home) as address:
            client = SparkSession.builder.remote(address).getOrCreate()
            yield client
            client.stop()
        return
    with pytest.MonkeyPatch.context() as patched:  # only the JVM that is started here
        patched.setenv("SPARK_HOME", str(home))
        session = build_session("tests", "local[2]")
    yield session
    session.stop()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_here(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Return a function that runs `reput` in this process and session: code, output, errors."""
    from reput.cli import run

    monkeypatch.setattr("streaming.spark.session.build_session", lambda *_: spark)
    monkeypatch.setattr("reput.cli.query_runner.start_spark", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run_reput(*arguments: object) -> tuple[int, str, str]:
        code = run([*map(str, arguments)])
        return code, *capsys.readouterr()

    return run_reput


@pytest.fixture(params=first_cases(["here", "apart"]))
def run_spark(request: pytest.FixtureRequest, run_here: Run) -> Run:
    """Return `run_here`; exhaustive runs also run `reput` in a separate process and session."""

    def run_apart(*arguments: object) -> tuple[int, str, str]:
        done = reput(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run_here if request.param == "here" else run_apart
