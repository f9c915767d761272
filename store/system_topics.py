"""Which topics are a broker's own, as opposed to those that clients create."""

from __future__ import annotations

from store.layout import SCHEDULE_TOPIC

# Java parity: TopicValidator's system topics, those of 4.x included.
SYSTEM_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "TBW102",
        "OFFSET_MOVED_EVENT", "BenchmarkTest", "CHECKPOINT_TOPIC",
    }
)  # fmt: skip
_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_", "rmq_sys.")


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is the broker's own; those of consumer groups (%RETRY%…) are not."""
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)
