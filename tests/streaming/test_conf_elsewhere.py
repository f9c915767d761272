"""A new user whose broker.conf is outside the store: one option names it, and nothing else."""

import json
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reput.cli import run
from reput.cli.stores import named_stores
from reput.console.metrics.console import ConsoleSource
from store.errors import ConfigError
from streaming import CommitLogDataSource, register_source, start_dispatch
from streaming.sources.message_source import FORMAT
from streaming.sources.options import parse_options
from streaming.sources.stores import find_stores
from tests.conftest import ARCHIVES, Golden, archive_name
from tests.support.commands import REPUT
from tests.support.consoles import console, source
from tests.support.dispatching import assert_same_store
from tests.support.stores.written import make_store

pytestmark = pytest.mark.spark
g1 = pytest.mark.parametrize(
    "golden", [p for p in ARCHIVES if archive_name(p) == "g1"], ids=["g1"], indirect=True
)
QUEUE = ("--queue", "0", "--offset", "0")


@pytest.mark.process
@g1
def test_dispatch_reads_search_console_and_spark_need_no_other_option(
    golden: Golden, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    store, output, conf = tmp_path / "store", tmp_path / "out", tmp_path / "etc" / "broker.conf"
    shutil.copytree(golden.store_root, store)
    conf.parent.mkdir()
    (store / "broker.conf").rename(conf)
    start_dispatch(spark, store, output, broker_conf=conf, available_now=True).awaitTermination()
    assert_same_store(output, golden.expected)

    def rows(*command: str) -> list[dict[str, object]]:
        assert run([*command, "--broker-conf", str(conf), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    place = (str(store), "--output", str(output))
    rows("status", *place)
    topic = next(row["topic"] for row in rows("topics", *place) if "topic" in row)
    assert rows("get", *place, "--topic", str(topic), *QUEUE)
    found = Counter(row["topic"] for row in rows("search", str(store)))
    assert run(["verify", *place, "--broker-conf", str(conf)]) == 0

    register_source(spark, CommitLogDataSource)
    read = spark.read.format(FORMAT).option("brokerConf", str(conf)).load(str(store))
    assert Counter(row.topic for row in read.select("topic").collect()) == found

    (named,) = named_stores([str(store)], conf, output)
    assert named.name == "broker-a"
    with console(source(store, output, named.name, broker_conf=conf)) as c:
        assert c.api("broker-a/status")["problem"] is None
        assert {q["topic"] for q in c.api("broker-a")["topics"]} >= {topic}


def test_a_command_that_the_console_offers_can_be_executed(tmp_path: Path) -> None:
    directory = tmp_path / 'it\'s a "store" $HOME'
    store, output = directory / "s", directory / "out"
    make_store(store, 30)
    conf = (store / "broker.conf").rename(directory / "b.conf")
    settings = ["--broker-conf", str(conf), "--broker-version", "4.9.4"]
    assert run(["rebuild", str(store), "--output", str(output), *settings]) == 0
    how = {"broker_conf": conf, "broker_version": "4.9.4"}
    with console(source(store, output, **how)) as c:
        shown = c.api("b/messages/0")
    command = shown["command"]
    assert "--broker-conf" in command
    assert "--broker-version 4.9.4" in command
    assert "--output" in command
    command = command.replace("reput", shlex.join(REPUT), 1)
    done = subprocess.run(
        ["sh", "-c", f"cd / && {command} --json"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["commit_log_offset"] == 0


def test_console_source_and_command_line_give_a_store_one_name(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, 30)
    conf = (store / "broker.conf").rename(tmp_path / "b.conf")
    conf.write_text(f"{conf.read_text()}brokerName=prod-a\nbrokerClusterName=C\n")
    (named,) = named_stores([str(store)], conf)
    (read,) = find_stores(parse_options({"path": str(store), "brokerConf": str(conf)}))
    assert (named.name, read.broker) == ("prod-a", "prod-a")
    with console(source(store, None, named.name, broker_conf=conf)) as c:
        nodes = {node.name for _, node in ConsoleSource(c.brokers.values())._brokers}
    assert nodes == {"prod-a"}


def test_broker_conf_and_version_are_given_by_broker(tmp_path: Path, spark: SparkSession) -> None:
    paths, confs = [], {}
    for name, count in (("broker-a", 30), ("broker-b", 60)):
        store = tmp_path / name
        make_store(store, count)
        confs[name] = str((store / "broker.conf").rename(tmp_path / f"{name}.conf"))
        paths.append(str(store))
    options = {
        "paths": json.dumps(paths),
        "brokerConf": json.dumps(confs),
        "brokerVersion": json.dumps({"broker-a": "4.9.4", "broker-b": "5.3.3"}),
    }
    stores = find_stores(parse_options(options))
    assert [str(s.config().version) for s in stores] == ["4.9.4", "5.3.3"]
    register_source(spark, CommitLogDataSource)
    counts = spark.read.format(FORMAT).options(**options).load().groupBy("broker").count()
    assert {row.broker: row["count"] for row in counts.collect()} == {
        "broker-a": 30,
        "broker-b": 60,
    }
    del confs["broker-b"]
    with pytest.raises(ConfigError, match="'brokerConf' has no value for broker 'broker-b'"):
        find_stores(parse_options(options | {"brokerConf": json.dumps(confs)}))


def test_one_broker_conf_of_several_stores_must_fit_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_store(tmp_path / name, 30)
    conf = (tmp_path / "a" / "broker.conf").rename(tmp_path / "one.conf")
    sizes = conf.read_text()
    options = {
        "paths": json.dumps([str(tmp_path / name) for name in ("a", "b")]),
        "brokerConf": str(conf),
    }
    assert len(find_stores(parse_options(options))) == 2
    conf.write_text(f"{sizes}brokerName=x\n")
    with pytest.raises(ConfigError, match="both stores of broker 'x'"):
        find_stores(parse_options(options))
    conf.write_text(f"{sizes}storePathCommitLog={tmp_path}/a/commitlog\n")
    with pytest.raises(ConfigError, match="the same commit log"):
        find_stores(parse_options(options))


@pytest.mark.parametrize("text", ["{}", '{"a": 1}', '{"a": ""}', ""])
@pytest.mark.parametrize("option", ["brokerConf", "brokerVersion"])
def test_settings_by_broker_are_texts(option: str, text: str) -> None:
    with pytest.raises(ConfigError):
        parse_options({"path": "/store", option: text})
