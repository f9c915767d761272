"""Messages larger than Kafka accepts: how they are found, and what becomes of them.

Kafka limits a batch as it is sent, compressed. A batch takes further records only up to
``batch.size``, which is never above a limit, so a record can be too large only if it exceeds the
limit by itself. The size of such a record is determined before it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from store.errors import ConfigError, shown
from streaming.kafka.producer_options import RECORD_BYTES_MAX
from streaming.kafka.records import BY_KEY, Record
from streaming.kafka.routes import Router
from streaming.kafka.topic_rules import check_kafka_name

BATCH_HEADER_SIZE = 61
# What a request contains besides its batch: names, ids, lengths.
REQUEST_OVERHEAD = 1024
REFUSED = "which exceeds Kafka's limit (message.max.bytes)"
FAIL, SKIP, DIVERT = "fail", "skip", "topic:"
# Upper bounds, in bytes: of key and headers, of a length field, of the other fields of a record.
_REST_MAX = 256 * 1024
_LENGTH_SIZE, _FIELDS_SIZE = 5, 32


@dataclass(frozen=True, slots=True)
class OversizedRule:
    """What to do with a message that is too large; ``topic`` only for DIVERT."""

    action: str = FAIL
    topic: str = ""


@dataclass(frozen=True, slots=True)
class OversizedMessage:
    """A message that was too large for its topic, and was skipped or sent to another one."""

    commit_log_offset: int
    path: str
    reason: str
    sent_to: str  # "" if it was skipped

    def __str__(self) -> str:
        what = f"sent to topic {self.sent_to}" if self.sent_to else "skipped"
        return f"{what}: {self.reason}"


def parse_rule(text: str) -> OversizedRule:
    """Parse ``fail``, ``skip`` or ``topic:NAME``. Raises ConfigError."""
    if text in (FAIL, SKIP):
        return OversizedRule(text)
    if not text.startswith(DIVERT):
        raise ConfigError(f"--oversized {shown(text)} is not one of fail, skip, topic:NAME")
    topic = text.removeprefix(DIVERT)
    check_kafka_name(topic, "--oversized")
    return OversizedRule(DIVERT, topic)


class SizeCheck:
    """Compares records with the limits of their topics and of the client, and applies the rule."""

    def __init__(
        self,
        router: Router,
        rule: OversizedRule,
        codec: str,
        request_bytes_max: int,
        report: Callable[[OversizedMessage], None],
    ) -> None:
        self._router = router
        self._rule = rule
        self._codec = codec
        self._request_bytes_max = request_bytes_max
        self._report = report
        self._small: dict[str, int] = {}  # by topic: a value of this size fits whatever is with it
        self._refused: set[int] = set()  # offsets of messages that Kafka refused for their size
        self._reported_to = 0  # end of the messages that have been reported

    def batch_bytes(self, wanted: int) -> int:
        """Return the greatest size of a batch that every topic accepts, at most ``wanted``."""
        limits = self._router.message_bytes_max.values()
        least = min([*limits, self._request_bytes_max - REQUEST_OVERHEAD])
        return max(min(wanted, least - BATCH_HEADER_SIZE), 1)

    def fit(self, record: Record, path: str) -> Record | None:
        """Return a record as it is sent: unchanged, to another topic, or not at all if too large.

        Raises ConfigError for one that is too large, if that is the rule.
        """
        small = self._small.get(record.topic)
        if small is None:
            small = self._small[record.topic] = self._least(record.topic) - _REST_MAX
        excess = self._excess(record) if len(record.value) > small else ""
        if not excess:
            return record
        rule = self._rule
        error = too_large(record.commit_log_offset, path, record.topic, excess)
        if rule.action == FAIL or record.topic == rule.topic:
            raise error
        diverted = None if rule.action == SKIP else self._diverted(record, error)
        if record.commit_log_offset >= self._reported_to:  # else a failed attempt reported it
            self._reported_to = record.commit_log_offset + 1
            self._report(OversizedMessage(record.commit_log_offset, path, str(error), rule.topic))
        return diverted

    def set_aside(self, topic: str, offset: int, value_size: int) -> bool:
        """Note that Kafka refused a message for its size; return whether the rule applies to it.

        It does not if its batch may have been too large rather than the message.
        """
        if self._rule.action == FAIL or topic == self._rule.topic:
            return False
        if offset < 0 or offset in self._refused or value_size <= self._small[topic]:
            return False
        self._refused.add(offset)
        return True

    def _diverted(self, record: Record, error: ConfigError) -> Record:
        """Return a record as it goes to the topic of oversized messages. Raises ConfigError."""
        topic, partition = self._rule.topic, record.partition
        if partition != BY_KEY:
            partition %= self._router.partitions[topic]
        diverted = record._replace(topic=topic, partition=partition)
        excess = self._excess(diverted)
        if excess:
            raise ConfigError(f"{error}; for topic {topic} too: {excess}")
        return diverted

    def _excess(self, record: Record) -> str:
        """Return why a record is too large for its topic, "" if it is not."""
        topic = record.topic
        if record.commit_log_offset in self._refused and topic != self._rule.topic:
            return REFUSED
        parts = [record.key or b"", record.value]
        for name, value in record.headers:
            parts += (name.encode(), value)
        overhead = len(parts) * _LENGTH_SIZE + _FIELDS_SIZE
        plain = sum(map(len, parts)) + overhead
        if plain + BATCH_HEADER_SIZE <= self._least(topic):
            return ""
        size = BATCH_HEADER_SIZE + min(plain, overhead + _compressed_size(parts, self._codec))
        takes = f"it takes {size} bytes ({plain} before compression)"
        limit = self._limit(topic)
        if size > limit:
            return f"{takes}, max.message.bytes of the topic is {limit}"
        if size + REQUEST_OVERHEAD > self._request_bytes_max:
            return f"{takes}, max.request.size of the client is {self._request_bytes_max}"
        if plain > RECORD_BYTES_MAX:
            return f"{takes}, the client accepts {RECORD_BYTES_MAX} before compression"
        return ""

    def _limit(self, topic: str) -> int:
        return self._router.message_bytes_max.get(topic, RECORD_BYTES_MAX)

    def _least(self, topic: str) -> int:
        return min(self._limit(topic), self._request_bytes_max - REQUEST_OVERHEAD, RECORD_BYTES_MAX)


def too_large(offset: int, path: object, topic: str, why: str) -> ConfigError:
    """Return the error of the message at a physical offset of a file."""
    return ConfigError(
        f"the message at offset {offset} of {path} is too large for topic {topic}: {why}"
    )


def _compressed_size(parts: list[bytes], codec: str) -> int:
    data = b"".join(parts)
    return len(data) if codec == "none" else len(pa.compress(data, codec=codec, asbytes=True))
