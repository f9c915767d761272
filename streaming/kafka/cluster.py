"""The administrative client of a Kafka cluster: topics, their partitions and limits.

Requesting the metadata of one topic may auto-create it, so all topics are listed: only ``create``
creates a topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from store.errors import ConfigError
from streaming.kafka.client_errors import as_store_error, connect
from streaming.kafka.client_options import ClientOptions

# Kafka's default of message.max.bytes.
MESSAGE_BYTES_MAX = 1_048_588


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Settings of a Kafka topic that matter to a producer."""

    message_bytes_max: int
    cleanup_policy: str  # "" if reading it is not permitted


class Cluster:
    """An administrative client; close it after use."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._admin = connect(options, lambda: KafkaAdminClient(**options.of(KafkaAdminClient)))
        self._partitions: dict[str, int] = {}

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, 0 if it does not exist."""
        if topic not in self._partitions:
            self.refresh()
        return self._partitions.get(topic, 0)

    def refresh(self) -> None:
        """List the topics again."""
        try:
            found = self._admin.describe_topics()
        except errors.KafkaError as e:
            raise as_store_error(e, self._options, "listing topics") from e
        self._partitions = {t["name"]: len(t["partitions"]) for t in found if not t["error_code"]}

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic with the cluster's replication factor, unless it exists by now.

        Raises ConfigError if Kafka refuses.
        """
        wanted = {"num_partitions": partitions, "configs": dict(settings)}
        try:
            self._admin.create_topics({topic: wanted}, wait_for_metadata=True)
        except errors.TopicAlreadyExistsError:
            pass
        except (errors.KafkaTimeoutError, errors.NetworkExceptionError) as e:
            raise as_store_error(e, self._options, f"creating topic {topic}") from e
        except errors.KafkaError as e:
            reason = type(e).__name__.removesuffix("Error")
            raise ConfigError(
                f"Kafka at {self._options} refused to create topic {topic} with {partitions} "
                f"partitions{_shown(settings)}: {reason}"
            ) from e
        self.refresh()

    def limits(self, topic: str) -> TopicLimits:
        """Return a topic's limits, or Kafka's defaults if reading them is not permitted."""
        names = ["max.message.bytes", "cleanup.policy"]
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, names)
        try:
            found = self._admin.describe_configs([resource], config_filter="all")
            values: dict[str, Any] = found["topic"][topic]
            return TopicLimits(
                int(values["max.message.bytes"]["value"]), values["cleanup.policy"]["value"]
            )
        except (errors.KafkaError, KeyError, TypeError, ValueError):
            return TopicLimits(MESSAGE_BYTES_MAX, "")

    def close(self) -> None:
        """Close the client."""
        self._admin.close()


def _shown(settings: Mapping[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in settings.items())
