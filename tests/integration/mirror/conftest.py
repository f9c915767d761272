"""A Kafka for each module of this folder; a module that needs other options starts its own."""

from collections.abc import Iterator

import pytest

from tests.integration.servers.kafka import KafkaServer


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Return a running Kafka with the default options."""
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.kill()
