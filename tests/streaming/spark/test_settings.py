"""The settings that `--conf` passes to Spark."""

import json
from pathlib import Path

import pytest

from reput.cli import run
from store.errors import ConfigError, SparkError
from streaming.spark.session import _spark_conf, build_session
from streaming.spark.spark_settings import _REFUSED, parse_conf
from tests.support.commands import reput
from tests.support.dispatching import dispatch_all
from tests.support.stores.written import make_store


def test_a_value_may_contain_equals_signs_and_the_last_one_of_a_key_counts() -> None:
    pairs = ["spark.driver.memory=2g", "spark.driver.memory=3g", "spark.hadoop.a=b=c", "spark.x="]
    expected = {"spark.driver.memory": "3g", "spark.hadoop.a": "b=c", "spark.x": ""}
    assert expected == parse_conf(pairs)


@pytest.mark.parametrize("pair", ["spark.driver.memory", "=3", "", "driver.memory=3g"])
def test_a_pair_that_is_no_setting_of_spark_is_named(pair: str) -> None:
    with pytest.raises(ConfigError, match=r"--conf '") as raised:
        parse_conf([pair])
    assert "3g" not in str(raised.value)  # a value may be a secret


@pytest.mark.parametrize("key", _REFUSED)
def test_a_setting_that_the_queries_need_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"--conf {key} cannot be set: "):
        parse_conf([f"{key}=x"])


def test_a_command_is_refused_before_it_writes_where_spark_is_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output = tmp_path / "store", tmp_path / "output"
    make_store(store, 3)
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    assert run(["dispatch", str(store), "--output", str(output), "--available-now"]) == 2
    assert "SPARK_REMOTE is set, so sessions of this process are" in capsys.readouterr().err
    assert not output.exists()
    assert run(["verify", str(store), "--master", "local[1]"]) == 2
    with pytest.raises(ConfigError, match="unset it"):
        build_session("tests")


def test_the_options_of_the_jvm_are_added_to_those_of_this_program() -> None:
    conf = {"spark.driver.extraJavaOptions": "-Dmine=1", "spark.ui.enabled": "true"}
    made = _spark_conf("name", None, conf)
    java = made.get("spark.driver.extraJavaOptions", "")
    assert java is not None
    assert java.endswith(" -Dmine=1")
    assert "-Dlog4j2.configurationFile=" in java
    assert made.get("spark.ui.enabled") == "true"
    assert made.get("spark.app.name") == "name"
    assert made.get("spark.master") == "local[*]"


@pytest.mark.parametrize("command", [("rebuild", "--output"), ("verify", "--output")])
def test_conf_without_a_spark_to_start_is_an_error(
    command: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path / "store", 5)
    name, output = command
    where = [name, str(tmp_path / "store"), output, str(tmp_path / "out")]
    assert run([*where, "--conf", "spark.driver.memory=1g"]) == 2
    assert "--conf is for Spark, which only --master starts here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("rebuild", "--output", "out"),
        ("verify", "--output", "dispatched"),
        ("dispatch", "--output", "out", "--available-now"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_starts_spark_passes_the_settings_on(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_store(tmp_path / "store", 5)
    dispatch_all(tmp_path / "store", tmp_path / "dispatched", config)
    seen: list[tuple[str, str | None, dict[str, str]]] = []

    def build_session(name: str, master: str | None, conf: dict[str, str]) -> None:
        seen.append((name, master, conf))
        raise SparkError("not started")

    monkeypatch.setattr("streaming.spark.session.build_session", build_session)
    monkeypatch.chdir(tmp_path)
    options = ["--master", "local[1]", "--conf", "spark.driver.memory=1g", "--conf", "spark.x=y=z"]
    assert run([command[0], "store", *command[1:], *options]) == 7
    conf = {"spark.driver.memory": "1g", "spark.x": "y=z"}
    assert seen == [(f"reput {command[0]}", "local[1]", conf)]


@pytest.mark.process
@pytest.mark.spark
def test_a_setting_reaches_the_session_of_a_dispatch(tmp_path: Path) -> None:
    make_store(tmp_path / "store", 20)
    events = tmp_path / "events"
    events.mkdir()
    options = [
        "--conf", "spark.eventLog.enabled=true",
        "--conf", f"spark.eventLog.dir={events.as_uri()}",
        "--conf", "spark.eventLog.compress=false",
        "--conf", "spark.driver.extraJavaOptions=-Dmine=1",
    ]  # fmt: skip
    done = reput(
        "dispatch", tmp_path / "store", "--output", tmp_path / "out", "--available-now", *options
    )
    assert done.returncode == 0, done.stderr
    texts = [path.read_text("utf-8") for path in events.rglob("events_*")]
    properties = next(
        event["Spark Properties"]
        for event in map(json.loads, "".join(texts).splitlines())
        if event["Event"] == "SparkListenerEnvironmentUpdate"
    )
    assert "-Dmine=1" in properties["spark.driver.extraJavaOptions"]
    assert "log4j2" in properties["spark.driver.extraJavaOptions"]
