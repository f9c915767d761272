"""What the Kafka of the services holds, read from this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer

from tests.integration.compose.stack import Stack


@contextmanager
def reading(stack: Stack, topic: str, **options: Any) -> Iterator[KafkaConsumer]:
    """Read a topic from its beginning."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=stack.kafka_address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
        **options,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def topics(stack: Stack) -> set[str]:
    """Return the names of the topics."""
    consumer = KafkaConsumer(bootstrap_servers=stack.kafka_address)
    try:
        return set(consumer.topics())
    finally:
        consumer.close()
