"""Settings in librdkafka's names; it accepts what kafka-python does."""

import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from store.errors import ConfigError
from streaming.kafka.client_errors import connect
from streaming.kafka.client_options import ClientOptions, client_options
from streaming.kafka.producer_options import CODECS, check_codec, producer_options


def options_of(properties: dict[str, str]) -> dict[str, Any]:
    client = client_options("127.0.0.1:1", properties)
    return producer_options(client, transactional_id="x", codec="zstd")


def is_accepted(settings: dict[str, Any]) -> bool:
    """Return whether librdkafka makes a producer; it raises KafkaException if it does not."""
    return isinstance(Producer(settings, logger=logging.getLogger("librdkafka")), Producer)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("security.protocol", "SASL_SSL", {"security.protocol": "SASL_SSL"}),
        ("sasl.mechanism", "SCRAM-SHA-512", {"sasl.mechanism": "SCRAM-SHA-512"}),
        (
            "sasl.jaas.config",
            'x.PlainLoginModule required username="u" password="p;";',
            {"sasl.username": "u", "sasl.password": "p;"},
        ),
        ("sasl.kerberos.service.name", "k", {"sasl.kerberos.service.name": "k"}),
        ("ssl.truststore.location", "/none/ca.pem", {"ssl.ca.location": "/none/ca.pem"}),
        (
            "ssl.keystore.location",
            "/none/both.pem",
            {"ssl.certificate.location": "/none/both.pem", "ssl.key.location": "/none/both.pem"},
        ),
        ("ssl.key.location", "/none/key.pem", {"ssl.key.location": "/none/key.pem"}),
        ("ssl.key.password", "secret", {"ssl.key.password": "secret"}),
        ("ssl_crlfile", "/none/crl.pem", {"ssl.crl.location": "/none/crl.pem"}),
        ("ssl_ciphers", "HIGH", {"ssl.cipher.suites": "HIGH"}),
        (
            "ssl.endpoint.identification.algorithm",
            "",
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        ("client.id", "me", {"client.id": "me"}),
        ("batch.size", "1000", {"batch.size": 1000}),
        ("linger.ms", "7", {"linger.ms": 7}),
        ("request.timeout.ms", "9000", {"socket.timeout.ms": 9000, "request.timeout.ms": 9000}),
        ("metadata.max.age.ms", "86400000", {"topic.metadata.refresh.interval.ms": 3_600_000}),
        ("max.in.flight.requests.per.connection", "1", {"max.in.flight": 1}),
        ("send.buffer.bytes", "65536", {"socket.send.buffer.bytes": 65536}),
    ],
)
def test_names_are_mapped(name: str, text: str, expected: dict[str, Any]) -> None:
    found = options_of({name: text})
    assert {key: found.get(key) for key in expected} == expected


def test_timeouts_stay_within_one_another() -> None:
    found = options_of(
        {"transaction.timeout.ms": "5000", "delivery.timeout.ms": "120000", "linger.ms": "60000"}
    )
    names = "transaction.timeout.ms", "message.timeout.ms", "socket.timeout.ms", "linger.ms"
    assert [found[name] for name in names] == [5000, 5000, 5000, 4999]


NUMBERS = [
    name
    for name, default in KafkaProducer.DEFAULT_CONFIG.items()
    if type(default) is int and name != "acks"
] + ["receive_buffer_bytes", "send_buffer_bytes"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["0", "1", "60000", "999999999999"])
def test_librdkafka_accepts_every_number(name: str, text: str) -> None:
    assert is_accepted(options_of({name: text}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a PEM file that holds an encrypted key and its certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the keys, is not installed")
    directory = tmp_path_factory.mktemp("pem")
    command = "openssl req -x509 -newkey rsa:2048 -keyout key -out cert -days 2 -subj /CN=h"
    subprocess.run(
        [*command.split(), "-passout", "pass:secret"],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    both = directory / "both.pem"
    both.write_bytes((directory / "key").read_bytes() + (directory / "cert").read_bytes())
    return both


def test_a_pem_store_with_an_encrypted_key_is_read(store: Path) -> None:
    properties = {
        "security.protocol": "SSL",
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "secret",
        "ssl.truststore.location": str(store.with_name("cert")),
        "ssl.truststore.type": "PEM",
    }
    assert is_accepted(options_of(properties))
    wrong = options_of({**properties, "ssl.key.password": "wrong"})
    with pytest.raises(ConfigError, match=r"client rejected its options: .*ssl\.key\.location"):
        connect(client_options("h:1", {}), lambda: is_accepted(wrong))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "ssl"])
def test_librdkafka_accepts_every_protocol_and_codec(codec: str, protocol: str) -> None:
    properties = {
        "security.protocol": protocol,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": "p",
        "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
    }
    assert is_accepted({**options_of(properties), "compression.type": codec})


@pytest.mark.parametrize(
    "name", ["max.block.ms", "metrics_enabled", "metrics.num.samples", "bootstrap_timeout_ms"]
)
def test_what_tunes_kafka_python_alone_has_no_effect(name: str) -> None:
    text = "true" if name == "metrics_enabled" else "3"
    assert options_of({name: text}) == options_of({})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proxy_url", "socks5://127.0.0.1:1080"),
        ("sasl_kerberos_name", "kafka@h"),
        ("sasl.kerberos.domain.name", "d"),
    ],
)
def test_what_leads_elsewhere_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{name.replace('.', '_')} is not supported"):
        options_of({name: text})


def test_compressions_are_known_or_refused() -> None:
    for name in CODECS:
        check_codec(name)
    with pytest.raises(ConfigError, match="'brotli' is not one of none, gzip, snappy, lz4, zstd"):
        check_codec("brotli")


def test_the_address_and_the_name_are_the_mirrors() -> None:
    client = ClientOptions(("a:1", "b:2"), {"compression.type": "gzip"})
    found = producer_options(client, transactional_id="reput-mirror-x", codec="lz4")
    names = "bootstrap.servers", "transactional.id", "compression.type"
    assert [found[name] for name in names] == ["a:1,b:2", "reput-mirror-x", "lz4"]
