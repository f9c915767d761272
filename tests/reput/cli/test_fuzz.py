"""Any value of any option, setting or configuration file: only documented exit codes.

An exit code of 70 is a bug, and so is a traceback. Values come from past failures and from
hypothesis. Commands run in this process; those that would start Spark stop before that.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reput.cli import run
from reput.cli.options import size_option
from reput.export.options import ExportOptions
from reput.export.run import open_export
from store.config import StoreConfig
from store.errors import ConfigError, StoreError
from streaming.sources.option_values import parse_time
from streaming.sources.options import parse_options
from tests.logs.build import Message, build_log, write_log
from tests.support.dispatching import dispatch_all

FILE_SIZE = 4096
CONFIG = StoreConfig(
    mapped_file_size_commit_log=FILE_SIZE,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=5,
    max_index_num=50,
)
CONF = f"""mappedFileSizeCommitLog={FILE_SIZE}
mappedFileSizeConsumeQueue=400
maxHashSlotNum=5
maxIndexNum=50
"""
EXIT_CODES = {0, 1, 2, 3, 4, 5, 6, 7}
FUZZ = settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD = [
    "", " ", ",", "0", "-1", "1", "inf", "-inf", "nan", "1e400", "1e9", "9" * 26, "9" * 5000,
    "-" + "9" * 26, str(2**31), str(2**63), str(2**63 - 1), str(-(2**63)), "9999-12-31T23:59:59Z",
    "0001-01-01", "99999-01-01", "1m", "9" * 20 + "g", "1\n2", "٣", "½", "\x1b[2J", "漢", "\udcff",
    "..", "../../x", "/", "/dev/null", "a" * 300, "%RETRY%g", "||", "A || ", "*", "[" * 5000,
]  # fmt: skip
# What an argument can contain: no NUL; bytes that are not UTF-8 as lone surrogates.
TEXTS = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    | st.sampled_from("\udc80\udcff"),
    max_size=30,
)
NUMBERS = st.integers(-(2**70), 2**70).map(str) | TEXTS
PLACE = ("--topic", "T", "--queue", "0")


@pytest.fixture(scope="module")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small store, dispatched into itself."""
    store_root = tmp_path_factory.mktemp("fuzz")
    sent = [
        Message(topic="T", queue_offset=n, properties=[("KEYS", "k"), ("TAGS", "A")])
        for n in range(30)
    ]
    write_log(build_log(sent, FILE_SIZE), store_root / "commitlog")
    (store_root / "broker.conf").write_text(CONF)
    (store_root / "config").mkdir()
    dispatch_all(store_root, store_root, CONFIG)
    return store_root


def check(capfd: pytest.CaptureFixture[str], *arguments: str) -> None:
    code = run([*arguments])
    out, err = capfd.readouterr()
    assert code in EXIT_CODES, (arguments, err)
    assert "Traceback" not in out + err


