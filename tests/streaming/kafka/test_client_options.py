"""Kafka's option names, and kafka-python's for them; unknown options are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from store.errors import ConfigError, StoreIOError
from streaming.kafka.client_options import client_options, read_properties

CHECK = "ssl.endpoint.identification.algorithm"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("security.protocol", "SASL_SSL", {"security.protocol": "SASL_SSL"}),
        ("kafka.security.protocol", "SSL", {"security.protocol": "SSL"}),
        ("sasl.mechanism", "PLAIN", {"sasl.mechanism": "PLAIN"}),
        ("sasl.username", "u", {"sasl.username": "u"}),
        ("sasl_plain_password", "p", {"sasl.password": "p"}),
        ("ssl.truststore.location", "/ca.pem", {"ssl.ca.location": "/ca.pem"}),
        ("ssl.truststore.type", "PEM", {}),
        (CHECK, "", {CHECK: False}),
        (CHECK, "https", {CHECK: True}),
        ("ssl_check_hostname", "False", {CHECK: False}),
        ("linger.ms", "20", {"linger.ms": 20}),
        ("batch.size", "1000", {"batch.size": 1000}),
        ("receive.buffer.bytes", "65536", {"receive.buffer.bytes": 65536}),
        ("metrics_enabled", "false", {"metrics.enabled": False}),
        (
            "sasl.jaas.config",
            JAAS + 'username="a user" password="p=\\"w; d";',
            {"sasl.username": "a user", "sasl.password": 'p="w; d'},
        ),
        (
            "sasl.jaas.config",
            "x.ScramLoginModule required username='u' password=p;",
            {"sasl.username": "u", "sasl.password": "p"},
        ),
    ],
)
def test_options_in_kafkas_names(name: str, text: str, settings: dict[str, Any]) -> None:
    assert dict(client_options("h:1", {name: text}).settings) == settings


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("no.such.option", "1", "no.such.option is not supported"),
        ("acks", "1", "acks cannot be set"),
        ("kafka.transactional.id", "x", "kafka.transactional.id cannot be set"),
        ("enable.idempotence", "false", "enable.idempotence cannot be set"),
        ("bootstrap.servers", "h:1", "--kafka-bootstrap"),
        ("linger.ms", "soon", "'soon' is not a number"),
        ("metrics_enabled", "yes", "neither true nor false"),
        ("ssl.truststore.type", "JKS", "only PEM"),
        (CHECK, "ldap", "only 'https' or an empty value"),
        ("sasl.jaas.config", "Krb5LoginModule required;", "Krb5LoginModule"),
        ("sasl.jaas.config", JAAS + "username=u;", "needs username and password"),
        ("sasl.jaas.config", "", "not a line of a JAAS"),
        ("ssl_context", "x", "ssl_context is not supported"),
        ("partitioner", "x", "partitioner is not supported"),
    ],
)
def test_refused_options_are_named(name: str, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + part.replace("(", "\\(")) as raised:
        client_options("h:1", {name: text})
    assert name in str(raised.value)


def test_no_password_is_in_a_message() -> None:
    with pytest.raises(ConfigError) as raised:
        client_options("h:1", {"sasl.jaas.config": JAAS + "password=secret;"})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "hunter2 required",
        "hun\\\n  ter2",
        "sasl.password.hunter2 x",
        "linger.ms hunter2",
    ],
)
def test_a_line_without_a_name_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# a comment\nlinger.ms=\\\n  5\n\n{line}\nacks=all\n")
    with pytest.raises(ConfigError) as raised:
        read_properties(file, [])
    assert str(raised.value) == f"{file}: line 5 is not KEY=VALUE"
    assert raised.value.__suppress_context__


def test_names_end_at_a_blank_or_a_separator(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.password a=b\nlinger.ms 5\nno.such\\ option = 1\nclient.id:c\r\n")
    assert read_properties(file, []) == {
        "sasl.password": "a=b",
        "linger.ms": "5",
        "no.such option": "1",
        "client.id": "c",
    }


@pytest.mark.parametrize(
    "read",
    [
        lambda _: client_options("h:1", {"sasl.jaas.config": "hunter2 required;"}),
        lambda _: client_options("h:1", {"sasl.jaas.config": "hunter2"}),
        lambda _: read_properties(None, ["linger.ms=1", "hunter2"]),
        lambda file: read_properties(file, []),
    ],
    ids=["login module", "login line", "pair", "escape"],
)
def test_no_secret_in_a_wrong_place_is_in_a_message(
    tmp_path: Path, read: Callable[[Path], Any]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=\\uhunter2\n")
    with pytest.raises(ConfigError) as raised:
        read(file)
    assert "hun" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", "host:x", "host:0", "host:65536", "a b:1", "http://h:1"]
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        client_options(text, {})


def test_addresses() -> None:
    assert client_options("a:1, [::1]:2", {}).bootstrap == ("a:1", "[::1]:2")


def test_each_client_gets_what_it_knows() -> None:
    given = {"batch.size": "7", "request.timeout.ms": "9", "sasl.username": "u"}
    options = client_options("h:1", {**given, CHECK: ""})
    assert options.of(KafkaProducer)["batch_size"] == 7
    for client in (KafkaConsumer, KafkaAdminClient):
        arguments = options.of(client)
        assert arguments["request_timeout_ms"] == 9
        assert (arguments["sasl_plain_username"], arguments["ssl_check_hostname"]) == ("u", False)
        assert "batch_size" not in arguments
        assert set(arguments) <= set(client.DEFAULT_CONFIG)


def test_pairs_take_precedence_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a comment\nlinger.ms = 5\nsecurity.protocol: SSL\n")
    found = read_properties(file, ["linger.ms=7", "sasl.password=a=b"])
    assert found == {"linger.ms": "7", "security.protocol": "SSL", "sasl.password": "a=b"}


def test_malformed_pairs_and_files_are_refused(tmp_path: Path) -> None:
    for pair in ("x", "=1"):
        with pytest.raises(ConfigError, match="KEY=VALUE"):
            read_properties(None, [pair])
    with pytest.raises(StoreIOError):
        read_properties(tmp_path / "none", [])
    (tmp_path / "bad").write_text("a=\\uZZZZ\n")
    with pytest.raises(ConfigError, match="is not a properties file"):
        read_properties(tmp_path / "bad", [])
