"""The settings of the mirror's producer: kafka-python's names in, librdkafka's out. Pure.

``client_options`` accepts the same properties for every client. A number beyond librdkafka's range
becomes the nearest one in it. A setting that is in no table here tunes kafka-python's own buffers
and metrics, and has no effect on the mirror's producer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from store.errors import ConfigError, shown
from streaming.kafka.client_options import ClientOptions

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The largest record before compression: one must fit into the producer's queue.
RECORD_BYTES_MAX = 256 * 1024 * 1024
_INT32_MAX = 2**31 - 1
_HOUR_MS = 3_600_000
_TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "client_dns_lookup": "client.dns.lookup",
        "client_id": "client.id",
        "security_protocol": "security.protocol",
        "sasl_mechanism": "sasl.mechanism",
        "sasl_plain_username": "sasl.username",
        "sasl_plain_password": "sasl.password",
        "sasl_kerberos_service_name": "sasl.kerberos.service.name",
        "ssl_cafile": "ssl.ca.location",
        "ssl_certfile": "ssl.certificate.location",
        "ssl_keyfile": "ssl.key.location",
        "ssl_password": "ssl.key.password",
        "ssl_crlfile": "ssl.crl.location",
        "ssl_ciphers": "ssl.cipher.suites",
    }
)
# Name, least and greatest value.
_NUMBERS: Mapping[str, tuple[str, int, int]] = MappingProxyType(
    {
        "batch_size": ("batch.size", 1, _INT32_MAX),
        "connections_max_idle_ms": ("connections.max.idle.ms", 0, _INT32_MAX),
        "delivery_timeout_ms": ("message.timeout.ms", 1, _INT32_MAX),
        "linger_ms": ("linger.ms", 0, 900_000),
        "max_in_flight_requests_per_connection": ("max.in.flight", 1, 5),
        "metadata_max_age_ms": ("topic.metadata.refresh.interval.ms", 10, _HOUR_MS),
        "receive_buffer_bytes": ("socket.receive.buffer.bytes", 0, 100_000_000),
        "receive_message_max_bytes": ("receive.message.max.bytes", 1_000_000, _INT32_MAX),
        "reconnect_backoff_ms": ("reconnect.backoff.ms", 0, _HOUR_MS),
        "reconnect_backoff_max_ms": ("reconnect.backoff.max.ms", 0, _HOUR_MS),
        "request_timeout_ms": ("socket.timeout.ms", 10, 300_000),
        "retry_backoff_ms": ("retry.backoff.ms", 1, 300_000),
        "send_buffer_bytes": ("socket.send.buffer.bytes", 0, 100_000_000),
        "transaction_timeout_ms": ("transaction.timeout.ms", 1_000, _INT32_MAX - 1_000),
    }
)
# They decide where a connection leads, and librdkafka has nothing like them.
_UNSUPPORTED = ("proxy_url", "sasl_kerberos_name", "sasl_kerberos_domain_name")
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
                f"Kafka option {name} is not supported by the mirror, whose producer (librdkafka) "
                "has no such option"
            )
    found = {name: settings[ours] for ours, name in _TEXTS.items() if ours in settings}
    for ours, (name, least, greatest) in _NUMBERS.items():
        value = options.get(ours)
        if value is not None:
            found[name] = min(max(int(value), least), greatest)
    # librdkafka wants each of these within the next; Kafka's other clients do not.
    transaction_ms = found["transaction.timeout.ms"]
    found["message.timeout.ms"] = min(found["message.timeout.ms"], transaction_ms)
    found["socket.timeout.ms"] = min(found["socket.timeout.ms"], transaction_ms)
    found["linger.ms"] = min(found["linger.ms"], found["message.timeout.ms"] - 1)
    found["request.timeout.ms"] = found["socket.timeout.ms"]
    found["reconnect.backoff.ms"] = min(
        found["reconnect.backoff.ms"], found["reconnect.backoff.max.ms"]
    )
    if "ssl_certfile" in settings:  # one PEM file may hold the certificate and its key
        found.setdefault("ssl.key.location", settings["ssl_certfile"])
    if not settings.get("ssl_check_hostname", True):
        found["ssl.endpoint.identification.algorithm"] = "none"
    return {
        **found,
        **_FIXED,
        "bootstrap.servers": str(options),
        "compression.type": codec,
        "transactional.id": transactional_id,
    }
