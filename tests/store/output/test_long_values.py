"""Values that are not sane numbers: a one-line error names the field and shortens the value."""

import json
import zlib
from pathlib import Path

import pytest

from reput.cli import run
from store import java
from store.broker_files import read_consumer_offsets, read_topic_configs
from store.config import BrokerVersion, load_config
from store.errors import ConfigError, DamageError
from store.io.checked_json import decode_record, encode_record
from store.output.progress import Fingerprint

LONG = "9" * 5000
LINE_MAX = 700  # paths and two values of 120 characters


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (LONG, None),
        ("-" + LONG, None),
        ("0" * 5000 + "7", 7),  # as Java: leading zeros do not count
        ("-" + "\uff10" * 5000 + "\uff17", -7),
        ("0" * 5000, 0),
        ("9" * 19, None),
        ("9223372036854775807", 2**63 - 1),
        ("+5", 5),
        ("+-5", None),
    ],
)
def test_long_numbers_are_parsed_as_in_java(text: str, value: int | None) -> None:
    assert java.parse_int(text, bits=64) == value


@pytest.mark.parametrize(
    "text", [f"5.{LONG}", f"{LONG}.3", f"5.3.{LONG}", "５.３.３", "5.3.٣", "5.³"]
)
def test_broker_versions_are_ascii_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="is not known") as raised:
        BrokerVersion.parse(text)
    assert len(str(raised.value)) < LINE_MAX


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxIndexNum", LONG),
        ("mappedFileSizeCommitLog", LONG),
        ("messageDelayLevel", f"1s {LONG}d"),
        ("messageDelayLevel", "1s x"),
        ("messageIndexEnable", LONG),
    ],
)
def test_an_error_names_file_and_setting(tmp_path: Path, name: str, value: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{name}={value}\n")
    with pytest.raises(ConfigError) as raised:
        load_config(tmp_path)
    assert str(raised.value).startswith(f"{conf}: {name}='{value[:100]}")
    assert len(str(raised.value)) < LINE_MAX


CONFIG_TEXTS = {
    "digits": b'{"topicConfigTable":{"T":{"perm":' + LONG.encode() + b"}}}",
    "not json": b'{"topicConfigTable":{',
    "not utf-8": b'{"topicConfigTable":{"\xff":{}}}',
    "mark": b'\xef\xbb\xbf{"topicConfigTable":{}}',
    "nested": b"[" * 100_000,
    "wrong": json.dumps({"topicConfigTable": {"T": {"perm": "x" * 5000}}}).encode(),
}
REASONS = {
    "digits": "torn (an integer has too many digits)",
    "not json": "torn (not JSON at line 1, column 22)",
    "not utf-8": "torn (not UTF-8 at byte 22)",
    "mark": "torn (it begins with a byte order mark)",
    "nested": "torn (nested too deeply)",
    "wrong": f"not as a broker writes it (T holds '{'x' * 120}'… (5000 characters), not an integer",
}


@pytest.mark.parametrize("kind", CONFIG_TEXTS)
def test_long_numbers_in_broker_files_are_reported_in_our_words(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "topics.json"
    path.write_bytes(CONFIG_TEXTS[kind])
    assert read_topic_configs(tmp_path).problem.startswith(f"{path} is {REASONS[kind]}")


def test_a_long_queue_id_is_reported_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@G":{' + LONG + ":5}}}")
    problem = read_consumer_offsets(tmp_path).problem
    assert "T@G has the key '999" in problem
    assert "digits)" not in problem
    assert len(problem) < LINE_MAX


def test_a_long_number_in_a_state_file_is_reported_in_our_words(tmp_path: Path) -> None:
    sealed = encode_record(Fingerprint(0, 1, 2, 3, 4))
    line = sealed.partition(b"\n")[0].replace(b'"offset": 0', b'"offset": ' + LONG.encode())
    data = line + b"\n%08x\n" % zlib.crc32(line)
    with pytest.raises(DamageError, match="cannot be read: an integer has too many digits"):
        decode_record(data, tmp_path / "progress", Fingerprint)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--broker-version", f"5.{LONG}"],
        ["--max-body-bytes", LONG],
        ["--offset", LONG],
        ["--max", LONG],
        ["--offset", "9" * 4000],
        ["--queue", "9" * 4000],
        ["--max", "9" * 4000],
        ["--wait", "9" * 4000],
        ["--topic", "x" * 5000],
        ["--tags", "|" * 5000],
    ],
)
def test_long_options_are_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    (tmp_path / "commitlog").mkdir()
    given = ["get", str(tmp_path), "--topic", "T", "--queue", "0", "--offset", "0", *arguments]
    assert run(given) in {1, 2}
    _, err = capfd.readouterr()
    assert err.startswith("reput: ")
    assert len(err) < LINE_MAX