# Each option of a read: the rest of a command that works, and the option.
OPTIONS = {
    "get --topic": ("get", "--queue", "0", "--offset", "0"),
    "get --queue": ("get", "--topic", "T", "--offset", "0"),
    "get --offset": ("get", *PLACE),
    "get --max": ("get", *PLACE, "--offset", "0"),
    "get --tags": ("get", *PLACE, "--offset", "0"),
    "get --max-body-bytes": ("get", *PLACE, "--offset", "0"),
    "get --broker-version": ("get", *PLACE, "--offset", "0"),
    "get --broker-conf": ("get", *PLACE, "--offset", "0"),
    "get --output": ("get", *PLACE, "--offset", "0"),
    "get --wait": ("get", *PLACE, "--offset", "0"),
    "offset --topic": ("offset", "--queue", "0", "--time", "0"),
    "offset --queue": ("offset", "--topic", "T", "--time", "0"),
    "offset --time": ("offset", *PLACE),
    "offset --boundary": ("offset", *PLACE, "--time", "0"),
    "query --topic": ("query", "--key", "k"),
    "query --key": ("query", "--topic", "T"),
    "query --tag": ("query", "--topic", "T"),
    "query --max": ("query", "--topic", "T", "--key", "k"),
    "query --from-time": ("query", "--topic", "T", "--key", "k"),
    "query --to-time": ("query", "--topic", "T", "--key", "k"),
    "search --topic": ("search",),
    "search --queue": ("search",),
    "search --from-time": ("search",),
    "search --to-time": ("search",),
    "search --key": ("search",),
    "search --tag": ("search",),
    "search --property": ("search", "--property", "KEYS=k"),
    "search --body": ("search",),
    "search --max": ("search",),
    "pending --topic": ("pending",),
    "pending --kind": ("pending",),
    "pending --due-before": ("pending",),
    "pending --as-of": ("pending",),
    "tail --topic": ("tail",),
    "tail --lines": ("tail", "--topic", "T"),
    "tail --tags": ("tail", "--topic", "T"),
    "tail --since": ("tail", "--topic", "T"),
    "message --commit-log-offset": ("message",),
    "message --id": ("message",),
    "message --max-body-bytes": ("message", "--commit-log-offset", "0"),
    "topics --broker-version": ("topics",),
    "topics --output": ("topics",),
    "verify --broker-version": ("verify",),
    "status --stuck-after": ("status", "--output", "{store_root}"),
    "status --output": ("status",),
    "recover --broker-version": ("recover", "--output", "{store_root}"),
    "rebuild --topic": ("rebuild", "--output", "{store_root}", "--queue", "0"),
    "rebuild --queue": ("rebuild", "--output", "{store_root}", "--topic", "None"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_any_value_of_an_option(
    store_root: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    command, option = name.split()
    rest = [part.format(store_root=store_root) for part in OPTIONS[name][1:]]

    @FUZZ
    @example("\udcff", False)  # an argument that is not UTF-8
    @given(NUMBERS, st.booleans())
    def fuzz(value: str, as_json: bool) -> None:
        shown = ["--json"] if as_json else []
        check(capfd, command, str(store_root), *rest, f"{option}={value}", *shown)

    fuzz()


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300", "-1", "9223372037", "x"])
def test_a_wait_is_a_bounded_number_of_seconds(
    store_root: Path, capfd: pytest.CaptureFixture[str], value: str
) -> None:
    assert run(["get", str(store_root), *PLACE, "--offset", "30", f"--wait={value}"]) == 2
    assert "--wait" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--at", "--limit", "--kind", "--max-body-bytes"])
@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/T/0", "index", "checkpoint"])
def test_any_value_of_an_option_of_dump(
    store_root: Path, capfd: pytest.CaptureFixture[str], option: str, kind: str
) -> None:
    path = store_root / kind
    if path.is_dir():
        path = min(path.iterdir())

    @FUZZ
    @given(NUMBERS)
    def fuzz(value: str) -> None:
        check(capfd, "dump", str(path), f"{option}={value}")

    fuzz()


SETTINGS = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "mappedFileSizeConsumeQueueExt",
    "maxHashSlotNum", "maxIndexNum", "messageIndexEnable", "enableConsumeQueueExt",
    "enableMultiDispatch", "enableLmq", "enabledAppendPropCRC", "messageDelayLevel",
    "storePathRootDir", "storePathCommitLog", "storeType", "messageStorePlugIn",
    "enableDLegerCommitLog", "enableCalcFilterBitMap",
)  # fmt: skip


@FUZZ
@given(
    st.sampled_from(SETTINGS), NUMBERS | st.binary(max_size=30).map(lambda b: b.decode("latin1"))
)
@example("messageDelayLevel", "999999999999999999d")
@example("storePathCommitLog", ",")
@example("storePathCommitLog", "/dev")
@example("storePathCommitLog", "a" * 300)
def test_any_value_of_a_setting(
    store_root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: str,
) -> None:
    conf = tmp_path_factory.mktemp("conf") / "broker.conf"
    escaped = value.encode("utf-16-be", "surrogatepass").hex()
    text = "".join(f"\\u{escaped[i : i + 4]}" for i in range(0, len(escaped), 4))
    plain = f"{name}={text}\n"
    conf.write_text(plain if name in CONF else CONF + plain)
    conf = ["--broker-conf", str(conf)]
    other = store_root.parent / f"{store_root.name}-other"
    if not other.exists():
        shutil.copytree(store_root, other)
        shutil.rmtree(other / "reput")
    for store in (store_root, other):
        check(capfd, "topics", str(store), *conf)
        check(capfd, "get", str(store), *PLACE, "--offset", "0", *conf)
        check(capfd, "verify", str(store), *conf)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["T", "T@G", "0", "-1", "9" * 30, "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
ODD_NAMES = ["T", "\ud800", "a\0b", "/", "..", "x" * 300, "\x1b[31m", "", "T@", "@", "%LMQ%"]
TOPICS = st.dictionaries(
    st.sampled_from(ODD_NAMES),
    st.fixed_dictionaries({}, optional={"readQueueNums": JSON, "perm": JSON, "attributes": JSON})
    | JSON,
    max_size=3,
)
OFFSETS = st.dictionaries(
    st.sampled_from([f"{name}@G" for name in ODD_NAMES] + ODD_NAMES),
    st.dictionaries(
        st.sampled_from(["0", "1", "-1", "7" * 30, "x", "9" * 5000]),
        st.integers(-(2**70), 2**70) | JSON,
        max_size=3,
    )
    | JSON,
    max_size=3,
)
FILES = st.one_of(
    st.tuples(st.just("topics.json"), TOPICS.map(lambda v: {"topicConfigTable": v}) | JSON),
    st.tuples(st.just("consumerOffset.json"), OFFSETS.map(lambda v: {"offsetTable": v}) | JSON),
    st.tuples(
        st.just("delayOffset.json"),
        st.dictionaries(st.sampled_from(["0", "1", "-5", "9" * 30, "x"]), JSON, max_size=3).map(
            lambda v: {"offsetTable": v}
        ),
    ),
)


@settings(FUZZ, max_examples=20)
@given(FILES, st.booleans())
@example(("topics.json", {"topicConfigTable": {"\ud800": {}}}), True)
@example(("topics.json", {"topicConfigTable": {"a\0b": {}}}), False)
@example(("consumerOffset.json", {"offsetTable": {"T@G": {"0": 2**80}}}), True)
@example(("delayOffset.json", {"offsetTable": {"1": 2**80, "9" * 30: 3}}), False)
def test_any_json_in_a_config_file(
    store_root: Path, capfd: pytest.CaptureFixture[str], file: tuple[str, Any], as_json: bool
) -> None:
    write_config(store_root, file[0], json.dumps(file[1]).encode())
    check(capfd, "topics", str(store_root), *(["--json"] if as_json else []))


@FUZZ
@given(
    st.sampled_from(["topics.json", "consumerOffset.json", "delayOffset.json"]),
    st.binary(max_size=200),
)
def test_any_bytes_in_a_config_file(
    store_root: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes
) -> None:
    write_config(store_root, name, data)
    check(capfd, "topics", str(store_root))


def write_config(store_root: Path, name: str, data: bytes) -> None:
    for path in (store_root / "config").iterdir():
        path.unlink()
    (store_root / "config" / name).write_bytes(data)


# --- What is parsed before Spark starts ----------------------------------------------------------

SOURCE_OPTIONS = (
    "path", "brokerConf", "brokerVersion", "subscribe", "subscribePattern", "startingOffsets",
    "startingTimestamp", "endingOffsets", "endingTimestamp", "maxBytesPerTrigger",
    "minPartitions", "failOnDataLoss", "includeBody", "maxBodyBytes",
)  # fmt: skip


@settings(FUZZ, max_examples=100)
@given(st.dictionaries(st.sampled_from(SOURCE_OPTIONS), NUMBERS, max_size=4), st.booleans())
def test_any_value_of_a_source_option(values: dict[str, str], streaming: bool) -> None:
    try:
        parse_options({"path": "/store", **values}, streaming=streaming)
    except ConfigError as e:
        assert len(str(e)) < 100_000  # noqa: PT017 - any outcome but another exception


@FUZZ
@given(NUMBERS)
def test_any_value_of_an_option_of_a_spark_command(value: str) -> None:
    for parse in (parse_time, size_option):
        try:
            found = parse("--option", value)
        except ConfigError:
            continue
        assert found is not None
        assert -(2**63) <= found < 2**63


# A dispatch, an export or a mirror that fails before Spark starts.
REFUSED = {
    "dispatch": ("--output", "{output}", "--broker-version", "0.0"),
    "mirror": ("--kafka-bootstrap", "127.0.0.1:1", "--broker-version", "0.0"),
    "rebuild": ("--output", "{output}", "--broker-version", "0.0"),
}
SPARK_OPTIONS = [
    *(("dispatch", o) for o in ("--from-offset", "--from-time", "--max-bytes-per-trigger",
      "--trigger-interval", "--fail-on-data-loss", "--notify-kafka-bootstrap")),
    *(("mirror", o) for o in ("--topic", "--topic-pattern", "--topic-prefix", "--topic-map",
      "--name", "--position-topic", "--compression", "--kafka-property", "--from-offset",
      "--from-time", "--to-time", "--max-bytes-per-trigger", "--max-bytes-per-transaction",
      "--trigger-interval", "--fail-on-data-loss", "--wait-for-kafka", "--topic-config",
      "--kafka-bootstrap", "--max-body-bytes", "--oversized", "--stuck-after")),
    ("rebuild", "--broker-conf"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "option"), SPARK_OPTIONS)
def test_any_value_of_an_option_before_spark_starts(
    store_root: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    command: str,
    option: str,
) -> None:
    rest = [part.format(output=tmp_path / "output") for part in REFUSED[command]]

    @FUZZ
    @given(NUMBERS)
    def fuzz(value: str) -> None:
        check(capfd, command, str(store_root), *rest, f"{option}={value}")

    fuzz()
    assert not (tmp_path / "output").exists()


@FUZZ
@given(NUMBERS, st.lists(TEXTS, max_size=2))
def test_any_value_of_an_option_of_an_export(
    store_root: Path, tmp_path_factory: pytest.TempPathFactory, file_format: str, topics: list[str]
) -> None:
    to = tmp_path_factory.mktemp("export")
    try:
        with open_export(
            store_root, to, ExportOptions(file_format=file_format, topics=tuple(topics))
        ) as job:
            assert job.ranges
    except StoreError:
        return
    assert file_format in ("parquet", "jsonl")
