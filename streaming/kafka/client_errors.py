"""kafka-python's errors as ours, in one line each; and why a first contact failed.

kafka-python says only that no broker was reached in time. Why is in its log, so that is listened
to meanwhile: a refused connection, a name that is not found, a listener of another protocol.
A broker that refuses credentials says so, or closes the connection before that can be read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

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


class _Listener(logging.Handler):
    """Keeps the last cause that kafka-python wrote to its log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.cause = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the cause that a line names."""
        found = _CAUSE.search(record.getMessage())
        if found is not None and "Unable to bootstrap" not in found[1]:
            self.cause = _BACKOFF.sub("", found[1])


@contextmanager
def _listening() -> Iterator[_Listener]:
    listener = _Listener()
    _LOGGER.addHandler(listener)
    try:
        yield listener
    finally:
        _LOGGER.removeHandler(listener)


def connect(options: ClientOptions, make: Callable[[], _Client]) -> _Client:
    """Make a client, which contacts the cluster; a bounded wait.

    Raises ConfigError for credentials and protocols that the cluster refuses, and for settings
    that the client does; KafkaIOError where nothing is reached.
    """
    with _listening() as listener:
        try:
            return make()
        except errors.KafkaError as e:
            if not isinstance(e, errors.KafkaTimeoutError):
                raise as_store_error(e, options) from e
            raise _unreached(options, listener.cause) from e
        except (ValueError, OSError, RuntimeError) as e:  # a setting, or a file that one names
            raise ConfigError(f"Kafka's client does not take its options: {e}") from e


def _unreached(options: ClientOptions, cause: str) -> StoreError:
    protocol = options.get("security_protocol")
    if "SaslAuthenticationFailed" in cause:
        return ConfigError(
            f"Kafka at {options} refused the login: are sasl.mechanism, user name and password "
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
            f"Kafka at {options} does not speak as it is spoken to (security.protocol="
            f"{protocol}): {cause}"
        )
    why = f": {cause}" if cause else ""
    return KafkaIOError(f"no Kafka was reached at {options}{why}")


def as_store_error(error: BaseException, options: ClientOptions, what: str = "") -> StoreError:
    """Return kafka-python's error as one of ours; ``what`` was being done."""
    if isinstance(error, StoreError):
        return error
    doing = f"{what}: " if what else ""
    cause = _root_cause(error)
    if isinstance(cause, _FENCED):
        return MirrorInUseError(f"{doing}another mirror of that name runs, and has taken over")
    if isinstance(cause, _REFUSED):
        return ConfigError(f"{doing}Kafka at {options} does not permit it: {_words(cause)}")
    if isinstance(cause, _SETTINGS):
        return ConfigError(f"{doing}Kafka at {options} does not take it: {_words(cause)}")
    if isinstance(cause, errors.KafkaTimeoutError):
        return KafkaIOError(f"{doing}Kafka at {options} did not answer in time: {_words(cause)}")
    return KafkaIOError(f"{doing}Kafka at {options}: {_words(cause)}")


def _root_cause(error: BaseException) -> BaseException:
    """Return what an error that wraps another one is about."""
    for part in error.args:
        if isinstance(part, errors.KafkaError):
            return _root_cause(part)
    return error


def _words(error: BaseException) -> str:
    """Return what an error says, without the whole request that some carry."""
    text = str(error).partition(": Request '")[0].partition(" Request '")[0]
    return " ".join(text.split())[:300] or type(error).__name__
