"""A driver of a checkout with workers of a wheel, and the reverse: refused in one line."""

import re
from pathlib import Path

import pytest

from store.errors import SparkError
from streaming.spark.errors import mixed_installation, to_store_error
from tests.conftest import Golden
from tests.support.cases import first_cases
from tests.support.environments import Environment, checkout

DISPATCH = """
import sys
from pyspark.sql import SparkSession
from reput import StoreError, start_dispatch

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    query = start_dispatch(spark, *sys.argv[1:])
    query.processAllAvailable()
except StoreError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.parametrize("driver", first_cases(["checkout", "wheel"]))
def test_a_mixture_of_checkout_and_wheel_is_refused_in_one_line(
    driver: str, installed: Environment, broker: Golden, tmp_path: Path
) -> None:
    ours = checkout(tmp_path)
    here, there = (ours, installed) if driver == "checkout" else (installed, ours)
    python = tmp_path / "worker-python"  # Spark passes the driver's PYTHONPATH on
    python.write_text(f'#!/bin/sh\nPYTHONPATH={there.path} exec {there.python} "$@"\n')
    python.chmod(0o755)
    printed = here.run_python(
        DISPATCH, broker.store_root, tmp_path / "output", PYSPARK_PYTHON=str(python)
    )
    missing = "streaming" if driver == "checkout" else r"reput\.streaming"
    message = re.escape(
        ": install the same wheel of reput for the driver and for its workers (PYSPARK_PYTHON); a "
        "checkout and a wheel do not mix\n"
    )
    start = rf"SparkError the Python of Spark's workers has no module {missing}[.\w]*"
    assert re.fullmatch(start + message, printed)


@pytest.mark.parametrize(
    "name",
    ["streaming", "streaming.sources", "reput.store", "reput", "reput.streaming.sources.parts"],
)
def test_a_missing_module_of_the_project_is_named(name: str) -> None:
    failure = RuntimeError(f"Traceback …\nModuleNotFoundError: No module named '{name}'\n SQLSTATE")
    error = to_store_error(failure)
    assert isinstance(error, SparkError)
    assert f"has no module {name}:" in str(error)


@pytest.mark.parametrize("name", ["pyarrow", "storeroom", "other.store"])
def test_a_missing_module_of_another_is_not_a_mixture(name: str) -> None:
    failure = RuntimeError(f"ModuleNotFoundError: No module named '{name}'")
    assert mixed_installation(failure) is None
