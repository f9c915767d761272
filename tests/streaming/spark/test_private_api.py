"""Private names of PySpark: used in one module, and named in one line if a release lacks them."""

import re
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.java_gateway import JavaPackage
from pyspark import SparkContext
from pyspark.sql import SparkSession

import streaming
from store.errors import SparkError
from streaming.spark.private_api import active_session, java_query, launch_jvm_once, set_terminated
from streaming.spark.stopping import finish_batch

PRIVATE_NAME = re.compile(
    r"\._(j[a-z]*[A-Z]\w*|jvm|jsq|jdf|jrdd|jsc|jwrite|sc|gateway|ensure\w*)\b"
)


class Renamed:
    """An object of a Spark release that has renamed its private names."""


def missing(name: str) -> str:
    return "^" + re.escape(f"Spark {pyspark.__version__} has no {name}, which reput needs") + ".*$"


def test_only_one_module_uses_private_names_of_pyspark() -> None:
    assert streaming.__file__ is not None
    package = Path(streaming.__file__).parent
    users = {path.name for path in package.rglob("*.py") if PRIVATE_NAME.search(path.read_text())}
    assert users == set()  # private_api.py has them as strings
    names = (package / "spark" / "private_api.py").read_text()
    assert set(re.findall(r'"(_[a-zA-Z_]+)"', names)) == {
        "_ensure_initialized",
        "_gateway",
        "_jsparkSession",
        "_jsq",
        "_jvm",
    }


@pytest.mark.parametrize("name", ["_gateway", "_ensure_initialized"])
def test_a_context_without_the_name_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delattr(SparkContext, name)
    with pytest.raises(SparkError, match=missing(f"SparkContext.{name}")) as raised:
        launch_jvm_once(lambda: pytest.fail("a JVM was launched"))
    assert "\n" not in str(raised.value)


def test_a_session_or_query_without_the_name_is_an_error() -> None:
    renamed = Renamed()
    with pytest.raises(SparkError, match=missing("Renamed._jvm")), active_session(renamed):  # type: ignore[arg-type]
        pytest.fail("there is no session")
    for function in (java_query, set_terminated):
        with pytest.raises(SparkError, match=missing("Renamed._jsq")):
            function(renamed)  # type: ignore[operator]


def test_a_class_that_the_jvm_lacks_is_an_error() -> None:
    name = "org.apache.spark.sql.classic.SparkSession"
    found: object = JavaPackage(name, None)  # py4j returns a package where there is no class
    for part in ["_jvm", *name.split(".")][::-1]:
        found = SimpleNamespace(**{part: found})
    with pytest.raises(SparkError, match=missing(name)), active_session(found):  # type: ignore[arg-type]
        pytest.fail("there is no session")


def test_a_query_that_cannot_be_marked_is_left_to_sparks_own_stop() -> None:
    assert finish_batch(Renamed(), 0) is False  # type: ignore[arg-type]


@pytest.mark.spark
def test_this_release_has_the_names(spark: SparkSession) -> None:
    launch_jvm_once(lambda: pytest.fail("a second JVM was launched"))
    other = spark.newSession()
    with active_session(other):
        assert SparkSession.getActiveSession() is not None
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    try:
        assert java_query(query).isActive()
        thread = set_terminated(query)
    finally:
        query.stop()
    assert not thread.isAlive()
