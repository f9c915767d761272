"""The settings of the mirror's producer, as librdkafka names and bounds them. Pure.

A number beyond librdkafka's range becomes the nearest one in it. A setting that is in no table here
tunes kafka-python's own buffers and metrics, and has no effect on the mirror's producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from store.errors import ConfigError, shown
from streaming.kafka.client_options import HOSTNAME_CHECK, ClientOptions, python_name

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The largest record before compression: one must fit into the producer's queue.
RECORD_BYTES_MAX = 256 * 1024 * 1024
_INT32_MAX = 2**31 - 1
_HOUR_MS = 3_600_000
_TEXTS = (
    "client.dns.lookup", "client.id", "sasl.kerberos.service.name", "sasl.mechanism",
    "sasl.password", "sasl.username", "security.protocol", "ssl.ca.location",
    "ssl.certificate.location", "ssl.cipher.suites", "ssl.crl.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
# librdkafka's name, least and greatest value.
_NUMBERS: Mapping[str, tuple[str, int, int]] = MappingProxyType(
    {
        "batch.size": ("batch.size", 1, _INT32_MAX),
        "connections.max.idle.ms": ("connections.max.idle.ms", 0, _INT32_MAX),
        "delivery.timeout.ms": ("message.timeout.ms", 1, _INT32_MAX),
        "linger.ms": ("linger.ms", 0, 900_000),
        "max.in.flight.requests.per.connection": ("max.in.flight", 1, 5),
        "metadata.max.age.ms": ("topic.metadata.refresh.interval.ms", 10, _HOUR_MS),
        "receive.buffer.bytes": ("socket.receive.buffer.bytes", 0, 100_000_000),
        "receive.message.max.bytes": ("receive.message.max.bytes", 1_000_000, _INT32_MAX),
        "reconnect.backoff.ms": ("reconnect.backoff.ms", 0, _HOUR_MS),
        "reconnect.backoff.max.ms": ("reconnect.backoff.max.ms", 0, _HOUR_MS),
        "request.timeout.ms": ("socket.timeout.ms", 10, 300_000),
        "retry.backoff.ms": ("retry.backoff.ms", 1, 300_000),
        "send.buffer.bytes": ("socket.send.buffer.bytes", 0, 100_000_000),
        "transaction.timeout.ms": ("transaction.timeout.ms", 1_000, _INT32_MAX - 1_000),
    }
)
# They decide where a connection leads, and librdkafka has nothing like them.
_UNSUPPORTED = ("proxy.url", "sasl.kerberos.name", "sasl.kerberos.domain.name")
# Settings that follow from the mirror's contract, whatever the user sets.
_FIXED: Mapping[str, Any] = MappingProxyType(
    {
        "allow.auto.create.topics": False,
        "delivery.report.only.error": True,
        "enable.metrics.push": False,
        "message.max.bytes": RECORD_BYTES_MAX,
        "partitioner": "murmur2",
        "queue.buffering.max.kbytes": RECORD_BYTES_MAX // 1024,
        "queue.buffering.max.messages": 0,  # bytes are the limit
        "sasl.kerberos.kinit.cmd": "",  # as kafka-python: the credentials cache as it is
    }
)


def check_codec(name: str) -> None:
    """Raise ConfigError for an unknown compression."""
    if name not in CODECS:
        raise ConfigError(f"compression {shown(name)} is not one of {', '.join(CODECS)}")


def producer_options(
    options: ClientOptions, *, transactional_id: str, codec: str
) -> dict[str, Any]:
    """Return librdkafka's settings. Raises ConfigError for an option that it cannot follow."""
    settings = options.settings
    for name in _UNSUPPORTED:
        if settings.get(name):
            raise ConfigError(
                f"Kafka option {python_name(name)} is not supported by the mirror, whose "
                "producer (librdkafka) has no such option"
            )
    found = {name: settings[name] for name in _TEXTS if name in settings}
    for name, (its_name, least, greatest) in _NUMBERS.items():
        value = options.get(name)
        if value is not None:
            found[its_name] = min(max(int(value), least), greatest)
    # librdkafka wants each of these within the next; Kafka's other clients do not.
    transaction_ms = found["transaction.timeout.ms"]
    found["message.timeout.ms"] = min(found["message.timeout.ms"], transaction_ms)
    found["socket.timeout.ms"] = min(found["socket.timeout.ms"], transaction_ms)
    found["linger.ms"] = min(found["linger.ms"], found["message.timeout.ms"] - 1)
    found["request.timeout.ms"] = found["socket.timeout.ms"]
    found["reconnect.backoff.ms"] = min(
        found["reconnect.backoff.ms"], found["reconnect.backoff.max.ms"]
    )
    if "ssl.certificate.location" in found:  # one PEM file may hold the certificate and its key
        found.setdefault("ssl.key.location", found["ssl.certificate.location"])
    if not settings.get(HOSTNAME_CHECK, True):
        found[HOSTNAME_CHECK] = "none"
    return {
        **found,
        **_FIXED,
        "bootstrap.servers": str(options),
        "compression.type": codec,
        "transactional.id": transactional_id,
    }
