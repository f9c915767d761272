"""The metrics by name.

Names, units and labels are those of RocketMQ 5's own exporter with the prefix ``reput_`` wherever
it has the same metric (ADR 0048). Times are in milliseconds, as there.
"""

from __future__ import annotations

from dataclasses import dataclass

_NODE = ("cluster", "node_type", "node_id")
_STORAGE = (*_NODE, "storage_type", "storage_medium")
_STORAGE_VALUES = ("local", "disk")
_NODE_TYPE = "broker"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its exported name, its kind, and its labels after those of its node."""

    name: str
    kind: str  # gauge, counter or histogram
    help: str
    labels: tuple[str, ...] = ()
    is_storage: bool = False  # carries storage_type and storage_medium, as in RocketMQ

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels in their order."""
        return (*(_STORAGE if self.is_storage else _NODE), *self.labels)


@dataclass(frozen=True, slots=True)
class Node:
    """The broker whose store is measured."""

    cluster: str
    name: str

    def label_values(self, family: Family) -> tuple[str, ...]:
        """Return the values of the labels that every sample of a family has."""
        storage = _STORAGE_VALUES if family.is_storage else ()
        return (self.cluster, _NODE_TYPE, self.name, *storage)


# --- the store ---------------------------------------------------------------------------------

DISPATCH_BEHIND_BYTES = Family(
    "reput_storage_dispatch_behind_bytes",
    "gauge",
    "Bytes of the commit log that are not dispatched yet",
    is_storage=True,
)
DISPATCH_BEHIND_MS = Family(
    "reput_storage_dispatch_behind_milliseconds",
    "gauge",
    "Age of the first message that is not dispatched yet, 0 without one",
    is_storage=True,
)
STORAGE_SIZE = Family(
    "reput_storage_size_bytes",
    "gauge",
    "Used bytes of the file system that holds the store",
    is_storage=True,
)
RESERVE_TIME = Family(
    "reput_storage_message_reserve_time_milliseconds",
    "gauge",
    "Age of the oldest message in the commit log",
    is_storage=True,
)
DISPATCH_STUCK_MS = Family(
    "reput_dispatch_stuck_milliseconds",
    "gauge",
    "For how long a message has been waiting without any progress of the dispatch",
)
STORE_READ_FAILED = Family(
    "reput_store_read_failed", "gauge", "1 if the store could not be read for this scrape"
)
DAMAGE = Family("reput_damage", "gauge", "Damaged places in the log, the queues and the index")
LOST_BYTES = Family(
    "reput_lost_bytes_total", "counter", "Bytes of damaged log that were skipped", ("query",)
)
DROPPED_MESSAGES = Family(
    "reput_dropped_messages_total",
    "counter",
    "Messages that a broker's own rules dropped (repeated) or misplaced (gap)",
    ("rule",),
)
_TOPIC_LABELS = ("topic", "is_system")
MESSAGES_IN = Family(
    "reput_messages_in_total",
    "counter",
    "Messages appended to the log since this process started",
    _TOPIC_LABELS,
)
THROUGHPUT_IN = Family(
    "reput_throughput_in_total",
    "counter",
    "Bytes appended to the log since this process started",
    _TOPIC_LABELS,
)
_LAG_LABELS = ("topic", "consumer_group", "is_retry", "is_system")
CONSUMER_LAG = Family(
    "reput_consumer_lag_messages", "gauge", "Messages that a group has not consumed", _LAG_LABELS
)
CONSUMER_LAG_MS = Family(
    "reput_consumer_lag_latency_milliseconds",
    "gauge",
    "Age of the first message that a group has not consumed, 0 without one",
    _LAG_LABELS,
)
TIMING_MESSAGES = Family(
    "reput_timing_messages",
    "gauge",
    "Messages in the timer wheel",
    ("topic",),
    is_storage=True,
)
TIMER_ENQUEUE_LAG = Family(
    "reput_timer_enqueue_lag",
    "gauge",
    "Messages of the timer topic that are not in the timer wheel yet",
    is_storage=True,
)
TIMER_DEQUEUE_LATENCY = Family(
    "reput_timer_dequeue_latency_milliseconds",
    "gauge",
    "For how long the first due message of the timer wheel may have been waiting",
    is_storage=True,
)
OMITTED_SERIES = Family(
    "reput_omitted_series",
    "gauge",
    "Series left out of this scrape: too many, or a label value is too long",
    ("metric",),
)

# --- a query -----------------------------------------------------------------------------------

BATCHES = Family("reput_batches_total", "counter", "Batches applied", ("query",))
BATCH_DURATION = Family(
    "reput_batch_duration_milliseconds",
    "histogram",
    "Duration of the phases of a batch, as Spark names them",
    ("query", "phase"),
)
DISPATCH_MESSAGES = Family("reput_dispatch_messages_total", "counter", "Messages dispatched")
DISPATCH_BYTES = Family("reput_dispatch_bytes_total", "counter", "Bytes of log dispatched")
RECOVERIES = Family(
    "reput_recoveries", "gauge", "Recoveries that the start of this dispatch performed"
)
EXPIRED_FILES = Family(
    "reput_expired_files_total", "counter", "Expired queue and index files deleted"
)
ARRIVALS = Family(
    "reput_arrivals_total", "counter", "Arrival events for Kafka, by outcome", ("outcome",)
)
ARRIVALS_WAITING = Family("reput_arrivals_waiting", "gauge", "Arrival events waiting for Kafka")
_MIRROR = ("mirror",)
MIRROR_BEHIND_BYTES = Family(
    "reput_mirror_behind_bytes", "gauge", "Bytes of log that are not in Kafka yet", _MIRROR
)
MIRROR_BEHIND_MS = Family(
    "reput_mirror_behind_milliseconds",
    "gauge",
    "Age of the first message that is not in Kafka yet, 0 without one",
    _MIRROR,
)
MIRROR_STUCK_MS = Family(
    "reput_mirror_stuck_milliseconds",
    "gauge",
    "For how long a message has been waiting without any progress of the mirror",
    _MIRROR,
)
MIRROR_MESSAGES = Family(
    "reput_mirror_messages_total", "counter", "Messages mirrored under this name", _MIRROR
)
MIRROR_BYTES = Family(
    "reput_mirror_bytes_total", "counter", "Bytes of log mirrored by this process", _MIRROR
)
MIRROR_OVERSIZED = Family(
    "reput_mirror_oversized_messages_total",
    "counter",
    "Messages larger than Kafka accepts, skipped or diverted",
    _MIRROR,
)

FAMILIES: tuple[Family, ...] = tuple(v for v in [*globals().values()] if isinstance(v, Family))
