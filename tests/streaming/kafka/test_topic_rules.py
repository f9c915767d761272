"""Which topics are mirrored, their names in Kafka, and where their queues go."""

from collections.abc import Mapping
from typing import Any

import pytest

from store.broker_files import TopicConfig
from store.errors import ConfigError
from streaming.kafka.cluster import MESSAGE_BYTES_MAX, TopicLimits
from streaming.kafka.records import HAS_NO_QUEUES, Route
from streaming.kafka.routes import Creation, Router
from streaming.kafka.topic_rules import TopicNames, TopicRules, is_system_topic, make_rules


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("Orders", "Orders"),
        ("%RETRY%group", "_RETRY_group"),
        ("%DLQ%a|b", "_DLQ_a_b"),
        ("a.b-c_d", "a.b-c_d"),
        ("Тема", "____"),
    ],
)
def test_characters_that_kafka_refuses_are_replaced(topic: str, name: str) -> None:
    assert TopicRules().kafka_name(topic) == name


def test_prefix_and_map() -> None:
    rules = make_rules(prefix="mq.", maps=["A=B", "%RETRY%g=retries"])
    assert [rules.kafka_name(t) for t in ("A", "%RETRY%g", "C")] == ["B", "retries", "mq.C"]


def test_two_topics_with_one_name_are_refused() -> None:
    names = TopicNames(TopicRules())
    assert names.name_of("a%b") == "a_b"
    assert names.name_of("a%b") == "a_b"
    with pytest.raises(ConfigError, match=r"a%b and a_b would both be a_b"):
        names.name_of("a_b")
    with pytest.raises(ConfigError, match="would both be"):  # also when asked again
        names.name_of("a_b")


def test_two_topics_may_be_merged_explicitly() -> None:
    names = TopicNames(make_rules(maps=["A=X", "B=X"]))
    assert [names.name_of("A"), names.name_of("B")] == ["X", "X"]
    with pytest.raises(ConfigError, match="would both be X"):
        names.name_of("X")


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250])
def test_names_that_kafka_refuses(name: str) -> None:
    with pytest.raises(ConfigError):
        make_rules(maps=[f"A={name}"])
    with pytest.raises(ConfigError, match="cannot name a topic"):
        TopicRules().kafka_name("x" * 250)


def test_malformed_choices_are_refused() -> None:
    refused: list[dict[str, Any]] = [
        {"topics": ["A"], "pattern": "B.*"},
        {"pattern": "("},
        {"pattern": "(" * 5000},
        {"pattern": "[[a]"},
        {"pattern": "[a-z&&b]"},
        {"prefix": "a%"},
        {"maps": ["A"]},
        {"topics": ["SCHEDULE_TOPIC_XXXX"]},
    ]
    for arguments in refused:
        with pytest.raises(ConfigError):
            make_rules(**arguments)


def test_selection() -> None:
    topics = ["A", "AB", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"]

    def wanted(rules: TopicRules) -> list[str]:
        return [t for t in topics if rules.wants(t)]

    assert wanted(make_rules()) == ["A", "AB", "%RETRY%g"]
    assert wanted(make_rules(["AB"])) == ["AB"]
    assert wanted(make_rules(pattern="A.?")) == ["A", "AB"]
    assert wanted(make_rules(pattern=".*")) == ["A", "AB", "%RETRY%g"]
    assert wanted(make_rules(include_system=True)) == topics


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_c",
        "TBW102",
        "OFFSET_MOVED_EVENT",
    ],
)
def test_system_topics(topic: str) -> None:
    assert is_system_topic(topic)


class FakeCluster:
    """Partitions by topic."""

    def __init__(self, partitions: dict[str, int]) -> None:
        self.of = partitions
        self.made: list[tuple[str, int, Mapping[str, str]]] = []

    def partitions(self, topic: str) -> int:
        return self.of.get(topic, 0)

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        self.made.append((topic, partitions, settings))
        self.of[topic] = partitions

    def limits(self, _topic: str) -> TopicLimits:
        return TopicLimits(MESSAGE_BYTES_MAX, "delete")


KNOWN = {"A": TopicConfig(4, 8, 6, {}), "B": TopicConfig(None, None, 6, {})}


def router(
    cluster: Any, creation: Creation | None = None, rules: TopicRules | None = None
) -> Router:
    return Router(cluster, rules or TopicRules(), KNOWN, creation or Creation())


def test_routes_know_queues_and_partitions() -> None:
    found = router(FakeCluster({"A": 3, "B": 2, "C": 1}))
    assert found.route("A", 0) == Route("A", 3, 8)
    assert found.route("B", 0) == Route("B", 2, HAS_NO_QUEUES)
    assert found.route("C", 0) == Route("C", 1, HAS_NO_QUEUES)
    assert found.route("TBW102", 0) is None


def test_missing_topics_are_an_error_or_created() -> None:
    cluster = FakeCluster({})
    with pytest.raises(ConfigError, match=r"Kafka has no topic A.*--create-topics"):
        router(cluster).route("A", 0)
    making = router(cluster, Creation(True, {"retention.ms": "-1"}))
    assert making.route("A", 0) == Route("A", 8, 8)
    assert making.route("C", 2) == Route("C", 3, HAS_NO_QUEUES)
    making.route("C", 5)
    settings = {"retention.ms": "-1"}
    assert cluster.made == [("A", 8, settings), ("C", 3, settings)]


def test_names_that_collide_are_refused_at_the_start() -> None:
    known = {"x%y": TopicConfig(1, 1, 6, {}), "x_y": TopicConfig(1, 1, 6, {})}
    with pytest.raises(ConfigError, match="would both be x_y"):
        Router(FakeCluster({}), TopicRules(), known, Creation())  # type: ignore[arg-type]


def test_topics_asked_for_by_name_must_be_in_kafka() -> None:
    found = router(FakeCluster({"B": 1}), rules=make_rules(["A"]))
    with pytest.raises(ConfigError, match="no topic A"):
        found.prepare()
