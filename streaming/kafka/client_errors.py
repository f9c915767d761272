"""The errors of both Kafka clients as one-line ``StoreError``s, and why a first connection failed.

The mirror's producer is librdkafka's, whose errors have names. All other clients are
kafka-python's, whose errors are classes. If a connection fails, kafka-python reports only that no
broker was reached in time. The cause is in its log, which is captured meanwhile: connection
refused, unknown host, a listener of another protocol. A broker that rejects credentials reports
that, or closes the connection before the report can be read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from kafka import errors

from store.errors import ConfigError, KafkaIOError, MirrorInUseError, StoreError
from streaming.kafka.client_options import ClientOptions

_Client = TypeVar("_Client")
_LOGGER = logging.getLogger("kafka")
_CAUSE = re.compile(r"(?:Connection lost|Connection failed|failed|DNS[^:]*): (.+)")
_BACKOFF = re.compile(r" \(backoff .*\)$")
_CLOSED = ("socket disconnected", "RequestTimedOut", "Connection reset", "ECONNRESET")
_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_REFUSED = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
_SETTINGS = (
    errors.KafkaConfigurationError,
    errors.InvalidTransactionTimeoutError,
    errors.UnsupportedVersionError,
    errors.UnsupportedCodecError,
)
# Names of librdkafka's errors; those that begin with an underscore are its own, the rest Kafka's.
_FENCED_NAMES = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_REFUSED_NAMES = {
    "_AUTHENTICATION", "CLUSTER_AUTHORIZATION_FAILED", "ILLEGAL_SASL_STATE",
    "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "UNSUPPORTED_SASL_MECHANISM",
}  # fmt: skip
_SETTING_NAMES = {
    "_INVALID_ARG", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "_UNSUPPORTED_FEATURE",
    "INVALID_TIMESTAMP", "INVALID_TRANSACTION_TIMEOUT", "MSG_SIZE_TOO_LARGE", "TOPIC_EXCEPTION",
    "UNKNOWN_TOPIC_OR_PART", "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_VERSION",
}  # fmt: skip


class _CauseHandler(logging.Handler):
    """Keeps the last cause of failure in kafka-python's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.cause = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the cause in a log line, if any."""
        found = _CAUSE.search(record.getMessage())
        if found is not None and "Unable to bootstrap" not in found[1]:
            self.cause = _BACKOFF.sub("", found[1])


@contextmanager
def _captured_cause() -> Iterator[_CauseHandler]:
    handler = _CauseHandler()
    _LOGGER.addHandler(handler)
    try:
        yield handler
    finally:
        _LOGGER.removeHandler(handler)


def connect(options: ClientOptions, make: Callable[[], _Client]) -> _Client:
    """Create a client, which connects to the cluster within a bounded time.

    Raises ConfigError for credentials or a protocol that the cluster rejects and for settings that
    the client rejects, KafkaIOError if no broker is reachable.
    """
    with _captured_cause() as handler:
        try:
            return make()
        except errors.KafkaError as e:
            if not isinstance(e, errors.KafkaTimeoutError):
                raise as_store_error(e, options) from e
            raise _unreachable(options, handler.cause) from e
        except KafkaException as e:
            raise ConfigError(f"Kafka's client rejected its options: {e.args[0].str()}") from e
        except (ValueError, OSError, RuntimeError) as e:  # a setting, or a file named by one
            raise ConfigError(f"Kafka's client rejected its options: {e}") from e


def _unreachable(options: ClientOptions, cause: str) -> StoreError:
    protocol = options.get("security.protocol")
    if "SaslAuthenticationFailed" in cause:
        return ConfigError(
            f"Kafka at {options} rejected the login: are sasl.mechanism, user name and password "
            f"right? ({cause.rpartition('SaslAuthenticationFailedError: ')[2]})"
        )
    if any(sign in cause for sign in _CLOSED):
        wrong = (
            "are sasl.mechanism, user name and password right?"
            if protocol.startswith("SASL")
            else f"is security.protocol right? It is {protocol}"
        )
        text = f"Kafka at {options} closed the connection before it could be used: {wrong}"
        return ConfigError(text)
    if "SSL" in cause or "Sasl" in cause:
        return ConfigError(
            f"protocol mismatch with Kafka at {options} (security.protocol={protocol}): {cause}"
        )
    why = f": {cause}" if cause else ""
    return KafkaIOError(f"Kafka is unreachable at {options}{why}")


def as_store_error(error: BaseException, options: ClientOptions, what: str = "") -> StoreError:
    """Return a client's error as a StoreError; ``what`` is the operation that failed."""
    if isinstance(error, StoreError):
        return error
    doing = f"{what}: " if what else ""
    cause = _root_cause(error)
    name = cause.name() if isinstance(cause, KafkaError) else ""
    words = _words(cause.str() if isinstance(cause, KafkaError) else str(cause))
    words = words or type(cause).__name__
    if isinstance(cause, _FENCED) or name in _FENCED_NAMES:
        return MirrorInUseError(f"{doing}another mirror of that name is running and has taken over")
    if isinstance(cause, _REFUSED) or name in _REFUSED_NAMES:
        return ConfigError(f"{doing}Kafka at {options} denied access: {words}")
    if isinstance(cause, _SETTINGS) or name in _SETTING_NAMES:
        return ConfigError(f"{doing}Kafka at {options} rejected the request: {words}")
    if isinstance(cause, errors.KafkaTimeoutError):
        return KafkaIOError(f"{doing}Kafka at {options} did not answer in time: {words}")
    return KafkaIOError(f"{doing}Kafka at {options}: {words}")


def _root_cause(error: BaseException) -> BaseException | KafkaError:
    """Return the innermost Kafka error that an error wraps."""
    for part in error.args:
        if isinstance(part, KafkaError):
            return part
        if isinstance(part, errors.KafkaError):
            return _root_cause(part)
    return error


def _words(text: str) -> str:
    """Return the text of an error on one line, without the full request that some include."""
    text = text.partition(": Request '")[0].partition(" Request '")[0]
    return " ".join(text.split())[:300]
