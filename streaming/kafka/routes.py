"""Which Kafka topic a RocketMQ topic goes to, and how its messages are spread over partitions.

A topic's route does not change while a mirror runs. A queue keeps one partition, and its order, as
long as neither the topic's queues (in ``config/topics.json``) nor its partitions change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from store.broker_files import TopicConfig
from store.errors import ConfigError
from streaming.kafka.cluster import Cluster
from streaming.kafka.records import HAS_NO_QUEUES, Route
from streaming.kafka.topic_rules import TopicNames, TopicRules


@dataclass(frozen=True, slots=True)
class Creation:
    """Whether missing topics are created, and with which settings."""

    is_wanted: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


class Router:
    """The routes of one mirror."""

    def __init__(
        self,
        cluster: Cluster,
        rules: TopicRules,
        known: Mapping[str, TopicConfig],
        creation: Creation,
    ) -> None:
        # By Kafka topic.
        self.message_bytes_max: dict[str, int] = {}
        self.partitions: dict[str, int] = {}
        self._cluster = cluster
        self._rules = rules
        self._names = TopicNames(rules)
        self._known = known
        self._creation = creation
        self._routes: dict[str, Route | None] = {}
        for topic in sorted(known):  # refuses name collisions at the start
            if rules.wants(topic):
                self._names.name_of(topic)

    def prepare(self) -> None:
        """Resolve the topics that were named explicitly and that the broker knows.

        Raises ConfigError for one that is missing in Kafka.
        """
        for topic in self._rules.topics:
            if topic in self._known:
                self.route(topic, 0)

    def route(self, topic: str, queue_id: int) -> Route | None:
        """Return a topic's route, None if it is not mirrored.

        ``queue_id`` is the greatest seen: it sizes a topic that must be created if the number of
        its queues is unknown. Raises ConfigError for a topic that is missing in Kafka.
        """
        if topic not in self._routes:
            wanted = self._rules.wants(topic)
            self._routes[topic] = self._resolve(topic, queue_id) if wanted else None
        return self._routes[topic]

    def close(self) -> None:
        """Close the cluster's client."""
        self._cluster.close()

    def add_target(self, name: str, partitions: int, whose: str) -> None:
        """Learn the partitions and the limit of a Kafka topic; create it if that is wanted.

        Raises ConfigError for one that is missing.
        """
        found = self._cluster.partitions(name)
        if not found:
            if not self._creation.is_wanted:
                raise ConfigError(
                    f"{whose}: Kafka has no topic {name}; create it, or use --create-topics"
                )
            self._cluster.create(name, partitions, self._creation.settings)
            found = self._cluster.partitions(name) or partitions
        self.partitions[name] = found
        self.message_bytes_max[name] = self._cluster.limits(name).message_bytes_max

    def _resolve(self, topic: str, queue_id: int) -> Route:
        name, queues = self._names.name_of(topic), self._queues_of(topic)
        wanted = queues if queues != HAS_NO_QUEUES else queue_id + 1
        self.add_target(name, wanted, f"topic {topic}")
        return Route(name, self.partitions[name], queues)

    def _queues_of(self, topic: str) -> int:
        """Return how many queues a topic has in the broker's ``topics.json``."""
        config = self._known.get(topic)
        if config is None:
            return HAS_NO_QUEUES
        counts = [n for n in (config.read_queue_nums, config.write_queue_nums) if n]
        return max(counts, default=HAS_NO_QUEUES)
