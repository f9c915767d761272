"""Both clients' errors as ours, and why a first connection failed, from kafka-python's log."""

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import errors

from store.errors import ConfigError, KafkaIOError, MirrorInUseError, StoreError
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import client_options

LOST = "Bootstrap connection to bootstrap-0 failed: "
REFUSED = (
    "[Error 58] SaslAuthenticationFailedError: SaslAuthenticationFailedError: Authentication "
    "failed: Invalid username or password (backoff 0.38 secs)"
)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("KafkaConnectionError: socket disconnected", ConfigError, "user name and password right"),
        (REFUSED, ConfigError, "user name and password right? (Authentication failed: Invalid "),
        ("SSLError: wrong version number", ConfigError, "protocol mismatch with Kafka at h:1"),
        ("ECONNREFUSED", KafkaIOError, "Kafka is unreachable at h:1: ECONNREFUSED"),
    ],
)
def test_the_cause_is_reported_however_the_connection_ended(
    line: str, kind: type[StoreError], words: str
) -> None:
    options = client_options("h:1", {"security.protocol": "SASL_PLAINTEXT"})

    def make() -> None:
        logging.getLogger("kafka.net").warning("%s%s", LOST, line)
        raise errors.KafkaTimeoutError("Unable to bootstrap")

    with pytest.raises(kind) as caught:
        connect(options, make)
    assert words in str(caught.value)
    assert "backoff" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._FENCED, MirrorInUseError, "another mirror of that name"),
        (KafkaError.PRODUCER_FENCED, MirrorInUseError, "another mirror of that name"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigError, "denied access: reason"),
        (KafkaError._AUTHENTICATION, ConfigError, "denied access: reason"),
        (KafkaError.MSG_SIZE_TOO_LARGE, ConfigError, "rejected the request: reason"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, ConfigError, "rejected the request: reason"),
        (KafkaError._UNKNOWN_TOPIC, ConfigError, "rejected the request: reason"),
        (KafkaError._MSG_TIMED_OUT, KafkaIOError, "writing: Kafka at h:1: reason"),
        (KafkaError._TRANSPORT, KafkaIOError, "writing: Kafka at h:1: reason"),
    ],
)
def test_errors_of_the_mirrors_producer(code: int, kind: type[StoreError], words: str) -> None:
    error = KafkaException(KafkaError(code, "reason"))
    found = as_store_error(error, client_options("h:1", {}), "writing")
    assert type(found) is kind
    assert words in str(found)
