"""Why a first connection to Kafka failed, from what kafka-python wrote to its log."""

import logging

import pytest
from kafka import errors

from store.errors import ConfigError, KafkaIOError, StoreError
from streaming.kafka.client_errors import connect
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
