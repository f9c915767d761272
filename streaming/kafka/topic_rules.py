"""Which topics are mirrored, and their names in Kafka. Pure.

In a name that Kafka rejects, each illegal character becomes ``_`` (``%RETRY%group`` becomes
``_RETRY_group``). Two topics that would get the same name are refused; ``--topic-map`` gives them
different names, or merges them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from store.consumequeue.names import check_topic_pattern, is_system_topic
from store.errors import ConfigError, shown

NAME_MAX = 249
_REFUSED = re.compile(r"[^a-zA-Z0-9._-]")
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The selection and the names. ``topics`` empty and ``pattern`` None: all but system topics."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    include_system: bool = False

    def wants(self, topic: str) -> bool:
        """Return whether a topic's messages are mirrored."""
        if is_system_topic(topic) and not self.include_system:
            return False
        if self.topics:
            return topic in self.topics
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def kafka_name(self, topic: str) -> str:
        """Return a topic's name in Kafka. Raises ConfigError if Kafka would reject it."""
        name = self.renamed.get(topic)
        if name is None:
            name = self.prefix + _REFUSED.sub("_", topic)
        check_kafka_name(name, f"topic {topic}")
        return name


class TopicNames:
    """The names assigned so far: no two topics share a name unless both are in ``--topic-map``."""

    def __init__(self, rules: TopicRules) -> None:
        self._rules = rules
        self._names: dict[str, str] = {}
        self._owners: dict[str, str] = {}

    def name_of(self, topic: str) -> str:
        """Return a topic's name in Kafka. Raises ConfigError if another topic has that name."""
        known = self._names.get(topic)
        if known is not None:
            return known
        name = self._rules.kafka_name(topic)
        owner = self._owners.setdefault(name, topic)
        if owner != topic and not {owner, topic} <= set(self._rules.renamed):
            raise ConfigError(
                f"the topics {owner} and {topic} would both be {name} in Kafka: name one of them "
                f"with --topic-map {topic}=…, or both to merge them"
            )
        self._names[topic] = name
        return name


def make_rules(
    topics: Iterable[str] = (),
    *,
    pattern: str | None = None,
    prefix: str = "",
    maps: Iterable[str] = (),
    include_system: bool = False,
) -> TopicRules:
    """Check options and return the rules. Raises ConfigError, which names the option."""
    chosen = tuple(topics)
    if chosen and pattern is not None:
        raise ConfigError("give --topic or --topic-pattern, not both")
    if pattern is not None:
        check_topic_pattern(pattern, "--topic-pattern")
    for topic in chosen:
        if is_system_topic(topic) and not include_system:
            raise ConfigError(f"--topic {topic} is a system topic: add --include-system")
    if _REFUSED.search(prefix):
        raise ConfigError(
            f"--topic-prefix {shown(prefix)} has a character that Kafka does not allow"
        )
    renamed = dict(_renamed(maps))
    for topic, name in renamed.items():
        check_kafka_name(name, f"--topic-map {topic}={name}")
    return TopicRules(chosen, pattern, prefix, renamed, include_system)


def check_kafka_name(name: str, whose: str) -> None:
    """Raise ConfigError if Kafka does not allow a topic of that name."""
    if _LEGAL.fullmatch(name) is None or name in (".", ".."):
        raise ConfigError(
            f"{whose}: {name[:60]!r} cannot name a topic in Kafka (letters, digits, '.', '_' and "
            f"'-', at most {NAME_MAX}); --topic-map gives another name"
        )


def _renamed(maps: Iterable[str]) -> Iterable[tuple[str, str]]:
    for pair in maps:
        topic, separator, name = pair.partition("=")
        if not separator or not topic or not name:
            raise ConfigError(f"--topic-map {shown(pair)} is not FROM=TO")
        yield topic, name
