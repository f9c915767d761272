"""The Kafka server that other tests use: both listeners, its data after a stop and a kill."""

from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import MessageSizeTooLargeError

from tests.integration.servers.kafka import KafkaOptions, KafkaServer

USER, PASSWORD = "reput", "a password"
MAX_BYTES = 3_000_000


def test_data_outlives_a_stop_and_a_kill_and_both_listeners_work(tmp_path: Path) -> None:
    options = KafkaOptions(message_max_bytes=MAX_BYTES, users={USER: PASSWORD})
    kafka = KafkaServer(tmp_path / "kafka", options)
    sasl = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    kafka.start()
    try:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)])
        admin.close()
        large = b"x" * 2_000_000
        send(kafka.bootstrap, large)
        with pytest.raises(MessageSizeTooLargeError):
            send(kafka.bootstrap, b"x" * (MAX_BYTES + 1))
        kafka.stop()
        kafka.start()
        send(kafka.sasl_bootstrap, b"after a stop", **sasl)
        kafka.kill()
        kafka.start()
        assert read(kafka.sasl_bootstrap, 2, **sasl) == [large, b"after a stop"]
        kafka.stop()
    finally:
        kafka.kill()


def send(bootstrap: str, value: bytes, **options: Any) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, acks="all", max_request_size=2 * MAX_BYTES, **options
    )
    try:
        producer.send("t", value).get(timeout=60)
    finally:
        producer.close()


def read(bootstrap: str, count: int, **options: Any) -> list[bytes]:
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
        **options,
    )
    try:
        return [next(consumer).value for _ in range(count)]
    finally:
        consumer.close()
